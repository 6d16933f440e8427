// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_LAYOUT_HPP
#define ROPE_ROTATION_LAYOUT_HPP

#include <algorithm>  // std::fill_n
#include <concepts>   // std::convertible_to
#include <type_traits>
#include <utility>  // std::forward

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// Which two channels of a head form pair i. The two common layouts, for rotary_dim = 8, pairs = 4:
///
///     channel        0   1   2   3   4   5   6   7
///     interleaved   a0  b0  a1  b1  a2  b2  a3  b3
///     half_split    a0  a1  a2  a3  b0  b1  b2  b3
///
/// Pair i = (a_i, b_i), in formulas also (u, v), is rotated by the same angle in both layouts. One frequency
/// table therefore serves both. Checkpoints do not record which layout they were trained with, and the wrong
/// one gives fluent but wrong text. Therefore no function has a default layout.

namespace rope::inline ROPE_ABI {

/// Pair i = channels (2i, 2i + 1).
/// Also called: GPT-J style, Meta Llama original, ggml NORM, `is_neox_style=False` (vLLM), `interleaved=True`
/// (FlashAttention), `traditional=True` (MLX).
///
///     rotate<interleaved>(q, k, table, start);
///
/// Source: Su et al. 2021, RoFormer, arXiv:2104.09864v5, equation 34.
struct interleaved {
  /// 2 i, the channel of u.
  static constexpr Index first(Index i, Index /*pairs*/) { return 2 * i; }
  /// 2 i + 1, the channel of v.
  static constexpr Index second(Index i, Index /*pairs*/) { return 2 * i + 1; }
};

/// Pair i = channels (i, i + pairs).
/// Also called: GPT-NeoX style, Hugging Face `rotate_half`, ggml NEOX, `is_neox_style=True` (vLLM),
/// `interleaved=False` (FlashAttention), `traditional=False` (MLX).
///
///     rotate<half_split>(q, k, table, start);
///
/// Source: `rotate_half` of Hugging Face transformers (Llama, Qwen, Gemma, Phi, GPT-NeoX).
struct half_split {
  /// i, the channel of u.
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  /// i + pairs, the channel of v.
  static constexpr Index second(Index i, Index pairs) { return i + pairs; }
};

/// A layout policy: `first` and `second` map pair i of `pairs` to its two channels. Together they must name
/// every channel of [0, 2 * pairs) once. Your own type works wherever the two above work.
template <class L>
concept pair_layout = requires(Index i, Index pairs) {
  { L::first(i, pairs) } -> std::convertible_to<Index>;
  { L::second(i, pairs) } -> std::convertible_to<Index>;
};

/// The two layouts as a value, for programs that choose the layout at run time.
enum class layout_kind { interleaved, half_split };

/// Calls f(interleaved{}) or f(half_split{}) and returns its result.
///
///     with_layout(group.layout, [&](auto layout) { rotate<decltype(layout)>(queries, table); });
template <class Call>
decltype(auto) with_layout(layout_kind layout, Call&& f) {
  if (layout == layout_kind::interleaved) return std::forward<Call>(f)(interleaved{});
  return std::forward<Call>(f)(half_split{});
}

/// "interleaved" or "half_split".
inline const char* name_of(layout_kind layout) {
  return layout == layout_kind::interleaved ? "interleaved" : "half_split";
}

namespace detail {

/// The default of layout parameters, so that a static_assert can report a missing layout.
struct unnamed_layout {};

/// Throws unless a layout names every channel of [0, 2 * pairs) once: a channel in two pairs would be rotated
/// twice, which no inverse could undo.
///
/// Throws:  std::invalid_argument
/// Cost:    nothing for interleaved and half_split; otherwise one pass over the pairs per 1024 channels
template <class Layout>
void check_layout(const char* function, Index pairs) {
  if constexpr (!std::is_same_v<Layout, interleaved> && !std::is_same_v<Layout, half_split>) {
    const Index channels = 2 * pairs;
    for (Index i = 0; i < pairs; ++i) {
      const Index u = Layout::first(i, pairs), v = Layout::second(i, pairs);
      if (u < 0 || v < 0 || u >= channels || v >= channels || u == v)
        throw_invalid(function, "the layout must map a pair to two channels of [0, ", channels, "), got ", u,
                      " and ", v, " for pair ", i);
    }
    constexpr Index per_pass = 1024;
    bool named[per_pass];
    for (Index begin = 0; begin < channels; begin += per_pass) {
      std::fill_n(named, per_pass, false);
      for (Index i = 0; i < pairs; ++i)
        for (const Index channel : {Index(Layout::first(i, pairs)), Index(Layout::second(i, pairs))}) {
          if (channel < begin || channel - begin >= per_pass) continue;
          if (named[channel - begin])
            throw_invalid(function, "the layout must name every channel of [0, ", channels,
                          ") once, got channel ", channel, " again for pair ", i);
          named[channel - begin] = true;
        }
    }
  }
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_LAYOUT_HPP
