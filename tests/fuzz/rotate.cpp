// SPDX-License-Identifier: MIT
// Rotation of heads of any shape, strides, range of channels, form of positions, layout and type, compared
// with the formula one channel at a time. Memory that a call must not touch is full of NaN of many bits, and
// compared.
#include <rope/rotation/rotate.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/mirrored.hpp"
#include "fuzz/support/places.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"

using namespace rope;
using fuzz::bytes;
using fuzz::check;
using fuzz::draw_places;
using fuzz::draw_view;
using fuzz::mirrored;
using fuzz::places;
using fuzz::with_positions;
using testing::guarded_memory;
using testing::wide;

namespace {

/// Channels from a seed, and some of any bits.
template <class T>
void fill(bytes& b, guarded_memory<T>& memory, const head_view<T>& x) {
  memory.fill(x, static_cast<std::uint32_t>(b.bits(2)));
  const Index axes[] = {x.batch, x.tokens, x.heads};
  if (x.size() == 0) return;
  static const double special[] = {0, -0.0, 1e-40, -3e-39, 6e-8, 1e4, 6e4, 1e30, 1e38, 1e300, 5e-324};
  using limits = Eigen::NumTraits<T>;
  for (long count = b.one_in(3) ? b.up_to(6) : 0; count > 0; --count) {
    T& channel = x.at(b.up_to(long(axes[0]) - 1), b.up_to(long(axes[1]) - 1),
                      b.up_to(long(axes[2]) - 1))[b.up_to(long(x.head_dim) - 1)];
    const long kind = b.up_to(7);
    channel = kind == 0   ? limits::quiet_NaN()
              : kind == 1 ? limits::infinity()
              : kind == 2 ? T(-limits::infinity())
                          : static_cast<T>(b.one_of(special));
  }
  memory.before = memory.now;
}

/// The heads of `after` must be those of `before` rotated by the table, one channel at a time.
///
/// A product and a sum are rounded in the arithmetic type, and an entry once more if the table has a wider
/// type. The inverse scales by 1 / m^2, in two roundings and products of the type of the table if that is
/// narrower.
///
/// \param first  the first rotated channel of the table
template <class Layout, class T, class S>
void check_rotated(const head_view<const T>& before, const head_view<const T>& after,
                   const frequency_table<S>& table, Index first, const places& p, bool back) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Index pairs = table.pairs();
  const wide u = tolerance::unit_roundoff<A>(), m = static_cast<wide>(table.attention_factor());
  const wide smallest = tolerance::ulp<A>(0), most = static_cast<wide>((std::numeric_limits<A>::max)()) / 8,
             max_of_type =
                 static_cast<wide>(Eigen::NumTraits<T>::highest()) * (1 - 2 * tolerance::unit_roundoff<T>());
#if defined(__AVX512BF16__)
  const wide flushed = std::is_same_v<T, Eigen::bfloat16> ? 0x1p-126L : wide(0);  // the processor's rounding
#else
  const wide flushed = 0;
#endif
  testing::for_each_head(before, [&](Index r, Index t, Index h) {
    const std::int64_t position = p.plain[static_cast<std::size_t>(r * before.tokens + t)];
    const auto cos = table.cos(position), sin = table.sin(position);
    const T *const head = before.at(r, t, h), *const rotated = after.at(r, t, h), *x = head + first,
                   *y = rotated + first;
    check(testing::same_bits(head, rotated, first) &&
              testing::same_bits(x + 2 * pairs, y + 2 * pairs, before.head_dim - first - 2 * pairs),
          "channels that do not rotate keep their bits");
    if (table.is_identity(position))
      return check(testing::same_bits(x, y, 2 * pairs), "position 0 keeps the bits of every channel");
    for (Index i = 0; i < pairs; ++i) {
      const Index channel[] = {Layout::first(i, pairs), Layout::second(i, pairs)};
      const wide a = static_cast<wide>(x[channel[0]]), c = static_cast<wide>(x[channel[1]]);
      const wide by_cos = static_cast<wide>(cos(i)) / (back ? m * m : wide(1)),
                 by_sin = static_cast<wide>(sin(i)) / (back ? -m * m : wide(1));
      const wide exact[] = {a * by_cos - c * by_sin, c * by_cos + a * by_sin};
      const wide terms[] = {testing::abs(a * by_cos) + testing::abs(c * by_sin),
                            testing::abs(c * by_cos) + testing::abs(a * by_sin)};
      for (int k : {0, 1}) {
        const T got = y[channel[k]];
        // A pair whose results are not finite, or come near the end of the range on the way, may become
        // anything.
        const wide on_the_way = (testing::abs(a) + testing::abs(c)) * (1 + testing::abs(m) + 1 / m);
        if (!(on_the_way < most && terms[k] < max_of_type / 2)) continue;
        const wide rounded = testing::abs(exact[k]) + 8 * u * terms[k];
        const wide scaled = back && m != 1 ? std::max(u, tolerance::unit_roundoff<S>()) : u;
        const wide bound = (back ? 8 * scaled : 3.1L * u) * terms[k] +
                           (back ? testing::abs(a) + testing::abs(c) : wide(0)) * tolerance::ulp<S>(0) +
                           (4 + (back ? 4 / m : wide(0)) + testing::abs(m)) * smallest + flushed +
                           (tolerance::is_16_bit<T> ? tolerance::ulp<T>(rounded) / 2 : wide(0));
        if (!(testing::abs(static_cast<wide>(got) - exact[k]) <= bound)) {
          std::fprintf(stderr,
                       "channel %ld of pair %ld at position %lld: %.20g for %.20Lg, %.3Lg bounds off\n",
                       long(channel[k]), long(i), static_cast<long long>(position), static_cast<double>(got),
                       static_cast<long double>(exact[k]),
                       static_cast<long double>(testing::abs(static_cast<wide>(got) - exact[k]) / bound));
          check(false, "a channel follows the formula");
        }
      }
    }
  });
}

