// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_QUERY_SCALING_HPP
#define ROPE_ROTATION_QUERY_SCALING_HPP

#include <cmath>
#include <concepts>  // std::convertible_to
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/view.hpp>

/// Factors that scale queries up with their position. A softmax over more keys is flatter, and larger queries
/// sharpen it again. Scale queries before or after their rotation. Keys are not scaled.

namespace rope::inline ROPE_ABI {

/// log-n scaling.
///
///     factor(p) = max(1, ln(p + 1) / ln(train_length))
///
///     scale_queries(q, log_n_query_scaling{.train_length = 2048}, start);
///
/// Throws:  std::invalid_argument unless train_length is finite and above 1 and p is not negative
/// Source:  Su 2021, https://kexue.fm/archives/8823; `use_logn_attn` of Qwen
struct log_n_query_scaling {
  double train_length;  // tokens, above 1

  /// The factor of a query at `position`.
  double operator()(std::int64_t position) const {
    if (!detail::is_finite(train_length) || train_length <= 1)
      detail::throw_invalid("log_n_query_scaling", "train_length must be finite and above 1, got ",
                            train_length);
    if (position < 0)
      detail::throw_invalid("log_n_query_scaling", "a position must not be negative, got ", position);
    const double seen = static_cast<double>(position) + 1;
    return seen <= train_length ? 1 : std::log(seen) / std::log(train_length);
  }
};

/// The factor of Llama 4, in its layers without rotation, and of Ministral 3 and Mistral 4, in every layer.
///
///     factor(p) = 1 + attention_scale ln(1 + floor((p + offset) / floor_scale))
///
/// The factor is infinite if the quotient exceeds the range of double, as with a floor_scale of 1e-308.
///
///     scale_queries(q, llama4_query_scaling{}, start);
///     scale_queries(q, llama4_query_scaling{.floor_scale = 16384, .offset = 0}, start);  // Ministral 3
///
/// Throws:  std::invalid_argument unless floor_scale is finite and positive, attention_scale and offset are
///          finite and not negative, and p is not negative
/// Source:  Hugging Face transformers, Llama4TextAttention (`attn_temperature_tuning`) and
///          Ministral3Attention (`llama_4_scaling_beta`, offset 0)
struct llama4_query_scaling {
  double floor_scale = 8192;     // positions between two steps of the factor, positive
  double attention_scale = 0.1;  // not negative
  double offset = 1;             // positions, not negative

  /// The factor of a query at `position`.
  double operator()(std::int64_t position) const {
    if (!detail::is_finite(floor_scale) || floor_scale <= 0 || !detail::is_finite(attention_scale) ||
        attention_scale < 0)
      detail::throw_invalid(
          "llama4_query_scaling",
          "floor_scale must be finite and positive and attention_scale finite and not negative, got ",
          floor_scale, " and ", attention_scale);
    if (!detail::is_finite(offset) || offset < 0)
      detail::throw_invalid("llama4_query_scaling", "offset must be finite and not negative, got ", offset);
    if (position < 0)
      detail::throw_invalid("llama4_query_scaling", "a position must not be negative, got ", position);
    if (detail::equal(attention_scale, 0)) return 1;  // for any quotient, even infinity
    const double grown = std::log1p(std::floor((static_cast<double>(position) + offset) / floor_scale));
    return detail::multiply_add(attention_scale, grown, 1.0);
  }
};

/// A factor for every position: one of the two above, or your own function.
template <class X>
concept query_scaling_rule = requires(const X& rule, std::int64_t position) {
  { rule(position) } -> std::convertible_to<double>;
};

/// Multiplies every head of every token by the factor of its position, in place.
///
/// \param q            [batch, tokens, heads, head_dim]
/// \param rule         one of the above, or a function of the position
/// \param positions    as in `rotate`
/// \param threads      your threads, see base/parallel.hpp; they also call the rule
///
/// Throws:    std::invalid_argument if q has no data or its heads overlap, a list of positions has the wrong
///            length or the rule rejects a position; std::out_of_range if a position is above 2^63 - 2; and
///            any exception of your own rule. q is then unchanged
/// Accuracy:  the factor is rounded to float (double for double channels), then one product; one more
///            rounding for 16-bit channels
/// Cost:      one read and one write of q, and two calls of the rule per token
template <class Rule, class T, class P = detail::braced_ids, class Threads = this_thread>
void scale_queries(head_view<T> q, const Rule& rule, const P& positions = P{}, const Threads& threads = {}) {
  static_assert(query_scaling_rule<Rule>,
                "scale_queries: a rule is log_n_query_scaling, llama4_query_scaling or a function of the "
                "position");
  ROPE_DETAIL_CHECK_WRITABLE("scale_queries", "q", T);
  ROPE_DETAIL_CHECK_POSITIONS("scale_queries", P);
  ROPE_DETAIL_CHECK_THREADS("scale_queries", Threads);
  if constexpr (!std::is_const_v<T> && query_scaling_rule<Rule>) {
    using A = detail::arithmetic<T>;
    detail::check_heads("scale_queries", q);
    detail::check_written("scale_queries", q);
    const auto source = detail::position_source(positions, q.tokens);
    const std::int64_t largest = source.range("scale_queries", q.batch, q.tokens).largest;
    if (largest == (std::numeric_limits<std::int64_t>::max)())
      detail::throw_out_of_range(
          "scale_queries", "a position must be below 2^63 - 1, as in every table, got ", largest, " or more");
    for (Index b = 0; b < q.batch; ++b)
      for (Index t = 0; t < q.tokens; ++t) static_cast<void>(rule(source(b, t)));
    detail::for_each_token(q, threads, [&](Index b, Index t) {
      const A factor = static_cast<A>(static_cast<double>(rule(source(b, t))));
      if (detail::equal(factor, A(1))) return;
      for (Index h = 0; h < q.heads; ++h) {
        T* channels = q.at(b, t, h);
        for (Index d = 0; d < q.head_dim; ++d)
          channels[d] = static_cast<T>(static_cast<A>(channels[d]) * factor);
      }
    });
  }
}

ROPE_DETAIL_ASK_FOR_VIEWS(scale_queries, 1);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_QUERY_SCALING_HPP
