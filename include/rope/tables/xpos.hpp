// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_XPOS_HPP
#define ROPE_TABLES_XPOS_HPP

#include <cmath>
#include <concepts>  // std::integral
#include <cstdint>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_arguments.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/table.hpp>

/// xPos: rotary embedding whose scores also decay with distance. In addition to its rotation, every pair
/// grows or shrinks exponentially with the position. Keys shrink by the factor by which queries grow:
///
///     query at p:  growth_i(p) R(angle_i(p)),     key at p:  R(angle_i(p)) / growth_i(p)
///     growth_i(p) = exp(rate_i (p - center) / scale_base)
///
/// A score therefore has the factor exp(rate_i (p_query - p_key) / scale_base). With rate < 0, this factor is
/// less than 1 for every key before the query and more than 1 for every key after it. So xPos is for causal
/// attention. The center cancels only if queries and keys share it. Libraries that derive the center from the
/// length of a call compute different scores with and without a cache. Here the center is a constant of the
/// model.

namespace rope::inline ROPE_ABI {

/// The rates of the paper, [pairs], all negative, or 0 if gamma is so large that they round to 0.
///
///     rate_i = ln((2 i + gamma d) / ((1 + gamma) d)),   d = rotary_dim
///
/// Throws:  std::invalid_argument unless rotary_dim is even and positive, and gamma is finite and positive
/// Source:  Sun et al. 2022, A Length-Extrapolatable Transformer, arXiv:2212.10554, section 3.2 and
///          algorithm 1; gamma = 0.4 as in torchscale, FlashAttention, and
///          lucidrains/rotary-embedding-torch
template <class Rates = owned_array<double, 1>>
Rates xpos_rates(Index rotary_dim, double gamma = 0.4) {
  if (rotary_dim <= 0 || rotary_dim % 2 != 0)
    detail::throw_invalid("xpos_rates", "rotary_dim must be even and positive, got ", rotary_dim);
  detail::check_finite("xpos_rates", gamma > 0, "gamma must be finite and positive", gamma);
  const wide_real shift = wide_real(gamma) * rotary_dim, all = shift + rotary_dim;
  Rates rates(rotary_dim / 2);
  for (Index i = 0; i < rates.size(); ++i) rates(i) = static_cast<double>(log((2 * i + shift) / all));
  return rates;
}

/// The growth of pairs: its rates and the position where it is 1.
///
///     const xpos tables(frequencies(128), 4096, {.center = 2048, .scale_base = 256});
struct xpos_growth {
  /// The position of growth 1, shared by queries and keys. Growth is least extreme when the center is in the
  /// middle of the positions used, that is, at half the context length.
  double center;
  /// The number of positions over which a pair grows by exp(rate).
  double scale_base = 512;
  /// Rates of any sign, [pairs]. Empty: xpos_rates(rotary_dim).
  number_array<double> rates = {};
};

/// The tables of xPos: one for queries and one for keys, for the same rotation.
///
///     const xpos tables(frequencies(128), 4096, {.center = 2048});
///     rotate<half_split>(q, tables.queries(), start);
///     cache.append<half_split>(k, v, tables.keys());      // or rotate<half_split>(k, tables.keys(), start)
///     attention(q, cache.keys(), cache.values(), out);
///     attention<half_split>(q, k, v, out, tables);         // of unrotated queries and keys
///
/// Positions are absolute and the center is fixed, so cached keys stay valid while a sequence grows. They
/// stay valid even if tables are rebuilt for more positions, because fingerprints do not depend on the range.
/// `unrotate` inverts the growth too, and `rotate_gradient` includes it in the gradient.
///
/// \tparam S  float or double: the type of a table entry
///
/// Invariant: immutable. Every growth is a normal number of S, at most 2^126 (float) or 2^500 (double). With
///            16-bit channels, growth times channel must stay below the largest number of the type, which is
///            65504 for Eigen::half. With the rates of the paper and a center in the middle, it does up to a
///            length of about 4096.
/// Accuracy:  an entry is m growth cos or m growth sin, within 0.51 ulp in float and 3 ulp in double
/// Cost:      twice that of a frequency_table, and an exponential per entry
/// Source:    Sun et al. 2022, arXiv:2212.10554
template <class S = float>
class xpos {
 public:
  /// Scores of keys after the query grow with the distance, so only causal attention accepts these tables.
  static constexpr bool needs_causal = true;

  /// Positions 0 .. count - 1.  Throws: as below; std::invalid_argument if count is negative
  template <std::integral Count>
  xpos(const frequencies& of, Count count, const xpos_growth& growth) : xpos(of, Count{0}, count, growth) {}

  /// Positions first .. last - 1, which may be negative.
  ///
  /// Throws:  std::invalid_argument if last < first, the frequencies have more than one axis, the center or a
  ///          rate is not finite, scale_base is not finite and positive, there is not one rate per pair, or
  ///          m, or m times or divided by the growth of a pair at an end of the range, leaves the range of S;
  ///          std::length_error if the positions or entries exceed the address space
  template <std::integral First, std::integral Last>
  xpos(const frequencies& of, First first, Last last, const xpos_growth& growth)
      : growth_(checked(of, growth)),
        queries_(table(of, first, last, growth_, 1)),
        keys_(table(of, first, last, growth_, -1)) {}