/// Whether two channels have the same bits, or are both NaN.
template <class T>
bool same(T a, T b) {
  return testing::same_bits(&a, &b, 1) || (Eigen::numext::isnan(a) && Eigen::numext::isnan(b));
}

/// `rotate_into(out)` must write the rotated floats of `rotated`, each rounded to N.
template <class N>
void check_rounded(const head_view<const float>& rotated, const auto& rotate_into) {
  if (rotated.size() == 0) return;
  std::vector<N> numbers(static_cast<std::size_t>(rotated.size()), N(7));
  const auto out = bhsd(numbers.data(), rotated.batch, rotated.heads, rotated.tokens, rotated.head_dim);
  rotate_into(out);
  testing::for_each_head(rotated, [&](Index r, Index t, Index h) {
    for (Index d = 0; d < rotated.head_dim; ++d)
      check(same(out.at(r, t, h)[d], static_cast<N>(rotated.at(r, t, h)[d])),
            "a float that is rotated to 16 bits is rounded once");
  });
}

/// `rotate_both(q, k)` of floats and of channels of type N must rotate each as `rotate_one` does alone.
template <class N>
void check_two_types(const head_view<const float>& x, const auto& rotate_both, const auto& rotate_one) {
  if (x.size() == 0) return;
  const auto size = static_cast<std::size_t>(x.size());
  std::vector<float> q(size);
  std::vector<N> k(size);
  const auto view = [&](auto& numbers) {
    return bshd(numbers.data(), x.batch, x.tokens, x.heads, x.head_dim);
  };
  testing::for_each_head(x, [&](Index r, Index t, Index h) {
    for (Index d = 0; d < x.head_dim; ++d) {
      view(q).at(r, t, h)[d] = x.at(r, t, h)[d];
      view(k).at(r, t, h)[d] = static_cast<N>(x.at(r, t, h)[d]);
    }
  });
  std::vector<float> alone = q;
  std::vector<N> narrow = k;
  rotate_both(view(q), view(k));
  rotate_one(view(alone));
  rotate_one(view(narrow));
  for (std::size_t i = 0; i < size; ++i)
    check(same(q[i], alone[i]) && same(k[i], narrow[i]), "two types rotate together as each does alone");
}

template <class S>
frequency_table<S> draw_table(bytes& b, Index pairs, Index rows, std::int64_t& first) {
  static const std::int64_t starts[] = {
      0, 0, 0, -3, 1, 250, 100000, -100000, (1LL << 31) - 4, -(1LL << 40), 1LL << 52};
  static const double factors[] = {1, 1, 1, 1, 0.5, 1.25, 1e-30, 1e37};
  Eigen::ArrayXd inv_freq(pairs);
  for (Index i = 0; i < pairs; ++i) inv_freq(i) = b.empty() ? std::pow(0.5, double(i)) : b.moderate() / 64;
  const double m = b.one_of(factors);
  const auto f = frequencies::custom(inv_freq, m);
  first = b.one_of(starts);
  switch (b.up_to(5)) {
    case 0:
      return frequency_table<S>::with_float_angles(f, first, first + rows);
    case 1: {
      Eigen::ArrayXd at(rows);
      for (Index r = 0; r < rows; ++r) at(r) = b.coin() ? 0 : b.moderate();
      first = 0;
      return frequency_table<S>(f, at);
    }
    default:
      return frequency_table<S>(f, first, first + rows);
  }
}

