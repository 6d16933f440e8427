// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_DECODE_TURNS_HPP
#define ROPE_ATTENTION_DETAIL_DECODE_TURNS_HPP

#include <algorithm>  // std::max, std::min

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// In which order decoding reads keys and values: in turns of a few tokens, of one head or of all heads one
/// after the other, whichever lies together in memory. While a turn is worked on, the next one is prefetched.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Keys of a tile that are read in one turn: runs at regular strides, and what each prefetches meanwhile.
struct key_runs {
  static constexpr Index most = 8;

  Index count = 0;
  tile_range run[most] = {};
  stream_ahead ahead[most] = {};

  Index first() const { return run[0].first; }
  Index last() const { return run[count - 1].last; }
};

/// Where a head goes on: with tokens [token, end).
struct key_place {
  Index kv, token, end;
};

/// \tparam C  channels of keys and values
template <class C>
class decode_turns {
 public:
  /// \param heads  key heads that are worked on
  /// \param rows   queries of each
  decode_turns(const token_source<C>& k, const token_source<C>& v, Index b, Index heads, Index rows)
      : k_(k),
        b_(b),
        short_pages_(rows < 4 && has_short_pages(k)),
        heads_at_once_(k.head_stride <= k.token_stride || short_pages_ ? heads : 1),
        tokens_(tokens_of_turn(heads_at_once_, (std::max)(k.head_dim, v.head_dim) * Index(sizeof(C)))) {}

  /// Heads that are read together, a few tokens of each at a time: all of them, or 1.
  Index heads_at_once() const { return heads_at_once_; }

  /// The keys of the turn that begins with key j of a tile. It ends before an even key where tokens_ is even,
  /// so that keys 2 i and 2 i + 1, which may be multiplied as a pair, are not parted.
  key_runs turn_from(Index begin, Index j, const tile_range& hull) const {
    key_runs turn;
    const Index end = (std::min)(tokens_ % 2 == 0 ? j + tokens_ - j % 2 : j + tokens_, hull.last);
    const Index most = short_pages_ ? 1 : key_runs::most;
    while (j < end && turn.count < most) {
      const Index next = j + (std::min)(k_.run_from(begin + j), end - j);
      turn.run[turn.count++] = {j, next};
      j = next;
    }
    return turn;
  }

  /// Run i of a turn prefetches what is read in its place in the next turn: of x, from `after` on.
  void ask_ahead(key_runs& turn, const token_source<C>& x, const key_place& after) const {
    for (Index i = 0; i < turn.count; ++i) {
      const Index token = after.token + turn.run[i].first - turn.first();
      turn.ahead[i] = ahead_from(x, after.kv, token < after.end ? token : after.token);
    }
  }
  /// What head kv of x reads next: after each run the following one, and after the last run `after`.
  void continue_with(key_runs& turn, const token_source<C>& x, Index begin, Index kv, const C* after) const {
    for (Index i = 0; i + 1 < turn.count; ++i)
      turn.ahead[i].continues_with(x.at(b_, begin + turn.run[i + 1].first, kv));
    turn.ahead[turn.count - 1].continues_with(after);
  }

 private:
  /// Whether one head of a page is too few bytes to prefetch the next page in time, which may be anywhere.
  /// The next head of the same page is its neighbour, so heads are read together then.
  static bool has_short_pages(const token_source<C>& k) {
    return k.head_stride > k.token_stride && k.page_size() > 0 &&
           k.page_size() * k.head_dim * Index(sizeof(C)) <= Index{1} << 12;
  }

  /// The present turn and the next one fit the first-level cache (32 KiB) where heads are read one by one,
  /// else the second-level cache. (On Zen 5 turns of twice the size take 1.15 times as long.)
  ///
  /// \param head  bytes of a token of one head
  static Index tokens_of_turn(Index heads, Index head) {
    // 64 tokens of integers are too few bytes to prefetch the next ones in time.
    if (is_quantized<C> && heads * head <= Index{1} << 11) return panel_shape<float>::tile;
    if (heads == 1 && !is_quantized<C>) return head <= Index{1} << 8 ? 64 : head <= Index{1} << 9 ? 32 : 16;
    return heads * head <= Index{1} << 12 ? 64 : heads * head <= Index{1} << 13 ? 32 : 16;
  }

  /// The memory of tokens from `token` on, of the heads that are read together with head `kv`. Integers are
  /// so few bytes that prefetching them a second time costs more than it saves.
  stream_ahead ahead_from(const token_source<C>& x, Index kv, Index token) const {
    const Index run = (std::min)(tokens_, k_.run_from(0)),
                again = heads_at_once_ == 1 && !is_quantized<C> ? (std::min)(Index{16}, run / 4 * 3) : 0;
    if (short_pages_)
      return {x.at(b_, token, kv), (run - 1) * x.token_stride + x.head_dim, x.head_stride, again};
    return {x.at(b_, token, kv), (heads_at_once_ - 1) * x.head_stride + x.head_dim, x.token_stride, again};
  }

  const token_source<C>& k_;
  Index b_;
  bool short_pages_;
  Index heads_at_once_, tokens_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_DECODE_TURNS_HPP
