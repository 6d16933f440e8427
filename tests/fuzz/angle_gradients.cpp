// SPDX-License-Identifier: MIT
// Gradients with respect to angles, frequencies, coordinates, table entries and the growth rates of xPos:
// heads anywhere in memory, positions in every form, compared with sums over tokens and heads in 64 bits or
// more.
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

using fuzz::bytes;
using fuzz::check;
using rope::Index;
using testing::wide;

namespace {

/// A sum in `wide` with the sum of the magnitudes of its terms, which bounds its error in double.
struct sum {
  wide value = 0, size = 0;
  void add(wide term) {
    value += term;
    size += testing::abs(term);
  }
};

/// Heads, their gradient and the positions of one test.
template <class T, class G>
struct heads {
  Index batch, tokens, count, pairs, head_dim, first_channel;
  testing::guarded_memory<T> x_memory = testing::guarded_memory<T>(0);
  testing::guarded_memory<G> g_memory = testing::guarded_memory<G>(0);
  rope::head_view<T> x;
  rope::head_view<G> g;
  bool interleaved;
  std::vector<std::int64_t> positions;  // of every token, [batch * tokens]

  explicit heads(bytes& b)
      : batch(b.up_to(2)),
        tokens(b.up_to(4)),
        count(b.up_to(3)),
        pairs(b.between(1, 9)),
        head_dim(0),
        first_channel(b.one_in(3) ? b.up_to(3) : 0),
        interleaved(b.coin()) {
    head_dim = first_channel + 2 * pairs + (b.one_in(3) ? b.up_to(3) : 0);
    x = fuzz::draw_view(b, x_memory, batch, tokens, count, head_dim);
    g = fuzz::draw_view(b, g_memory, batch, tokens, count, head_dim);
    x_memory.fill(x, static_cast<std::uint32_t>(b.bits(1)));
    g_memory.fill(g, static_cast<std::uint32_t>(b.bits(1)) + 256);
  }

  /// Calls `call(positions)` with a start, a list for all rows or one for each, or the start of each row, all
  /// of them in [first, last), and stores the position of every token.
  template <class Call>
  void with_positions(bytes& b, std::int64_t first, std::int64_t last, const Call& call) {
    const std::int64_t rows = last - first;
    positions.assign(static_cast<std::size_t>(batch * tokens), first);
    const auto at = [&](Index row, Index t) -> std::int64_t& {
      return positions[static_cast<std::size_t>(row * tokens + t)];
    };
    const auto start = [&] { return first + b.up_to(static_cast<long>(rows - tokens)); };
    switch (rows < tokens ? 2 : b.up_to(3)) {
      case 0: {
        const std::int64_t from = start();
        for (Index row = 0; row < batch; ++row)
          for (Index t = 0; t < tokens; ++t) at(row, t) = from + t;
        return call(from);
      }
      case 1: {
        std::vector<std::int64_t> starts;
        for (Index row = 0; row < batch; ++row) {
          starts.push_back(start());
          for (Index t = 0; t < tokens; ++t) at(row, t) = starts.back() + t;
        }
        return call(rope::row_starts{starts});
      }
      case 2: {
        for (std::int64_t& position : positions) position = first + b.up_to(static_cast<long>(rows - 1));
        return call(positions);
      }
      default: {
        std::vector<int> ids;
        for (Index t = 0; t < tokens; ++t) {
          ids.push_back(static_cast<int>(first + b.up_to(static_cast<long>(rows - 1))));
          for (Index row = 0; row < batch; ++row) at(row, t) = ids.back();
        }
        return call(ids);
      }
    }
  }

  Index channel(Index pair, bool second) const {
    return first_channel + (interleaved ? 2 * pair + second : pair + (second ? pairs : 0));
  }
  /// Calls `visit(position, pair, across, along)` with u b - v a and u a + v b of every token, head and pair.
  template <class Visit>
  void for_each_pair(const Visit& visit) const {
    testing::for_each_head(x, [&](Index row, Index t, Index h) {
      for (Index i = 0; i < pairs; ++i) {
        const Index first = channel(i, false), second = channel(i, true);
        const auto u = static_cast<wide>(x.at(row, t, h)[first]),
                   v = static_cast<wide>(x.at(row, t, h)[second]),
                   a = static_cast<wide>(g.at(row, t, h)[first]),
                   d = static_cast<wide>(g.at(row, t, h)[second]);
        visit(positions[static_cast<std::size_t>(row * tokens + t)], i, u * d - v * a, u * a + v * d);
      }
    });
  }
};

/// A result [rows, columns] and its sums: a rounding for each product and each sum, and those of the weights.
template <class Got>
void compare(const Got& got, const std::vector<sum>& exact, Index rows, Index columns, const char* claim) {
  check(got.rows() == rows && got.cols() == columns, "a gradient has the shape of what it is for");
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) {
      const sum& s = exact[static_cast<std::size_t>(r * columns + c)];
      const wide error = testing::abs(static_cast<wide>(got(r, c)) - s.value);
      check(error <= 256 * 0x1p-53L * s.size + 0x1p-1000L, claim);
    }
}