/// The kind of error in a call.
enum class wrong { nothing, position, list, window, extent, memory, shape, shared };

/// An invalid call throws, and nothing is written.
template <class Call, class... Memory>
void rejected(wrong what, const Call& call, const Memory&... memory) {
  if (what == wrong::position)
    fuzz::rejects<std::out_of_range>("a position outside the table throws", call);
  else if (what == wrong::window)
    fuzz::rejects<std::invalid_argument>("a rotary_dim above head_dim throws", call);
  else
    fuzz::rejects<std::invalid_argument>("a list, an extent, a shape or a view that does not fit throws",
                                         call);
  check((memory.untouched() && ...), "a call that throws writes nothing");
}

/// Makes positions invalid. Returns false if a call without tokens would not notice.
bool spoil_positions(bytes& b, places& p, Index batch, Index tokens, std::int64_t first, std::int64_t last) {
  if (batch == 0 || tokens == 0) return false;
  static const std::int64_t away[] = {1, 2, 1000, 1LL << 33};
  using limits = std::numeric_limits<std::int64_t>;
  const bool below = b.coin();
  const std::int64_t far = b.one_of(away);
  const std::int64_t outside = b.one_in(4) ? (below ? (limits::min)() : (limits::max)())
                               : below     ? first - far
                                           : last - 1 + far;
  switch (p.in) {
    case places::start:
      p.first = below ? outside : b.one_in(4) ? outside : last - tokens + 1;
      return true;
    case places::ids:
      p.list[static_cast<std::size_t>(b.up_to(long(p.list_rows) - 1) * p.row_stride +
                                      b.up_to(long(p.list_columns) - 1) * p.column_stride)] = outside;
      return true;
    case places::rows:
      p.starts[static_cast<std::size_t>(b.up_to(long(batch) - 1))] = outside;
      return true;
    default:
      return false;
  }
}

/// Calls `f` with the table, or with the table placed at its first channel.
template <class S, class Call>
void with_table(const frequency_table<S>& table, bool placed, Index first_channel, const Call& f) {
  placed ? f(table.at_channel(first_channel)) : f(table);
}

