// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_DECODE_BATCHES_HPP
#define ROPE_ATTENTION_DETAIL_DECODE_BATCHES_HPP

#include <algorithm>  // std::copy_n, std::max, std::min
#include <utility>    // std::swap

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/prefetch.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The order in which decoding reads keys and values. A batch is a few tokens, of one head or of all heads
/// one after another, whichever is contiguous in memory. While a batch is processed, the next one is
/// prefetched. A run is the tokens of a batch that are at a regular stride, for example in one page.
///
/// Reading whole tiles of one head instead of batches takes longer if the heads of a token are contiguous
/// (benchmark row bshd/1x4096x32+8x128).
///
/// Listed tokens, and those of pages of one token, are anywhere in memory. Kernels get the address of each,
/// and of as many tokens to prefetch. Runs of one token would take longer, since every run has a fixed cost,
/// and so has every batch. If listed tokens are read in place, a batch is therefore a whole tile, and each
/// token is prefetched a fixed number of tokens before its use (benchmark rows selected/step_of_2048).

namespace rope::inline ROPE_ABI::detail {

/// The keys or values of one batch in a tile, for the current head, as runs. Each run has the memory to
/// prefetch while it is processed.
template <class C>
struct key_runs {
  static constexpr Index most = 8;

  Index b, head, begin;  // of row b; the tile begins with token `begin`
  Index count = 0;
  tile_range run[most];  // the first `count` are set, here and below: setting all takes longer than using 2
  const C* rows[most];   // the first token of each
  stream_ahead ahead[most];
  C* copies = nullptr;  // for listed tokens, which are one run, [tokens, depth]; the others have none
  listed_rows<C> list;
  Index depth;

  Index first() const { return run[0].first; }
  Index last() const { return run[count - 1].last; }
  bool is_listed() const { return copies != nullptr; }
  /// Run i, at regular strides: copies of listed tokens.
  token_run<C> tokens(Index i) const {
    if (is_listed()) copy_tokens();
    return {b, head, begin + run[i].first, run[i].last - run[i].first, is_listed() ? copies : rows[i]};
  }
  EIGEN_DONT_INLINE void copy_tokens() const {
    for (Index n = 0; n < last() - first(); ++n) {
      for (Index d = 0; d < depth; d += line_bytes / Index(sizeof(C)))
        prefetch_rows<line_bytes>(list.next + n, 1, d);
      std::copy_n(list.at(n), depth, copies + n * depth);
    }
  }
};

/// The place where reading continues: tokens [token, end) of head kv.
struct key_place {
  Index kv, token, end;
};

/// \tparam C  channels of keys and values
template <class C>
class decode_batches {
 public:
  /// \param heads   key heads to process
  /// \param rows    query rows of each key head
  /// \param copies  whether listed tokens are copied before they are multiplied
  decode_batches(const token_source<C>& k, const token_source<C>& v, Index b, Index heads, Index rows,
                 bool copies)
      : k_(k),
        b_(b),
        short_pages_(has_short_pages(k, heads, rows)),
        heads_per_pass_(!k.is_listed() && (k.head_stride <= k.token_stride || short_pages_) ? heads : 1),
        tokens_(!k.is_listed() ? tokens_of_batch(heads_per_pass_, bytes_of(k, v))
                : copies       ? even_tokens_in(Index{1} << 14, bytes_of(k, v))
                               : panel_shape<float>::tile),
        run_((std::min)(tokens_, k.run_from(0))),
        again_(repeats_before(heads_per_pass_, run_)) {
    if (!k.is_listed()) return;
    // Far enough ahead for memory, and near enough to stay in an L1 cache of 32 KiB.
    listed_ahead_ = even_tokens_in(3 << 12, bytes_of(k, v));
    copies_ = workspace<struct copied_tokens, C>(tokens_ * (std::max)(k.head_dim, v.head_dim));
    rows_ = workspace<struct addresses, const C*>(2 * (tokens_ + listed_ahead_));
    rows_of_next_ = rows_ + tokens_ + listed_ahead_;
  }