template <class A, class B>
bool same_numbers(const A& a, const B& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (Index i = 0; i < a.size(); ++i)
    if (a.data()[i] != b.data()[i]) return false;
  return true;
}

/// A table of one axis or several, made from frequencies.
struct drawn_table {
  rope::frequency_table<float> table;
  bool of_coordinates;

  static drawn_table draw(bytes& b, Index pairs) {
    testing::random numbers(b.bits(1));
    if (b.coin()) {
      const std::int64_t first = b.between(-6, 6);
      return {{rope::frequencies(2 * pairs, 1 + b.moderate() + 0x1p-8), first, first + b.between(1, 20)},
              false};
    }
    const Index axes = b.between(1, 3), rows = b.between(1, 9);
    Eigen::ArrayXXd inv_freq(pairs, axes), coordinates(rows, axes);
    for (double& f : inv_freq.reshaped()) f = b.one_in(8) ? 0 : numbers.scaled(-6, 1);
    for (double& c : coordinates.reshaped()) c = b.one_in(8) ? 0 : numbers.scaled(-3, 5);
    return {{rope::frequencies::custom(inv_freq, b.coin() ? 1.0 : 1.5), coordinates}, true};
  }
};

template <class Layout, class T, class G>
void run_frequencies(bytes& b, heads<T, G>& all) {
  const drawn_table drawn = drawn_table::draw(b, all.pairs);
  const auto& table = drawn.table;
  const Index rows = table.rows(), pairs = all.pairs, axes = table.axes();
  const auto placed = table.at_channel(all.first_channel);
  const testing::own_threads threads(b.one_in(8) ? 3 : 1);
  all.with_positions(b, table.first(), table.last(), [&](const auto& positions) {
    const auto angles = rope::angle_gradient<Layout>(all.x, all.g, placed, positions, threads);
    const auto by_frequency = rope::inv_freq_gradient<Layout>(all.x, all.g, placed, positions, threads);
    const auto by_coordinate = rope::coordinate_gradient<Layout>(all.x, all.g, placed, positions, threads);
    const auto entries = rope::table_gradient<Layout>(all.x, all.g, placed, positions, threads);
    check(same_numbers(angles, rope::angle_gradient<Layout>(all.x, all.g, placed, positions)) &&
              same_numbers(by_frequency, rope::inv_freq_gradient<Layout>(all.x, all.g, placed, positions)) &&
              same_numbers(by_coordinate, rope::coordinate_gradient<Layout>(all.x, all.g, placed, positions)),
          "threads change no bit of a gradient");
    std::vector<sum> of_angles(static_cast<std::size_t>(rows * pairs)), of_cos = of_angles;
    std::vector<sum> of_frequencies(static_cast<std::size_t>(pairs * axes));
    std::vector<sum> of_coordinates(static_cast<std::size_t>(rows * axes));
    all.for_each_pair([&](std::int64_t position, Index i, wide across, wide along) {
      const auto row = static_cast<Index>(position - table.first());
      of_angles[static_cast<std::size_t>(row * pairs + i)].add(across);
      of_cos[static_cast<std::size_t>(row * pairs + i)].add(along);
      for (Index a = 0; a < axes; ++a) {
        const wide p = drawn.of_coordinates ? static_cast<wide>(table.coordinates()(row, a)) : wide(position);
        of_frequencies[static_cast<std::size_t>(i * axes + a)].add(p * across);
        of_coordinates[static_cast<std::size_t>(row * axes + a)].add(
            static_cast<wide>(table.inv_freq()(i, a)) * across);
      }
    });
    compare(angles, of_angles, rows, pairs, "the gradient of an angle is u b - v a of its tokens and heads");
    compare(entries.sin, of_angles, rows, pairs,
            "the gradient of a sine is u b - v a of its tokens and heads");
    compare(entries.cos, of_cos, rows, pairs,
            "the gradient of a cosine is u a + v b of its tokens and heads");
    // The terms of one pair may cancel before a coordinate or a frequency multiplies them.
    for (auto* sums : {&of_frequencies, &of_coordinates})
      for (sum& s : *sums) s.size += 0x1p-1000L;
    compare(by_frequency, of_frequencies, pairs, axes, "the gradient of inv_freq sums p (u b - v a)");
    compare(by_coordinate, of_coordinates, rows, axes,
            "the gradient of a coordinate sums inv_freq (u b - v a)");
  });
}