  xpos(const xpos&) = default;
  xpos(xpos&&) = default;
  xpos& operator=(const xpos& other) { return *this = xpos(other); }  // all or nothing
  xpos& operator=(xpos&&) = default;

  /// The table of queries, with entries m growth cos and m growth sin.
  const frequency_table<S>& queries() const { return queries_; }
  /// The table of keys, with entries m cos / growth and m sin / growth.
  const frequency_table<S>& keys() const { return keys_; }

  /// Both tables placed in the head, where they rotate channels [first_channel, first_channel + rotary_dim).
  /// This object must outlive the result.
  struct placed {
    static constexpr bool needs_causal = true;  // as above
    placed_table<S> query_table;                // the result of queries()
    placed_table<S> key_table;                  // the result of keys()
    /// The table of queries.
    const placed_table<S>& queries() const { return query_table; }
    /// The table of keys.
    const placed_table<S>& keys() const { return key_table; }
  };
  /// Both tables placed in the head.
  ///
  /// Throws:  std::invalid_argument if first_channel is negative
  placed at_channel(Index first_channel) const {
    return {queries_.at_channel(first_channel), keys_.at_channel(first_channel)};
  }

  /// The position of growth 1.
  double center() const { return growth_.center; }
  /// The number of positions over which pair i grows by exp(rate_i).
  double scale_base() const { return growth_.scale_base; }
  /// The rate of every pair, [pairs]; valid while this object lives.
  template <class Map = typename frequency_table<S>::double_map>
  Map rates() const {
    return Map(growth_.rates.data(), growth_.rates.rows(), growth_.rates.cols());
  }

 private:
  static xpos_growth checked(const frequencies& of, xpos_growth growth) {
    if (of.axes() != 1)
      detail::throw_invalid("xpos", "positions have one axis, got frequencies of ", of.axes(), " axes");
    detail::check_finite("xpos", true, "center must be finite", growth.center);
    detail::check_finite("xpos", growth.scale_base > 0, "scale_base must be finite and positive",
                         growth.scale_base);
    if (growth.rates.size() == 0) growth.rates = xpos_rates<number_array<double>>(of.rotary_dim());
    if (growth.rates.size() != of.pairs())
      detail::throw_invalid("xpos", "rates must be [pairs] = ", of.pairs(), ", got ", growth.rates.size());
    for (Index i = 0; i < growth.rates.size(); ++i)
      if (!detail::is_finite(growth.rates(i)))
        detail::throw_invalid("xpos", "a rate must be finite, got ", growth.rates(i), " at pair ", i);
    return growth;
  }

  /// ln growth of every pair is linear in the position, so its extremes are at the ends of the range.
  static void check_range(const xpos_growth& growth, std::int64_t first, Index rows, double m) {
    const double limit = std::log(detail::largest_radius<S>) - (std::abs)(std::log(m));
    if (rows == 0) return;
    for (const std::int64_t position : {first, first + (rows - 1)})
      for (Index i = 0; i < growth.rates.size(); ++i) {
        const double rate = growth.rates(i);  // if 0, the distance may be infinite
        const double exponent =
            detail::equal(rate, 0)
                ? 0
                : rate * ((static_cast<double>(position) - growth.center) / growth.scale_base);
        if (!((std::abs)(exponent) <= limit))
          detail::throw_invalid("xpos", "the growth exp(", exponent, ") of pair ", i, " at position ",
                                position, " leaves the range of the table's entries, exp(+-", limit,
                                ") for an attention_factor of ", m, "; move the center ", growth.center,
                                " to the middle of the positions, or raise scale_base ", growth.scale_base);
      }
  }

  template <std::integral First, std::integral Last>
  static frequency_table<S> table(const frequencies& of, First from, Last to, const xpos_growth& growth,
                                  int sign) {
    const std::int64_t first = detail::checked_position("xpos", from);
    const Index pairs = of.pairs(), rows = detail::checked_rows("xpos", from, to);
    const double m = detail::checked_m<S>("xpos", "attention_factor", of.attention_factor());
    check_range(growth, first, rows, m);
    const detail::row_angles angles(of);
    frequency_table<S> result =
        detail::given_entries::table<S>("xpos", of, first, rows, [&](Index r, S* cos, S* sin) {
          const std::int64_t position = first + r;
          const wide_real distance = (position - wide_real(growth.center)) / growth.scale_base;
          for (Index i = 0; i < pairs; ++i) {
            const auto size = static_cast<double>(exp(sign * growth.rates(i) * distance) * m);
            detail::write_entry(
                angles, i, [position](Index) { return position; }, size, cos[i], sin[i]);
          }
        });
    std::uint64_t rule = detail::mix_inv_freq(detail::bit_cast<std::uint64_t>(m), of);
    for (const double number : {growth.center, growth.scale_base, static_cast<double>(sign)})
      rule = detail::mix(rule, detail::bit_cast<std::uint64_t>(number));
    detail::given_entries::identify(
        result, detail::mix(rule, growth.rates.size(), 1, [&](Index i, Index) { return growth.rates(i); }));
    return result;
  }

  xpos_growth growth_;
  frequency_table<S> queries_, keys_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_XPOS_HPP
