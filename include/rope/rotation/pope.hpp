// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_POPE_HPP
#define ROPE_ROTATION_POPE_HPP

#include <algorithm>  // std::copy_n, std::max, std::clamp
#include <cmath>
#include <numbers>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/table.hpp>

/// PoPE, polar position embeddings. In RoPE a pair already has an angle before it is rotated, so content and
/// position mix in one phase. In PoPE a channel gives only a magnitude, softplus(x) > 0, and the phase
/// depends on the position alone. A score is a sum of products of magnitudes with cosines of the distance.
///
///     q_i -> softplus(q_i) (cos p f_i, sin p f_i)
///     k_i -> softplus(k_i) (cos(p f_i + b_hi), sin(p f_i + b_hi))
///     q . k = sum_i softplus(q_i) softplus(k_i) cos((p_q - p_k) f_i - b_hi)
///
/// A head of n channels becomes n pairs, 2 n channels. The frequencies are those of 2 n rotated channels.
/// Keep the score scale of n channels: attention_options{.scale = 1 / std::sqrt(n)}.
///
/// Source: Gopalakrishnan et al. 2025, Decoupling the "what" and "where" with polar coordinate positional
///         embeddings, arXiv:2509.10534; lucidrains/PoPE-pytorch

namespace rope::inline ROPE_ABI {

/// log(1 + exp(x)), without overflow for large x and without cancellation for very negative x.
///
///     softplus(x) = max(x, 0) + log1p(exp(-|x|))
///
/// Accuracy:  3 ulp of double. PyTorch's softplus returns x above its threshold of 20. Above 20 the two
///            differ by less than 2.1e-9, which is less than half an ulp of float
inline double softplus(double x) { return (std::max)(x, 0.0) + std::log1p(std::exp(-(std::abs)(x))); }

/// The frequencies of PoPE: one per channel.
///
///     inv_freq(i) = base^(-i / channels),   i = 0 .. channels - 1
///
/// Throws:  std::invalid_argument unless channels is positive and at most 32768, and base finite and greater
///          than 1
inline frequencies pope_frequencies(Index channels, double base = 10000.0) {
  if (channels <= 0 || channels > 32768)
    detail::throw_invalid("pope_frequencies", "channels must be positive and at most 32768, got ", channels);
  return frequencies(2 * channels, base);
}

/// The learned phase offsets of the keys of each head, [heads, channels] in radians, clamped to [-2 pi, 0].
///
///     const pope_bias bias(learned);  // [kv_heads, channels]
///     pope<Layout>(keys, polar_keys, table, bias, start);
///
/// Invariant: immutable; empty after it was moved from.
class pope_bias {
 public:
  /// \param bias  Eigen expression [heads, channels], float or double; clamped to [-2 pi, 0]
  ///
  /// Throws:  std::invalid_argument if it is empty or a value is not finite
  /// Source:  `bias.clamp(-2 pi, 0)` of lucidrains/PoPE-pytorch
  template <class Derived>
  explicit pope_bias(const Eigen::DenseBase<Derived>& bias) : rotations_(bias.cols(), bias.rows()) {
    static_assert(
        std::is_same_v<typename Derived::Scalar, float> || std::is_same_v<typename Derived::Scalar, double>,
        "pope_bias: phases are float or double");
    if (rotations_.empty())
      detail::throw_invalid("pope_bias", "bias must be [heads, channels] and not empty, got ",
                            detail::shape_text({heads(), channels()}));
    const number_array<typename Derived::Scalar> values = bias;
    for (Index h = 0; h < heads(); ++h)
      for (Index i = 0; i < channels(); ++i) {
        const auto value = static_cast<double>(values(h, i));
        if (!detail::is_finite(value))
          detail::throw_invalid("pope_bias", "a phase must be finite, got ", value, " at head ", h,
                                ", channel ", i);
        rotations_(i, h) = cos_sin_of<double>(phase_of(std::clamp(value, -2 * std::numbers::pi, 0.0)));
      }
  }

  /// Number of heads.
  Index heads() const { return rotations_.cols(); }
  /// Phases per head.
  Index channels() const { return rotations_.rows(); }
  /// cos and sin of the phases of a head, [channels].  Requires: h in [0, heads())
  const cos_sin* head(Index h) const { return rotations_.data() + h * channels(); }