  /// The number of heads that are processed alternately, one batch each: all heads, or 1.
  Index heads_per_pass() const { return heads_per_pass_; }

  /// The batch of tokens of x (keys or values), in head `head`, that begins with key j of a tile. Keys 2 i
  /// and 2 i + 1 may be multiplied as a pair. A batch ends before an even key, so that both are in one batch.
  key_runs<C> batch_from(const token_source<C>& x, Index head, Index begin, Index j, const tile_range& hull) {
    key_runs<C> batch;
    batch.b = b_;
    batch.head = head;
    batch.begin = begin;
    const Index end = (std::min)(j + tokens_ - j % 2, hull.last);
    if (x.is_listed()) {
      batch.count = 1;
      batch.run[0] = {j, end};
      if (!next_.has(x, head, 0, begin + j)) find_next(x, {head, begin + j, begin + hull.last});
      std::swap(rows_, rows_of_next_);
      batch.list = {rows_, rows_ + (std::min)(listed_ahead_, end - j), 0};
      batch.copies = copies_;
      batch.depth = x.head_dim;
      return batch;
    }
    const Index most = short_pages_ ? 1 : key_runs<C>::most;
    while (j < end && batch.count < most) {
      const Index i = batch.count++, next = j + (std::min)(k_.run_from(begin + j), end - j);
      batch.run[i] = {j, next};
      batch.rows[i] = next_.has(x, head, i, begin + j) ? next_.rows[i] : x.at(b_, begin + j, head);
      j = next;
    }
    return batch;
  }

  /// Makes run i of a batch prefetch run i of the next batch, which reads x from `after` on.
  void prefetch_next(key_runs<C>& batch, const token_source<C>& x, const key_place& after) {
    next_.source = &x;
    next_.head = after.kv;
    next_.count = batch.count;
    for (Index i = 0; i < batch.count; ++i) {
      const Index token = after.token + batch.run[i].first - batch.first();
      next_.token[i] = token < after.end ? token : after.token;
      next_.rows[i] = x.at(b_, next_.token[i], after.kv);
      batch.ahead[i] = ahead_from(x, next_.rows[i]);
    }
    if (!x.is_listed()) return;
    find_next(x, after);
    const Index count = batch.last() - batch.first();
    std::copy_n(rows_of_next_, (std::min)(listed_ahead_, count), rows_ + count);
    batch.ahead[0] = {copies_, batch.depth, batch.depth, Index{0}};  // of kernels that read copies
  }
  /// Moves a batch of x to head first_head + `heads`. Then sets what each run reads next: the next run or,
  /// after the last run, the place given to prefetch_next, but `heads` heads later.
  void go_to(key_runs<C>& batch, const token_source<C>& x, Index first_head, Index heads) const {
    if (x.is_listed()) return;  // of one head at a time
    const Index step = (first_head + heads - batch.head) * x.head_stride;
    batch.head = first_head + heads;
    for (Index i = 0; i < batch.count; ++i) batch.rows[i] += step;
    for (Index i = 0; i + 1 < batch.count; ++i) batch.ahead[i].continues_with(batch.rows[i + 1]);
    batch.ahead[batch.count - 1].continues_with(next_.rows[0] + heads * next_.source->head_stride);
  }

  /// The number of tokens of a batch. Each batch has a fixed cost. A batch and the next one take at most 64
  /// KiB of L2 for single heads of at most 1 KiB (int8: 128 bytes), and with all heads at most 512 KiB for
  /// tokens of at most 16 KiB.
  ///
  /// \param head  bytes of a token of one head
  static Index tokens_of_batch(Index heads, Index head) {
    // 64 int8 tokens are too small to prefetch the next ones in time.
    if (is_quantized<C> && heads * head <= Index{1} << 11) return panel_shape<float>::tile;
    if (heads == 1 && !is_quantized<C>) return head <= Index{1} << 9 ? 64 : 32;
    return heads * head <= Index{1} << 12 ? 64 : heads * head <= Index{1} << 13 ? 32 : 16;
  }

