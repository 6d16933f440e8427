// Rotation of floats in every shape, next to a plain loop and an Eigen expression over the same table. The
// limit is an in-place scale of the same bytes, in one stream or in four. Names: layout/tokens x heads x
// head_dim, then @16 if the first channel is 16 bytes after the beginning of a cache line.

#include "../support.hpp"
#include "other_rotations.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace {

using bench::Index;

/// Throws unless two rotations of the same channels agree.
void must_agree(const std::string& name, const float* x, Index size, const auto& one, const auto& other) {
  std::vector<float> a(x, x + size), b = a;
  one(a.data());
  other(b.data());
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-6f))
      throw std::runtime_error(name + ": rope has " + std::to_string(a[i]) + " in channel " +
                               std::to_string(i) + ", the other rotation " + std::to_string(b[i]));
}

template <class Layout>
void rotate(bench::row& of, const bench::rotated_shape& s, Index past_line) {
  constexpr Index largest = Index{4096} * 32 * 256;
  static auto memory = bench::channels((Index{1} << 26) + largest);  // begins with a cache line
  const Index size = s.tokens * s.heads * s.head_dim, past = past_line / Index(sizeof(float));
  const rope::frequency_table<float> table(rope::frequencies(s.head_dim), s.tokens + 1);
  const auto rope = [&](float* x) {
    rope::rotate<Layout>(rope::thd(x, s.tokens, s.heads, s.head_dim), table, 1);
  };
  const auto loop = [&](float* x) { bench::plain_loop<Layout>(x, table, s); };
  const auto eigen = bench::eigen_expression<Layout>(table, s);

  bench::successive_parts parts(size, size * Index(sizeof(float)));
  if (parts.count() == 1) {  // channels in a cache are scaled so often that they would grow
    const auto fresh = bench::channels(size);
    std::copy(fresh.begin(), fresh.end(), memory.begin() + past);
  }
  must_agree(of.name, memory.data() + past, size, rope, loop);
  must_agree(of.name, memory.data() + past, size, rope, eigen);
  const auto next = [&] { return memory.data() + parts.begin(parts.next()) + past; };
  bench::yardstick limit = {"limit", {{[&] { bench::scale_in_place(next(), size, 1); }}}};
  if (parts.count() > 1) limit.ways.push_back({[&] { bench::scale_in_four_streams(next(), size, 1); }});
  of.time({[&] { rope(next()); }}, {{"a plain loop", {{[&] { loop(next()); }}}},
                                    {"an Eigen expression", {{[&] { eigen(next()); }}}},
                                    limit});
}

template <class Layout>
void add_shapes() {
  const std::string layout = bench::layout_name<Layout>();
  for (const Index tokens : {1, 16, 256, 512, 4096})
    for (const Index heads : {1, 8, 32})
      for (const Index head_dim : {64, 72, 80, 96, 100, 112, 128, 256})
        for (const Index past_line : {0, 16})
          bench::add(layout + ", " + std::to_string(tokens) + (tokens == 1 ? " token" : " tokens"),
                     layout + "/" + std::to_string(tokens) + "x" + std::to_string(heads) + "x" +
                         std::to_string(head_dim) + (past_line == 0 ? "" : "@16"),
                     [=](bench::row& of) {
                       rotate<Layout>(of, {tokens, heads, head_dim}, past_line);
                     });
}

}  // namespace

int main(int argc, char** argv) {
  add_shapes<rope::half_split>();
  add_shapes<rope::interleaved>();
  return bench::run(argc, argv);
}