template <class Layout, class T, class G>
void run_rates(bytes& b, heads<T, G>& all) {
  const Index pairs = all.pairs;
  const std::int64_t first = b.between(-6, 6), last = first + b.between(1, 20);
  const double center = b.moderate() / 16 - 2, scale_base = 16 + b.moderate();
  testing::random numbers(b.bits(1));
  Eigen::ArrayXd rates(pairs);
  for (double& rate : rates) rate = b.one_in(8) ? 0 : numbers.scaled(-4, 0);
  const rope::xpos<float> tables(rope::frequencies(2 * pairs), first, last,
                                 {.center = center, .scale_base = scale_base, .rates = rates});
  const auto side = b.coin() ? rope::xpos_side::queries : rope::xpos_side::keys;
  const testing::own_threads threads(b.one_in(8) ? 3 : 1);
  all.with_positions(b, first, last, [&](const auto& positions) {
    const auto x = all.x.channels(all.first_channel, all.head_dim - all.first_channel);
    const auto g = all.g.channels(all.first_channel, all.head_dim - all.first_channel);
    const auto by_rate = rope::rate_gradient<Layout>(side, x, g, tables, positions, threads);
    const auto by_frequency = rope::inv_freq_gradient<Layout>(x, g, tables, positions, threads);
    check(same_numbers(by_rate, rope::rate_gradient<Layout>(side, x, g, tables, positions)) &&
              same_numbers(by_frequency, rope::inv_freq_gradient<Layout>(x, g, tables, positions)),
          "threads change no bit of a gradient");
    std::vector<sum> of_rates(static_cast<std::size_t>(pairs)), of_frequencies = of_rates;
    const wide sign = side == rope::xpos_side::queries ? 1 : -1;
    all.for_each_pair([&](std::int64_t position, Index i, wide across, wide along) {
      const wide grown = sign * (wide(position) - static_cast<wide>(center)) / static_cast<wide>(scale_base);
      of_rates[static_cast<std::size_t>(i)].add(grown * along);
      of_frequencies[static_cast<std::size_t>(i)].add(wide(position) * across);
    });
    compare(by_rate, of_rates, pairs, 1,
            "the gradient of a rate sums its growth in the exponent times u a + v b");
    compare(by_frequency, of_frequencies, pairs, 1, "the gradient of inv_freq sums p (u b - v a)");
  });
}

/// Calls that throw according to their comments.
template <class Layout, class T, class G>
void run_wrong(bytes& b, heads<T, G>& all) {
  const Index pairs = all.pairs;
  const rope::frequency_table<float> table(rope::frequencies(2 * pairs), -2, 9);
  const rope::xpos<float> tables(rope::frequencies(2 * pairs), -2, 9, {.center = 3, .scale_base = 64});
  switch (b.up_to(3)) {
    case 0: {  // a position outside the table
      if (all.batch * all.tokens == 0) return;
      std::vector<std::int64_t> ids(static_cast<std::size_t>(all.batch * all.tokens), 0);
      ids[static_cast<std::size_t>(b.up_to(static_cast<long>(ids.size()) - 1))] = b.coin() ? 9 : -3;
      fuzz::rejects<std::out_of_range>("positions are in the table", [&] {
        rope::rate_gradient<Layout>(rope::xpos_side::keys, all.x, all.g, tables, ids);
      });
      return fuzz::rejects<std::out_of_range>(
          "positions are in the table", [&] { rope::angle_gradient<Layout>(all.x, all.g, table, ids); });
    }
    case 1: {  // another shape
      if (all.tokens == 0) return;
      const auto fewer = all.g.token_range(0, all.tokens - 1);
      fuzz::rejects<std::invalid_argument>("a gradient has the shape of its heads", [&] {
        rope::rate_gradient<Layout>(rope::xpos_side::queries, all.x, fewer, tables);
      });
      return fuzz::rejects<std::invalid_argument>("a gradient has the shape of its heads", [&] {
        rope::inv_freq_gradient<Layout>(all.x, fewer, table);
      });
    }
    case 2: {  // more rotated channels than the head has
      const auto wider = table.at_channel(all.head_dim - 2 * pairs + 1);
      return fuzz::rejects<std::invalid_argument>("rotated channels lie in the head", [&] {
        rope::coordinate_gradient<Layout>(all.x, all.g, wider);
      });
    }
    default:  // given entries have no frequencies
      return fuzz::rejects<std::invalid_argument>("given entries have no frequencies", [&] {
        rope::inv_freq_gradient<Layout>(all.x, all.g, tables.queries());
      });
  }
}

template <class T, class G>
void run(bytes& b) {
  heads<T, G> all(b);
  fuzz::with_layout(all.interleaved, [&](auto layout) {
    using Layout = decltype(layout);
    switch (b.up_to(4)) {
      case 0:
      case 1:
        run_frequencies<Layout>(b, all);
        break;
      case 2:
      case 3:
        run_rates<Layout>(b, all);
        break;
      default:
        run_wrong<Layout>(b, all);
    }
  });
  check(all.x_memory.untouched() && all.g_memory.untouched(),
        "a gradient with respect to angles writes no heads");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  fuzz::with_one_of<float, double, Eigen::half, Eigen::bfloat16>(b, [&](auto x) {
    using T = decltype(x);
    if (b.one_in(4))
      run<T, float>(b);
    else
      run<T, T>(b);
  });
  return 0;
}