  /// The bytes of a token of one head of keys or of values, whichever is larger.
  static Index bytes_of(const token_source<C>& k, const token_source<C>& v) {
    return (std::max)(k.head_dim, v.head_dim) * Index(sizeof(C));
  }
  /// How many tokens before its use a line is prefetched again, in batches of `tokens`. int8 tokens are so
  /// small that a second prefetch costs more than it saves.
  static Index repeats_before(Index heads, Index tokens) {
    return heads == 1 && !is_quantized<C> ? (std::min)(Index{16}, tokens / 4 * 3) : 0;
  }
  /// The memory to prefetch for the tokens from `first` on, in `heads` heads.
  static stream_ahead ahead_from(const token_source<C>& x, const C* first, Index heads, Index again) {
    return {first, (heads - 1) * x.head_stride + x.head_dim, x.token_stride, again};
  }

 private:
  /// Whether all heads of a page are read before the next page. The next page may be anywhere in memory, and
  /// needs a lookup. Processing one head of a short page takes too little time to prefetch the next page, but
  /// the next head of the same page is adjacent. (Example: one query, 1024 keys in pages of 16, 32 query and
  /// key heads of 64 channels.)
  ///
  /// Reading all heads of a page is faster for fewer than 4 queries per head. With fewer than 32 vector
  /// registers, it is faster for any number of queries if a page and the next one fit L2.
  static bool has_short_pages(const token_source<C>& k, Index heads, Index rows) {
    if (heads == 1 || k.head_stride <= k.token_stride || k.page_size() == 0) return false;
    constexpr Index unit = Index{1} << 12;
    const Index bytes = k.page_size() * k.head_dim * Index(sizeof(C));
    return bytes <= unit && (rows < 4 || (registers < 32 && heads * bytes <= 32 * unit));
  }

  /// How many tokens of `head` bytes fit in `bytes`: an even number from 2 to 64.
  static constexpr Index even_tokens_in(Index bytes, Index head) {
    return (std::min)(Index{64}, (std::max)(Index{1}, bytes / 2 / (std::max)(Index{1}, head)) * 2);
  }
  /// Finds the listed tokens of the batch that reads `source` from `place` on. Its last token repeats.
  EIGEN_DONT_INLINE void find_next(const token_source<C>& source, const key_place& place) {
    const token_source<C> x = source;  // not shared, so that its fields are loaded once
    for (Index n = 0; n < tokens_; ++n)
      rows_of_next_[n] = x.at(b_, (std::min)(place.token + n, place.end - 1), place.kv);
  }

  stream_ahead ahead_from(const token_source<C>& x, const C* first) const {
    if (short_pages_) return {first, (run_ - 1) * x.token_stride + x.head_dim, x.head_stride, again_};
    return ahead_from(x, first, heads_per_pass_, again_);
  }

  /// The addresses of the prefetched batch. They save a second lookup in the block table.
  struct place_of_next {
    const token_source<C>* source = nullptr;
    Index head = 0, count = 0;
    Index token[key_runs<C>::most];
    const C* rows[key_runs<C>::most];

    bool has(const token_source<C>& x, Index of_head, Index i, Index t) const {
      return source == &x && head == of_head && i < count && token[i] == t;
    }
  };

  const token_source<C>& k_;
  Index b_;
  bool short_pages_;
  Index heads_per_pass_;
  Index tokens_;              // of a batch, an even number
  Index run_;                 // tokens of a run, at most
  Index again_;               // a cache line is prefetched again this many tokens before its use
  Index listed_ahead_ = 0;    // a listed token is prefetched this many tokens before its use
  C* copies_ = nullptr;       // [tokens_, head_dim], of the listed tokens of a batch
  const C** rows_ = nullptr;  // [tokens_ + listed_ahead_], the addresses of these, then of the next ones
  const C** rows_of_next_ = nullptr;
  place_of_next next_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_DECODE_BATCHES_HPP