template <class T, class S, class Layout>
void run(bytes& b) {
  const Index pairs = b.between(1, 20), rest = b.up_to(9), batch = b.one_in(9) ? 0 : b.between(1, 3);
  Index tokens = b.one_in(9) ? 0 : b.between(1, 4), heads = b.one_in(9) ? 0 : b.between(1, 3);
  std::int64_t first = 0;
  const frequency_table<S> table = draw_table<S>(b, pairs, tokens + 1 + b.up_to(4), first);
  if (b.one_in(64))
    fuzz::rejects<std::invalid_argument>("a window does not begin before the head",
                                         [&] { static_cast<void>(table.at_channel(-1 - b.up_to(9))); });
  places p = draw_places(b, batch, tokens, first, table.last());
  const long direction =
      b.up_to(255);  // one of the last sixty-four values, so that the others keep their meaning
  const bool back = direction % 2 == 1, placed = direction >= 192;
  const Index first_channel = placed ? (direction - 192) / 2 % (rest + 1) : 0;
  const bool in_place = b.coin(), both = in_place && b.coin();
  wrong what = b.one_in(4) ? static_cast<wrong>(b.between(1, 7)) : wrong::nothing;
  if (what == wrong::position && !spoil_positions(b, p, batch, tokens, first, table.last()))
    what = wrong::nothing;
  if (what == wrong::list && !spoil_list(b, p, batch, tokens)) what = wrong::nothing;

  guarded_memory<T> memory(0), other(0);
  const Index head_dim = 2 * pairs + rest;
  head_view<T> x = draw_view(b, memory, batch, tokens, heads, head_dim, !in_place);
  fill(b, memory, x);
  if (what == wrong::window) x = x.channels(0, first_channel + 2 * pairs - 1);
  if (what == wrong::memory) {
    if (x.size() == 0)
      what = wrong::nothing;
    else
      x.data = nullptr;
  }
  if (what == wrong::extent) (b.coin() ? x.heads : x.batch) = -1;

  if (both) {
    Index other_heads = b.up_to(3), other_batch = batch, other_tokens = tokens;
    if (what == wrong::shape) (b.coin() ? other_batch : other_tokens) += 1;
    head_view<T> k = draw_view(b, other, other_batch, other_tokens, other_heads, head_dim + b.up_to(2));
    fill(b, other, k);
    if (what == wrong::shared) {
      if (x.size() == 0)
        what = wrong::nothing;
      else
        k = x;
    }
    const auto call = [&] {
      with_positions(p, [&](const auto& positions) {
        with_table(table, placed, first_channel, [&](const auto& by) {
          back ? unrotate<Layout>(x, k, by, positions) : rotate<Layout>(x, k, by, positions);
        });
      });
    };
    if (what != wrong::nothing) return rejected(what, call, memory, other);
    call();
    check(memory.untouched_outside(x) && other.untouched_outside(k),
          "only the channels of the heads are written");
    check_rotated<Layout, T>(memory.remembered(x), head_view<const T>(x), table, first_channel, p, back);
    check_rotated<Layout, T>(other.remembered(k), head_view<const T>(k), table, first_channel, p, back);
    if constexpr (std::is_same_v<T, float>) {
      const auto with = [&](const auto& f) {
        with_positions(p, [&](const auto& positions) {
          with_table(table, placed, first_channel, [&](const auto& by) { f(by, positions); });
        });
      };
      const auto rotate_both = [&](const auto& queries, const auto& keys) {
        with([&](const auto& by, const auto& positions) {
          back ? unrotate<Layout>(queries, keys, by, positions)
               : rotate<Layout>(queries, keys, by, positions);
        });
      };
      const auto rotate_one = [&](const auto& one) {
        with([&](const auto& by, const auto& positions) {
          back ? unrotate<Layout>(one, by, positions) : rotate<Layout>(one, by, positions);
        });
      };
      check_two_types<Eigen::bfloat16>(memory.remembered(x), rotate_both, rotate_one);
      check_two_types<Eigen::half>(memory.remembered(x), rotate_both, rotate_one);
    }
  } else if (in_place) {
    if (what == wrong::shape || what == wrong::shared) what = wrong::nothing;
    const auto call = [&] {
      with_positions(p, [&](const auto& positions) {
        with_table(table, placed, first_channel, [&](const auto& by) {
          back ? unrotate<Layout>(x, by, positions) : rotate<Layout>(x, by, positions);
        });
      });
    };
    if (what != wrong::nothing) return rejected(what, call, memory);
    call();
    check(memory.untouched_outside(x), "only the channels of the heads are written");
    check_rotated<Layout, T>(memory.remembered(x), head_view<const T>(x), table, first_channel, p, back);
  } else {
    if (what == wrong::shared) what = wrong::nothing;
    if (what == wrong::shape) {
      Index* const extents[] = {&tokens, &heads};
      *b.one_of(extents) += 1;
    }
    const head_view<T> out = draw_view(b, other, batch, tokens, heads, x.head_dim);
    const auto call_for = [&](const auto& to) {
      with_positions(p, [&](const auto& positions) {
        with_table(table, placed, first_channel, [&](const auto& by) {
          back ? unrotate_to<Layout>(head_view<const T>(x), to, by, positions)
               : rotate_to<Layout>(head_view<const T>(x), to, by, positions);
        });
      });
    };
    const auto call = [&] { call_for(out); };
    if (what != wrong::nothing) return rejected(what, call, memory, other);
    call();
    check(memory.untouched() && other.untouched_outside(out), "only the channels of the output are written");
    check_rotated<Layout, T>(head_view<const T>(x), head_view<const T>(out), table, first_channel, p, back);
    if constexpr (std::is_same_v<T, float>) {
      check_rounded<Eigen::half>(head_view<const T>(out), call_for);
      check_rounded<Eigen::bfloat16>(head_view<const T>(out), call_for);
    }
  }
}

template <class T, class S>
void run_layout(bytes& b) {
  switch (b.up_to(2)) {
    case 0:
      return run<T, S, half_split>(b);
    case 1:
      return run<T, S, interleaved>(b);
    default:
      return run<T, S, mirrored>(b);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  const long types =
      b.up_to(255);  // one of the last sixty-four values, so that the others keep their meaning
  if (types >= 224) return run_layout<Eigen::half, double>(b), 0;
  if (types >= 192) return run_layout<double, float>(b), 0;
  switch (types % 6) {
    case 0:
      run_layout<float, float>(b);
      break;
    case 1:
      run_layout<double, double>(b);
      break;
    case 2:
      run_layout<Eigen::half, float>(b);
      break;
    case 3:
      run_layout<Eigen::bfloat16, float>(b);
      break;
    case 4:
      run_layout<float, double>(b);
      break;
    default:
      run_layout<Eigen::bfloat16, double>(b);
  }
  return 0;
}
