// SPDX-License-Identifier: MIT
// Keys in the caller's memory, of any shape, strides, range of channels, layout and type, which shift_keys
// and rebase_keys rotate by any number of positions, compared with the formula one channel at a time. Memory
// that a call must not touch is full of NaN of many bits, and compared.
#include <rope/cache/shift_keys.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <rope/tables/table.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/mirrored.hpp"
#include "fuzz/support/places.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"

using namespace rope;
using fuzz::bytes;
using fuzz::check;
using testing::guarded_memory;
using testing::wide;

namespace {

/// A table of float or double, its first channel, and its frequencies.
struct any_table {
  frequencies schedule;
  Index first_channel;
  std::optional<frequency_table<float>> floats;
  std::optional<frequency_table<double>> doubles;

  template <class Call>
  void with(const Call& f) const {
    const auto place = [&](const auto& table) {
      first_channel == 0 ? f(table) : f(table.at_channel(first_channel));
    };
    floats ? place(*floats) : place(*doubles);
  }
};

enum class angles { exact, float_angles, coordinates };

template <class S>
frequency_table<S> table_of(const frequencies& f, angles kind) {
  if (kind == angles::float_angles) return frequency_table<S>::with_float_angles(f, 0, 3);
  if (kind == angles::coordinates) return frequency_table<S>(f, Eigen::Array3d(0, 1, 2));
  return frequency_table<S>(f, 3);
}

any_table draw_table(bytes& b, Index pairs, Index first_channel, angles kind) {
  static const double factors[] = {1, 1, 1, 0.5, 1.25, 0.1};
  Eigen::ArrayXd inv_freq(pairs);
  for (Index i = 0; i < pairs; ++i) inv_freq(i) = b.one_in(3) ? b.moderate() / 64 : 1 / (1 + b.moderate());
  any_table drawn = {frequencies::custom(inv_freq, b.one_of(factors)), first_channel, {}, {}};
  if (b.coin())
    drawn.floats = table_of<float>(drawn.schedule, kind);
  else
    drawn.doubles = table_of<double>(drawn.schedule, kind);
  return drawn;
}

std::pair<wide, wide> rotated_by_both(const std::pair<wide, wide>& a, const std::pair<wide, wide>& b) {
  return {a.first * b.first - a.second * b.second, a.second * b.first + a.first * b.second};
}

/// cos and sin of count * inv_freq for counts of up to 63 bits: of each half of them, whose product is exact.
std::pair<wide, wide> rotation_at(std::int64_t count, double inv_freq) {
  const std::int64_t low = count % (std::int64_t{1} << 32);
  return rotated_by_both(fuzz::rotation_at(static_cast<wide>(count - low), inv_freq),
                         fuzz::rotation_at(static_cast<wide>(low), inv_freq));
}

/// The heads of `after` must equal the heads of `before`, rotated by m and the cos and sin that
/// rotation(count, pair) returns.
///
/// If m is not 1, the quotient m and its product with an entry are each rounded once, by u of themselves:
/// together 2 u times the length of the rotated pair, in addition to the error of one rotation.
template <class Layout, class T, class Rotation>
void check_rotated(const head_view<const T>& before, const head_view<const T>& after, Index pairs,
                   Index first, const std::vector<std::int64_t>& counts, wide m, const Rotation& rotation) {
  const wide u = tolerance::unit_roundoff<fuzz::arithmetic<T>>();
  std::vector<std::pair<wide, wide>> by(static_cast<std::size_t>(pairs));
  for (Index r = 0; r < before.batch; ++r)
    for (Index t = 0; t < before.tokens; ++t) {
      const std::int64_t count = counts[static_cast<std::size_t>(r * before.tokens + t)];
      for (Index i = 0; i < pairs; ++i) by[static_cast<std::size_t>(i)] = rotation(count, i);
      for (Index h = 0; h < before.heads; ++h) {
        const T *const head = before.at(r, t, h), *const rotated = after.at(r, t, h), *x = head + first,
                       *y = rotated + first;
        check(testing::same_bits(head, rotated, first) &&
                  testing::same_bits(x + 2 * pairs, y + 2 * pairs, before.head_dim - first - 2 * pairs),
              "channels that do not rotate keep their bits");
        for (Index i = 0; i < pairs; ++i) {
          const Index at[] = {Layout::first(i, pairs), Layout::second(i, pairs)};
          const wide a = static_cast<wide>(x[at[0]]), c = static_cast<wide>(x[at[1]]);
          const auto [cos, sin] = by[static_cast<std::size_t>(i)];
          const wide exact[] = {m * (a * cos - c * sin), m * (c * cos + a * sin)};
          const wide length = m * testing::hypot(a, c);
          const wide bound = tolerance::rotation_bound<T>(length) + (m == 1 ? wide(0) : 2 * u * length);
          for (int k : {0, 1}) {
            const wide error = testing::abs(static_cast<wide>(y[at[k]]) - exact[k]);
            if (error <= bound) continue;
            std::fprintf(stderr,
                         "channel %ld of pair %ld, %lld positions on: %.20g for %.20Lg, %.3Lg bounds off\n",
                         long(at[k]), long(i), static_cast<long long>(count), static_cast<double>(y[at[k]]),
                         static_cast<long double>(exact[k]), static_cast<long double>(error / bound));
            check(false, "a key is rotated by the difference of its angles");
          }
        }
      }
    }
}

/// The largest angles: any distance by a long double, and 2^50 by the sum of two doubles.
bool is_known(const std::vector<std::int64_t>& counts) {
  if (std::is_same_v<wide, long double>) return true;
  for (const std::int64_t count : counts)
    if (count / 4 > (std::int64_t{1} << 48) || count / 4 < -(std::int64_t{1} << 48)) return false;
  return true;
}

/// The kind of error in a call.
enum class wrong { nothing, window, memory, extent, angles, list, pairs, place };

template <class Layout, class T>
void run(bytes& b) {
  const Index pairs = b.between(1, 20), rest = b.up_to(9), batch = b.one_in(9) ? 0 : b.between(1, 3);
  const Index tokens = b.one_in(9) ? 0 : b.between(1, 4), heads = b.one_in(9) ? 0 : b.between(1, 3);
  const Index first_channel = b.coin() ? b.up_to(long(rest)) : 0;
  const bool shifts = b.coin();
  wrong what = b.one_in(4) ? static_cast<wrong>(b.between(1, shifts ? 4 : 7)) : wrong::nothing;
  const bool spoils_second = !shifts && b.coin();
  const auto draw = [&](bool spoilt) {
    const bool other_angles = spoilt && what == wrong::angles;
    return draw_table(b, pairs + (spoilt && what == wrong::pairs && pairs > 1 ? -1 : 0),
                      first_channel + (spoilt && what == wrong::place ? (first_channel > 0 ? -1 : 1) : 0),
                      !other_angles ? angles::exact
                      : b.coin()    ? angles::coordinates
                                    : angles::float_angles);
  };
  if (what == wrong::pairs && pairs == 1) what = wrong::angles;
  const any_table by = draw(!spoils_second);
  const std::optional<any_table> to = shifts ? std::nullopt : std::optional(draw(spoils_second));

  guarded_memory<T> memory(0);
  head_view<T> keys = fuzz::draw_view(b, memory, batch, tokens, heads, 2 * pairs + rest);
  memory.fill(keys, static_cast<std::uint32_t>(b.bits(2)));
  if (what == wrong::window) keys = keys.channels(0, first_channel + 2 * pairs - 1);
  if (what == wrong::memory) {
    if (keys.size() == 0)
      what = wrong::nothing;  // null is valid if there is no key
    else
      keys.data = nullptr;
  }
  if (what == wrong::extent) (b.coin() ? keys.heads : keys.batch) = -1;
  const auto rejected = [&](const auto& call) {
    fuzz::rejects<std::invalid_argument>("tables, a window, a view or positions that do not fit throw", call);
    check(memory.untouched(), "a call that throws writes nothing");
  };
  const auto before = [&] { return memory.remembered(keys); };

  if (shifts) {
    const std::int64_t delta = b.integer();
    const auto call = [&] { by.with([&](const auto& table) { shift_keys<Layout>(keys, delta, table); }); };
    if (what != wrong::nothing) return rejected(call);
    call();
    check(memory.untouched_outside(keys), "only the keys are written");
    if (delta == 0) check(memory.untouched(), "no step keeps the bits of every key");
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(batch * tokens), delta);
    if (!is_known(counts)) return;
    return check_rotated<Layout, T>(
        before(), keys, pairs, first_channel, counts, 1,
        [&](std::int64_t count, Index i) { return rotation_at(count, by.schedule.inv_freq()(i, 0)); });
  }

