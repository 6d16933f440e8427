// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_WITHOUT_ROPE_HPP
#define ROPE_MODELS_DETAIL_GGUF_WITHOUT_ROPE_HPP

#include <string>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_record.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/detail/unrotated_model.hpp>

/// Which GGUF files are of models of which no layer rotates.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class L>
unrotated_model unrotated_model_of(const gguf_reader<L>& reader, const gguf_record& record) {
  const std::string &architecture = reader.architecture(),
                    bare = "is one without rotary embeddings, got " + architecture;
  if (!record.instead.empty())
    return {std::string(record.instead), "general.architecture",
            bare + ", which has " + std::string(record.instead)};
  const auto layers = reader.number("block_count", range::layers);
  if (record.alibi_layers > 0 && layers == static_cast<double>(record.alibi_layers))
    return {"ALiBi biases", "general.architecture",
            bare + " of " + std::to_string(record.alibi_layers) + " layers, which has ALiBi biases"};
  const auto finetuned = reader.number("rope.scaling.finetuned", range::zero_or_one);
  if (record.finetuned && finetuned == 0.0)
    return {"no positions", reader.key("rope.scaling.finetuned"),
            "is false, which tells " + architecture + " that no layer turns"};
  return {};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_WITHOUT_ROPE_HPP
