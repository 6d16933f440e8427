// Makes an exact table of rope, next to the usual loop over the same entries in the type of the table.

#include "../support.hpp"

#include <cmath>

namespace {

using bench::Index;

constexpr Index rows = 4096, pairs = 64;

template <class S, class Work>
void build(bench::row& of, const Work& work) {
  std::vector<S> cos(rows * pairs), sin(cos.size());
  const rope::frequencies frequencies(2 * pairs);
  std::vector<S> inv_freq(pairs);
  for (Index i = 0; i < pairs; ++i)
    inv_freq[static_cast<std::size_t>(i)] = static_cast<S>(frequencies.inv_freq()(i, 0));
  // The usual code of engines: cos and sin of an angle of the table's type.
  const auto loop = [&] {
    for (Index p = 0; p < rows; ++p)
      for (Index i = 0; i < pairs; ++i) {
        const S angle = static_cast<S>(p) * inv_freq[static_cast<std::size_t>(i)];
        cos[static_cast<std::size_t>(p * pairs + i)] = std::cos(angle);
        sin[static_cast<std::size_t>(p * pairs + i)] = std::sin(angle);
      }
    bench::keep(cos);
  };
  of.time({[&] { work(frequencies); }}, {{"cos and sin of its type", {{loop}}}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto add = []<class S = float>(const char* name, auto work, S = {}) {
    bench::add("building a table of 4096 x 64", name, [=](bench::row& of) { build<S>(of, work); });
  };
  add("table/float/range", [](const rope::frequencies& f) {
    const rope::frequency_table<float> table(f, rows);
    bench::keep(table.cos(1).data());
  });
  add(
      "table/double/range",
      [](const rope::frequencies& f) {
        const rope::frequency_table<double> table(f, rows);
        bench::keep(table.cos(1).data());
      },
      0.0);
  add("table/float/scattered positions", [](const rope::frequencies& f) {
    static const Eigen::Array<std::int64_t, Eigen::Dynamic, 1> positions = [] {
      Eigen::Array<std::int64_t, Eigen::Dynamic, 1> p(rows);
      for (Index i = 0; i < rows; ++i) p(i) = (i * 104729) % 131072;
      return p;
    }();
    const rope::frequency_table<float> table(f, positions);
    bench::keep(table.cos(1).data());
  });
  // rows * pairs entries, as above, for a grid of frames, height and width.
  add("table/float/integer coordinates on three axes", [](const rope::frequencies&) {
    static const auto grid = rope::grid_positions({4, 32, 32});
    const rope::frequency_table<float> table(rope::wan_frequencies(2 * pairs), grid);
    bench::keep(table.cos(1).data());
  });
  add("table/float/real coordinates on three axes", [](const rope::frequencies&) {
    static const Eigen::ArrayXXd grid =
        rope::grid_coordinates(rope::evenly_spaced(4), rope::evenly_spaced(32), rope::evenly_spaced(32));
    const rope::frequency_table<float> table(rope::wan_frequencies(2 * pairs), grid);
    bench::keep(table.cos(1).data());
  });
  return bench::run(argc, argv);
}