 private:
  number_array<cos_sin> rotations_;  // [channels, heads]
};

namespace detail {

template <class Layout, class T, class S, class P, class Threads>
void pope_all(const head_view<const T>& x, const head_view<T>& out, const placed_table<S>& placed,
              const pope_bias* bias, const P& positions, const Threads& threads) {
  const auto source = position_source(positions, out.tokens);
  check_heads("pope", x);
  check_written("pope", out);
  const Index pairs = placed.table().pairs(), before = placed.first_channel(),
              rest = x.head_dim - before - pairs;
  if (rest < 0)
    throw_invalid("pope", "x must have a channel for each pair, got ", x.head_dim, " channels for ", pairs,
                  " pairs from channel ", before, " on");
  if (x.batch != out.batch || x.tokens != out.tokens || x.heads != out.heads ||
      out.head_dim != x.head_dim + pairs)
    throw_invalid("pope", "out must be [batch, tokens, heads, head_dim + pairs] for ", pairs, " pairs of x ",
                  shape_text(x), ", got ", shape_text(out));
  check_rotation<Layout>("pope", out, placed, source);
  if (share_memory(x, out)) throw_invalid("pope", "out must share no memory with x; give other memory");
  if (bias != nullptr && (bias->heads() != x.heads || bias->channels() != pairs))
    throw_invalid("pope", "bias must be [heads, pairs] = ", shape_text({x.heads, pairs}), ", got ",
                  shape_text({bias->heads(), bias->channels()}));
  const table_view<S> rows = placed.table().view();
  for_each_head(out, threads, [&](Index b, Index t, Index h) {
    const S* const cos = rows.cos(source(b, t));
    std::copy_n(x.at(b, t, h), before, out.at(b, t, h));
    const T* const in = x.at(b, t, h) + before;
    T* const to = out.at(b, t, h) + before;
    const cos_sin* const ahead = bias == nullptr ? nullptr : bias->head(h);
    for (Index i = 0; i < pairs; ++i) {
      auto c = static_cast<double>(cos[i]), s = static_cast<double>(cos[i + pairs]);
      if (ahead != nullptr) {
        const cos_sin step = ahead[i];
        const double next = c * step.cos - s * step.sin;
        s = s * step.cos + c * step.sin;
        c = next;
      }
      const double magnitude = softplus(static_cast<double>(in[i]));
      to[Layout::first(i, pairs)] = static_cast<T>(magnitude * c);
      to[Layout::second(i, pairs)] = static_cast<T>(magnitude * s);
    }
    std::copy_n(in + pairs, rest, to + 2 * pairs);
  });
}

/// Checks the types of a call. Layout is the order of the output, so the message for a missing layout differs
/// from that of `rotate`.
#define ROPE_DETAIL_CHECK_POPE(Layout, X, T, P, Threads)                                                \
  static_assert(!std::is_same_v<Layout, detail::unnamed_layout>,                                        \
                "pope: name the order of the output, pope<interleaved>(...) or pope<half_split>(...)"); \
  ROPE_DETAIL_CHECK_ROTATION("pope", Layout, P, Threads);                                               \
  ROPE_DETAIL_CHECK_WRITABLE("pope", "out", T);                                                         \
  ROPE_DETAIL_CHECK_SAME_CHANNELS("pope", "x and out", X, T)

}  // namespace detail

/// Writes the polar form of the first `pairs` channels of every head. The remaining channels are copied after
/// the polar form.
///
///     out[first(i)]  = cos(p)[i] softplus(x[i])          first, second: the channels of pair i in Layout
///     out[second(i)] = sin(p)[i] softplus(x[i])
///     out[2 pairs + j] = x[pairs + j]                    j = 0 .. head_dim - pairs - 1
///
/// \tparam Layout     interleaved (c0 s0 c1 s1 ..., PoPE-pytorch) or half_split (c0 c1 .. s0 s1 ...,
///                    x-transformers); queries and keys need the same one
/// \param  x          queries or keys [batch, tokens, heads, head_dim]
/// \param  out        [batch, tokens, heads, head_dim + pairs]
/// \param  table      of `pope_frequencies(pairs)`; with several axes for axial PoPE. With
///                    table.at_channel(first), the polar form is taken of channels [first, first + pairs) of
///                    x, and channels before them are copied unchanged
/// \param  positions  as in `rotate`
///
/// Requires:  out shares no element with x; throws if an overlap is detected
/// Throws:    std::invalid_argument if shapes disagree or a list has the wrong length; std::out_of_range if a
///            position is outside the table; out is then unchanged
/// Accuracy:  computed in double, one final rounding: 1.75 eps softplus(x) per channel, eps = 2^-24 (float),
///            including the rounding of the table; 8 eps for double, eps = 2^-53; half an ulp more for 16-bit
///            types
/// Cost:      one exp and one log1p per channel of x; no allocation
template <class Layout = detail::unnamed_layout, class X, class T, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void pope(head_view<X> x, head_view<T> out, const Table& table, const P& positions = P{},
          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_POPE(Layout, X, T, P, Threads);
  if constexpr (!std::is_const_v<T>)
    detail::pope_all<Layout, T>(x, out, detail::placed(table), nullptr, positions, threads);
}

/// For keys: adds the bias of the head to every phase.
///
/// \param bias  [heads, pairs]
///
/// Throws:  as above, and std::invalid_argument if the heads or pairs of the bias differ
template <class Layout = detail::unnamed_layout, class X, class T, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void pope(head_view<X> x, head_view<T> out, const Table& table, const pope_bias& bias,
          const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_POPE(Layout, X, T, P, Threads);
  if constexpr (!std::is_const_v<T>)
    detail::pope_all<Layout, T>(x, out, detail::placed(table), &bias, positions, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(pope, 2);

#undef ROPE_DETAIL_CHECK_POPE

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_POPE_HPP
