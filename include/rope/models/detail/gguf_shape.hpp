// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_SHAPE_HPP
#define ROPE_MODELS_DETAIL_GGUF_SHAPE_HPP

#include <cmath>  // std::pow
#include <string>

#include <rope/config.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_record.hpp>
#include <rope/models/detail/number_rule.hpp>

/// The head, the base and the channels that rotate, of the layers of a GGUF file that slide or do not.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// How many channels rotate, and the key that says so.
struct rotated_channels {
  Index count;
  const char* key;
};

template <class L>
struct gguf_shape {
  const gguf_reader<L>& reader;
  const gguf_record& record;
  Index query_heads;  // 0: not known

  /// The first of these keys that is there; else the width of the model over its heads.
  Index head_dim(bool slides) const {
    const auto own = reader.number("attention.key_length_mla_swa", range::count);
    if (own && slides) return static_cast<Index>(*own);
    for (const char* name :
         {"attention.key_length_mla", slides ? "attention.key_length_swa" : "attention.key_length",
          "attention.key_length"})
      if (const auto length = reader.number(name, range::count)) return static_cast<Index>(*length);
    const double width = reader.required_number("embedding_length", range::count);
    if (query_heads == 0) reader.required_number("attention.head_count", range::count);
    return static_cast<Index>(width) / query_heads;
  }

  double base(bool slides) const {
    constexpr const char* own = "rope.freq_base_swa";
    double base = reader.number("rope.freq_base", range::above_one).value_or(10000);
    if (record.fixed_base > 0) base = record.fixed_base;
    const auto alpha = reader.number("rope.scaling.alpha", range::not_negative);
    if (record.alpha && alpha.value_or(0) > 0) base = stretched(base, *alpha);
    if (!slides || record.sliding == sliding_rule::unscaled || record.sliding == sliding_rule::bare ||
        record.sliding == sliding_rule::same)
      return base;
    if (record.needs_swa_base) return reader.required_number(own, range::above_one);
    return reader.number(own, range::above_one)
        .value_or(record.sliding == sliding_rule::own_base ? 10000 : base);
  }

  rotated_channels dimension(bool slides) const {
    const Index share = record.half_of_full && !slides ? 2 : 1;
    if (!record.whole_head)
      for (const char* name :
           {slides ? "rope.dimension_count_swa" : "rope.dimension_count", "rope.dimension_count"})
        if (const auto given = reader.number(name, range::count))
          return {static_cast<Index>(*given) / share, name};
    return {head_dim(slides) / share, "attention.key_length"};
  }

 private:
  /// base alpha^(d / (d - 2)), d being the whole head: NTK-aware scaling.
  double stretched(double base, double alpha) const {
    const Index head = head_dim(false);
    const std::string key = reader.key("rope.scaling.alpha");
    if (head <= 2) reader.refuse(key, "needs heads of more than 2 channels, got " + std::to_string(head));
    const double width = static_cast<double>(head);
    return checked(base * std::pow(alpha, width / (width - 2)), range::above_one, "import_gguf",
                   key + ", as the base it stretches,");
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_SHAPE_HPP
