// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_INDEXER_HPP
#define ROPE_MODELS_DETAIL_INDEXER_HPP

#include <string>

#include <rope/config.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/rotation/layout.hpp>

/// What the indexers of sparse attention rotate. Attention and indexer of one model may have two layouts.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Which channels of an indexer's head turn, as many as in a head of attention, and how they pair.
enum class indexer_turn { no_indexer, first_half_split, first_interleaved, last_interleaved };

inline indexer_rotation indexer_of(indexer_turn turn, Index head_dim, Index rotary_dim) {
  return {
      .layout = turn == indexer_turn::first_half_split ? layout_kind::half_split : layout_kind::interleaved,
      .head_dim = head_dim,
      .first_channel = turn == indexer_turn::last_interleaved ? head_dim - rotary_dim : 0,
      .rotary_dim = rotary_dim};
}

/// What is wrong with that width of an indexer's head; empty if nothing.
inline std::string broken_rule_of_indexer(Index head_dim, Index rotary_dim) {
  if (head_dim >= rotary_dim) return {};
  return "must be at least the " + std::to_string(rotary_dim) + " channels that turn, got " +
         std::to_string(head_dim);
}

/// How its heads are rotated.
template <class Indexer>
std::string text_of(const Indexer& indexer) {
  return std::string("rotate<") + name_of(indexer.layout) + ">(heads.channels(" +
         std::to_string(indexer.first_channel) + ", " + std::to_string(indexer.rotary_dim) +
         "), table), its heads having " + std::to_string(indexer.head_dim) + " channels";
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_INDEXER_HPP