  using limits = std::numeric_limits<std::int64_t>;
  static const std::int64_t furthest[] = {20, 100, 1000000, 1LL << 37, (limits::max)() / 2};
  const std::int64_t far = b.one_of(furthest);
  fuzz::places p = fuzz::draw_places(b, batch, tokens, b.coin() ? 0 : -far, far);
  if (what == wrong::list && !fuzz::spoil_list(b, p, batch, tokens)) what = wrong::nothing;
  const auto call = [&] {
    fuzz::with_positions(p, [&](const auto& positions) {
      by.with([&](const auto& old) {
        to->with([&](const auto& next) { rebase_keys<Layout>(keys, positions, old, next); });
      });
    });
  };
  if (what != wrong::nothing) return rejected(call);
  call();
  check(memory.untouched_outside(keys), "only the keys are written");
  if (!is_known(p.plain)) return;
  const wide m =
      static_cast<wide>(to->schedule.attention_factor()) / static_cast<wide>(by.schedule.attention_factor());
  check_rotated<Layout, T>(before(), keys, pairs, first_channel, p.plain, m,
                           [&](std::int64_t count, Index i) {
                             return rotated_by_both(rotation_at(count, to->schedule.inv_freq()(i, 0)),
                                                    rotation_at(-count, by.schedule.inv_freq()(i, 0)));
                           });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  fuzz::with_one_of<float, double, Eigen::half, Eigen::bfloat16>(b, [&](auto type) {
    using T = decltype(type);
    switch (b.up_to(2)) {
      case 0:
        return run<half_split, T>(b);
      case 1:
        return run<interleaved, T>(b);
      default:
        return run<fuzz::mirrored, T>(b);
    }
  });
  return 0;
}
