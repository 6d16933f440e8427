// SPDX-License-Identifier: MIT
// An engine with a pool of pages and sequences that grow, shrink, share prefixes and separate again, compared
// with a list of tokens for each sequence. Slots of no sequence are poisoned. Every call that throws
// according to its comment is made too, and changes nothing.
#include <rope/cache/page_calls.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/cache/page_weights.hpp>
#include <rope/cache/shift_keys.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/support/asked_queries.hpp"
#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/drawn_lists.hpp"
#include "fuzz/support/drawn_ranges.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/position_tables.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/views.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

using testing::guarded_memory;

/// The tables of the keys: two schedules, a magnitude, ranges that end early or begin late, and angles that
/// are not exact.
const position_tables& tables() {
  using table = frequency_table<float>;
  static const position_tables all = {
      {table(slow_pairs(), 60), table(fast_pairs(), 60), table(fast_pairs(1.25), -9, 60),
       table(slow_pairs(), 0, 7), table(fast_pairs(), 3, 60), table::with_float_angles(slow_pairs(), 0, 60),
       table(slow_pairs(), Eigen::ArrayXd::LinSpaced(60, 0, 59))},
      5,
      table(frequencies(2 * pairs + 4, 50.0), 60)};
  return all;
}

struct token {
  key k;
  channels v;
};
struct sequence {
  std::vector<Index> blocks;
  std::vector<token> tokens;
  Index length() const { return static_cast<Index>(tokens.size()); }
};

/// Pages of one kind of heads, anywhere in memory.
template <class T>
struct page_pool {
  guarded_memory<T> memory{0};
  guarded_memory<float> scale_memory{0};  // of integers
  head_view<T> view;

  page_pool(bytes& b, Index pages, Index page_size, Index heads, Index dim)
      : view(draw(b, pages, page_size, heads, dim)) {}
  head_view<T> draw(bytes& b, Index pages, Index page_size, Index heads, Index dim) {
    if constexpr (is_quantized<T>) {
      guarded_memory<Eigen::half> layout(0);  // one element for every integer
      const auto x = draw_view(b, layout, pages, page_size, heads, dim);
      memory = guarded_memory<T>(static_cast<Index>(layout.now.size()));
      return {memory.data() + (x.data - layout.data()),
              pages,
              page_size,
              heads,
              dim,
              x.batch_stride,
              x.token_stride,
              x.head_stride,
              draw_view(b, scale_memory, pages, page_size, heads, 1)};
    } else {
      return draw_view(b, memory, pages, page_size, heads, dim);
    }
  }

  /// Copies a token to another slot, or (poison) makes it NaN.
  void copy(Index page, Index slot, Index from_page, Index from_slot) {
    for (Index h = 0; h < view.heads; ++h) {
      std::copy_n(view.at(from_page, from_slot, h), view.head_dim, view.at(page, slot, h));
      if constexpr (is_quantized<T>) *view.scale_at(page, slot, h) = *view.scale_at(from_page, from_slot, h);
    }
  }
  void poison(Index page, Index slot) {
    for (Index h = 0; h < view.heads; ++h)
      if constexpr (is_quantized<T>)
        *view.scale_at(page, slot, h) = std::numeric_limits<float>::quiet_NaN();
      else
        std::fill_n(view.at(page, slot, h), view.head_dim,
                    static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }
  void remember() {
    memory.before = memory.now;
    scale_memory.before = scale_memory.now;
  }
  bool untouched() const { return memory.untouched() && scale_memory.untouched(); }
  /// Whether everything except the named slots [pages, page_size] has its original bits.
  bool untouched_outside(const std::vector<char>& slots) const {
    page_pool other = *this;
    for (Index page = 0; page < view.batch; ++page)
      for (Index slot = 0; slot < view.tokens; ++slot)
        if (slots[static_cast<std::size_t>(page * view.tokens + slot)])
          for (Index h = 0; h < view.heads; ++h) {
            std::copy_n(view.at(page, slot, h), view.head_dim,
                        other.memory.before.data() + (view.at(page, slot, h) - memory.now.data()));
            if constexpr (is_quantized<T>)
              other.scale_memory
                  .before[static_cast<std::size_t>(view.scale_at(page, slot, h) - scale_memory.now.data())] =
                  *view.scale_at(page, slot, h);
          }
    return other.untouched();
  }
};

template <class T>
class engine {
  using Q = arithmetic<T>;

 public:
  explicit engine(bytes& b)
      : b_(b),
        page_size_(b.between(1, 5)),
        page_count_(b.one_in(24) ? 0 : b.between(1, 14)),
        columns_(b.one_in(24) ? 0 : b.between(1, 5)),
        heads_(b.one_in(24) ? 0 : b.between(1, 2)),
        dim_(2 * pairs + b.up_to(3)),
        value_dim_(b.between(1, 4)),
        storage_(b.coin() ? key_storage::raw : key_storage::rotated),
        first_channel_(b.up_to(long(dim_ - 2 * pairs))),
        keys_(b, page_count_, page_size_, heads_, dim_),
        values_(b, page_count_, page_size_, heads_, value_dim_),
        all_(static_cast<std::size_t>(b.one_in(24) ? 0 : b.between(1, 4))) {}

  void run() {
    for (int steps = 0; steps < 24 && !b_.empty(); ++steps) {
      wrong_ = {};
      step();
      check_all();
    }
  }

 private:
  bool raw() const { return storage_ == key_storage::raw; }
  Index sequences() const { return static_cast<Index>(all_.size()); }
  sequence& at(Index s) { return all_[static_cast<std::size_t>(s)]; }
  const sequence& at(Index s) const { return all_[static_cast<std::size_t>(s)]; }
  Index used_blocks(const sequence& s) const { return (s.length() + page_size_ - 1) / page_size_; }
  /// How often a page is in the table, among the blocks with tokens.
  Index uses(Index page) const {
    Index count = 0;
    for (const sequence& one : all_)
      count +=
          static_cast<Index>(std::count(one.blocks.begin(), one.blocks.begin() + used_blocks(one), page));
    return count;
  }
  std::vector<Index> free_pages() const {
    std::vector<Index> free;
    for (Index page = page_count_ - 1; page >= 0; --page)
      if (uses(page) == 0) free.push_back(page);
    return free;
  }
  std::vector<char> no_slots() const {
    return std::vector<char>(static_cast<std::size_t>(page_count_ * page_size_), 0);
  }
  void mark(std::vector<char>& slots, const sequence& of, Index t) const {
    slots[static_cast<std::size_t>(of.blocks[static_cast<std::size_t>(t / page_size_)] * page_size_ +
                                   t % page_size_)] = 1;
  }
  /// Frees the pages without tokens, and sets every slot without a token to NaN.
  void poison_rest() {
    std::vector<char> held = no_slots();
    for (sequence& one : all_) {
      one.blocks.resize(static_cast<std::size_t>(used_blocks(one)));
      for (Index t = 0; t < one.length(); ++t) mark(held, one, t);
    }
    for (Index page = 0; page < page_count_; ++page)
      for (Index slot = 0; slot < page_size_; ++slot)
        if (!held[static_cast<std::size_t>(page * page_size_ + slot)])
          keys_.poison(page, slot), values_.poison(page, slot);
  }

  /// One entry of the lists that is invalid.
  struct wrong_entry {
    Index page_of = -1, block = 0, page = 0;  // block `block` of sequence `page_of` names `page`
    Index length_of = -1, length = 0;
  };

  /// Calls call(pages) with a view whose lists are in one of several forms.
  template <class P, class Call>
  void with_pages(const Call& call) {
    using any_table = Eigen::Matrix<std::int64_t, Eigen::Dynamic, Eigen::Dynamic>;
    any_table table = any_table::Constant(sequences(), columns_, b_.coin() ? -7 : 1 << 30);
    std::vector<std::int64_t> lengths;
    for (Index s = 0; s < sequences(); ++s) {
      for (std::size_t block = 0; block < at(s).blocks.size(); ++block)
        table(s, static_cast<Index>(block)) = at(s).blocks[block];
      lengths.push_back(s == wrong_.length_of ? wrong_.length : at(s).length());
    }
    if (wrong_.page_of >= 0) table(wrong_.page_of, wrong_.block) = wrong_.page;
    const typename page_view<P>::pool pool = {keys_.view, values_.view};
    const Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows = table.cast<int>();
    const std::vector<int> flat(rows.data(), rows.data() + rows.size());
    switch (b_.up_to(2)) {
      case 0:
        return call(page_view<P>(pool, flat, lengths, storage_));
      case 1:
        return call(page_view<P>(pool, table, lengths, storage_));
      default:
        call(page_view<P>(pool, rows, lengths, storage_));
    }
  }

  /// What a call throws that is invalid in these ways. Pages keep their bits.
  template <class Call>
  void rejected(bool invalid, bool outside, const char* claim, const Call& call) {
    if (invalid && outside)
      rejects<std::logic_error>(claim, call);  // which is found first is not documented
    else if (invalid)
      rejects<std::invalid_argument>(claim, call);
    else
      rejects<std::out_of_range>(claim, call);
    check(keys_.untouched() && values_.untouched(), "a call that throws changes nothing");
  }

  void check_all() const {
    for (const sequence& one : all_)
      for (Index t = 0; t < one.length(); ++t) {
        const token& expected = one.tokens[static_cast<std::size_t>(t)];
        const Index page = one.blocks[static_cast<std::size_t>(t / page_size_)], slot = t % page_size_;
        for (Index h = 0; h < heads_; ++h) {
          check(near(keys_.view, page, slot, h, expected.k.exact.data() + h * dim_, expected.k.error),
                "pages have the written keys, rotated as requested");
          check(near(values_.view, page, slot, h, expected.v.data() + h * value_dim_,
                     storing_error<T>(expected.v)),
                "pages have the values that were written");
        }
      }
  }

  void step() {
    const bool none =
        std::all_of(all_.begin(), all_.end(), [](const sequence& one) { return one.tokens.empty(); });
    if (none && !b_.one_in(8)) return write();
    switch (b_.up_to(15)) {
      case 0:
      case 1:
      case 2:
        return write();
      case 3:
      case 4:
      case 5:
        return fork();
      case 6:
        return shrink();
      case 7:
      case 8:
        return raw() && !b_.one_in(8) ? attend() : shift();
      case 9:
      case 10:
        return raw() && !b_.one_in(8) ? attend() : rebase();
      case 11:
        return misuse();
      default:
        return attend();
    }
  }

  template <class S>
  void rotate_by_table(key& k, std::size_t table, bool interleaved_one, std::int64_t position) const {
    tables().rotate_key<S>(k, dim_, table, interleaved_one, position, first_channel_);
  }
  placed_table<float> placed(std::size_t table) const { return tables()[table].at_channel(first_channel_); }
  /// One that rotates fewer channels than the others, at their first channel.
  placed_table<float> of_fewer_pairs() const {
    static const frequency_table<float> one(frequencies(2 * pairs - 2, 50.0), 60);
    return one.at_channel(first_channel_);
  }
  /// One that rotates more channels than the head has, or begins beyond its end.
  placed_table<float> beyond_head() {
    return b_.coin() ? tables().of_more_pairs.at_channel(0)
                     : tables()[0].at_channel(dim_ - 2 * pairs + b_.between(1, 3));
  }
  /// The last two have angles that are not exact, or may not be: they were given in float, or at listed
  /// positions.
  std::size_t draw_table() {
    const auto i = static_cast<std::size_t>(b_.one_in(4) ? b_.up_to(5) : b_.up_to(2));
    return i == 5 && b_.coin() ? 6 : i;
  }

  /// Which tokens of a call are new: as many of every sequence, or packed one sequence after another.
  struct newest {
    std::vector<Index> counts;
    std::vector<std::int64_t> offsets;
    Index batch, tokens;
    Index row(Index s) const { return offsets.empty() ? s : 0; }
    Index first(Index s) const {
      return offsets.empty() ? 0 : static_cast<Index>(offsets[static_cast<std::size_t>(s)]);
    }
  };
  newest laid_out(const std::vector<Index>& counts) {
    newest n{counts, {}, sequences(), counts.empty() ? b_.up_to(2) : counts[0]};
    if (!counts.empty() && b_.coin() && std::count(counts.begin(), counts.end(), counts[0]) == sequences())
      return n;
    n.offsets = {0};
    for (const Index count : counts) n.offsets.push_back(n.offsets.back() + count);
    n.batch = 1;
    n.tokens = static_cast<Index>(n.offsets.back());
    return n;
  }
  /// An invalid entry in the lists of a call.
  ///
  /// \return  whether it throws as invalid, and as out of range
  std::pair<bool, bool> spoil_lists(newest& n) {
    using limits = std::numeric_limits<Index>;
    if (!b_.one_in(12) || all_.empty()) return {false, false};
    const Index s = b_.up_to(long(sequences()) - 1);
    switch (b_.up_to(2)) {
      case 0: {  // a page beyond the pool
        if (at(s).length() == 0) return {false, false};
        static const Index none[] = {-1, -1000, 1 << 20};
        wrong_.page_of = s, wrong_.block = b_.up_to(long(used_blocks(at(s))) - 1);
        wrong_.page = b_.coin() ? page_count_ : b_.one_of(none);
        return {false, true};
      }
      case 1: {  // more tokens than blocks, fewer than none, or than are new
        const Index none[] = {columns_ * page_size_ + 1, -1, limits::min(), limits::max()};
        wrong_.length_of = s;
        wrong_.length = n.counts[static_cast<std::size_t>(s)] > 0 && b_.coin()
                            ? n.counts[static_cast<std::size_t>(s)] - 1
                            : b_.one_of(none);
        return {true, false};
      }
      default: {
        if (n.offsets.empty()) return {false, false};
        switch (b_.up_to(4)) {
          case 0:
            n.offsets.push_back(n.offsets.back());
            break;
          case 1:
            n.offsets.front() = b_.coin() ? 1 : -1;
            break;
          case 2:
            n.offsets.back() += b_.coin() ? 1 : -1;
            break;
          case 3:
            if (sequences() < 2) return {false, false};
            n.offsets[1] = b_.coin() ? limits::max() : limits::min();
            break;
          default:
            n.offsets.pop_back();
        }
        return {true, false};
      }
    }
  }

  void write() {
    with_type_of_new<T>(b_, [&]<class K>(K) { write_of<K>(); });
  }

  /// Some sequences get new tokens: of a prompt, one, or none.
  template <class K>
  void write_of() {
    const std::vector<sequence> before = all_;
    const bool all_alike = b_.one_in(4), keep_shared = b_.one_in(8);
    const Index alike = b_.up_to(3);
    std::vector<Index> counts;
    for (Index s = 0; s < sequences(); ++s) {
      Index wish = all_alike ? alike : b_.coin() ? b_.up_to(9) : b_.up_to(1);
      counts.push_back(grow(at(s), wish, keep_shared));
    }
    newest n = laid_out(counts);
    new_heads<K> x(b_, n.batch, n.tokens, heads_, dim_, value_dim_);
    const bool by_table = raw() ? b_.one_in(8) : b_.coin(), interleaved_one = b_.one_in(4);
    const std::size_t table = draw_table();
    const bool beyond = by_table && b_.one_in(16);
    bool in_table = true, own = true;
    std::vector<char> written = no_slots();
    for (Index s = 0; s < sequences(); ++s)
      for (Index i = 0; i < counts[static_cast<std::size_t>(s)]; ++i) {
        const Index t = at(s).length() - counts[static_cast<std::size_t>(s)] + i;
        token& one = at(s).tokens[static_cast<std::size_t>(t)];
        x.put(n.row(s), n.first(s) + i, one.k.exact.data(), one.v.data());
        in_table = in_table && tables()[table].contains(t);
        own = own && uses(at(s).blocks[static_cast<std::size_t>(t / page_size_)]) == 1;
        mark(written, at(s), t);
        if (by_table)
          rotate_by_table<T>(one.k, table, interleaved_one, t);
        else
          one.k.error = storing_error<T>(one.k.exact);
      }
    auto [invalid, outside] = spoil_lists(n);
    if (b_.one_in(10)) {
      invalid = true;
      static constexpr long kinds[] = {0, 1, 2, 4, 5};
      const long kind = b_.up_to(5);
      x.spoil(kind < 5 ? kinds[kind] : x.k.size() == 0 ? 3 : 8);
    }
    invalid = invalid || !own || (by_table && (raw() || beyond));
    outside = outside || (by_table && !beyond && !in_table);
    x.remember();
    remember();
    const placed_table<float> by = beyond ? beyond_head() : placed(table);
    const auto call = [&] {
      with_pages<T>([&](const page_view<T>& pages) {
        if (!by_table) return write_pages(x.keys(), x.v, pages, n.offsets);
        with_layout(interleaved_one,
                    [&]<class Layout>(Layout) { write_pages<Layout>(x.keys(), x.v, pages, by, n.offsets); });
      });
    };
    if (invalid || outside) {
      rejected(invalid, outside, "new tokens that do not fit the pages throw", call);
      all_ = before;
      return poison_rest();
    }
    call();
    check(x.untouched(), "what is written stays as it is");
    check(keys_.untouched_outside(written) && values_.untouched_outside(written),
          "only the slots of new tokens are written");
  }
  void remember() { keys_.remember(), values_.remember(); }

  /// Gives a sequence slots for `count` more tokens, or as many as there are, and draws the tokens. A last
  /// page that others share is copied before, unless the engine forgets to.
  Index grow(sequence& one, Index count, bool keep_shared) {
    std::vector<Index> free = free_pages();
    if (const Index last = one.length() % page_size_;
        last != 0 && count > 0 && !keep_shared && uses(one.blocks.back()) > 1) {
      if (free.empty()) return 0;
      for (Index slot = 0; slot < last; ++slot) {
        keys_.copy(free.back(), slot, one.blocks.back(), slot);
        values_.copy(free.back(), slot, one.blocks.back(), slot);
      }
      one.blocks.back() = free.back();
      free.pop_back();
    }
    for (Index i = 0; i < count; ++i) {
      if (one.length() % page_size_ == 0) {
        if (free.empty() || static_cast<Index>(one.blocks.size()) == columns_) return i;
        one.blocks.push_back(free.back());
        free.pop_back();
      }
      one.tokens.push_back({{draw_channels<T>(b_, static_cast<std::size_t>(heads_ * dim_))},
                            draw_channels<T>(b_, static_cast<std::size_t>(heads_ * value_dim_))});
    }
    return count;
  }

  /// A sequence starts again as the first tokens of another, in the same pages.
  void fork() {
    if (all_.empty()) return;
    const Index from = b_.up_to(long(sequences()) - 1), to = b_.up_to(long(sequences()) - 1);
    if (from == to) return;
    const auto length =
        b_.coin() ? at(from).tokens.size() : static_cast<std::size_t>(b_.up_to(long(at(from).length())));
    if (at(from).tokens.empty()) return;
    at(to) = at(from);
    at(to).tokens.resize(length);
    poison_rest();
  }
  /// A sequence ends, or drops its last tokens or one of its blocks.
  void shrink() {
    if (all_.empty()) return;
    sequence& one = at(b_.up_to(long(sequences()) - 1));
    if (b_.coin() && one.length() >= page_size_) {
      const Index block = b_.up_to(long(one.length() / page_size_) - 1);
      one.blocks.erase(one.blocks.begin() + block);
      one.tokens.erase(one.tokens.begin() + block * page_size_,
                       one.tokens.begin() + (block + 1) * page_size_);
    } else {
      one.tokens.resize(static_cast<std::size_t>(b_.up_to(long(one.length()))));
    }
    poison_rest();
  }

  void shift() {
    newest n = laid_out(std::vector<Index>(all_.size(), 0));
    n.offsets.clear();
    auto [invalid, outside] = spoil_lists(n);
    const Index s = b_.one_in(8) ? static_cast<Index>(b_.integer()) : b_.up_to(long(sequences()) - 1);
    const bool is_sequence = s >= 0 && s < sequences();
    const Index held = is_sequence ? at(s).length() : 3;
    const auto first = static_cast<Index>(b_.one_in(8) ? b_.integer() : b_.up_to(long(held)));
    const auto count = static_cast<Index>(
        b_.one_in(8) ? b_.integer() : b_.up_to(long(held - std::clamp(first, Index{0}, held))));
    const std::int64_t delta = b_.one_in(5) ? b_.between(-1000000, 1000000) : b_.between(-4, 4);
    const std::size_t table = draw_table();
    const bool interleaved_one = b_.one_in(4), beyond = b_.one_in(16);
    const bool range = is_sequence && first >= 0 && count >= 0 && first <= held && count <= held - first;
    bool own = true;
    std::vector<char> rotated = no_slots();
    if (range)
      for (Index t = first; t < first + count; ++t) {
        own = own && uses(at(s).blocks[static_cast<std::size_t>(t / page_size_)]) == 1;
        mark(rotated, at(s), t);
      }
    invalid = invalid || raw() || beyond || !own || !tables().exact(table);
    outside = outside || !range;
    const placed_table<float> by = beyond ? beyond_head() : placed(table);
    remember();
    const auto call = [&, f = first, c = count] {
      with_pages<T>([&](const page_view<T>& pages) {
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          shift_keys<Layout>(pages, {.sequence = s, .first = f, .count = c}, delta, by);
        });
      });
    };
    if (invalid || outside) return rejected(invalid, outside, "keys that cannot rotate are rejected", call);
    call();
    check(values_.untouched() && keys_.untouched_outside(rotated), "only the rotated keys change");
    for (Index t = first; t < first + count && delta != 0; ++t)
      rotate_key<T>(at(s).tokens[static_cast<std::size_t>(t)].k, static_cast<std::size_t>(dim_),
                    tables().rule(table, interleaved_one, first_channel_), delta, false);
  }

  void rebase() {
    newest n = laid_out(std::vector<Index>(all_.size(), 0));
    n.offsets.clear();
    auto [invalid, outside] = spoil_lists(n);
    const std::size_t from = draw_table(), to = draw_table();
    const bool interleaved_one = b_.one_in(4), other_place = b_.one_in(16), beyond = b_.one_in(16);
    bool one_block = true;
    std::vector<Index> block_of(static_cast<std::size_t>(page_count_), -1);
    std::vector<char> rotated = no_slots();
    for (const sequence& one : all_) {
      for (Index t = 0; t < one.length(); ++t) mark(rotated, one, t);
      for (std::size_t block = 0; block < one.blocks.size(); ++block) {
        Index& of = block_of[static_cast<std::size_t>(one.blocks[block])];
        one_block = one_block && (of < 0 || of == static_cast<Index>(block));
        of = static_cast<Index>(block);
      }
    }
    invalid = invalid || raw() || beyond || other_place || !one_block || !tables().exact(from) ||
              !tables().exact(to);
    const placed_table<float> by = beyond ? beyond_head() : placed(from),
                              next = other_place ? (b_.coin() ? of_fewer_pairs()
                                                              : tables()[to].at_channel(first_channel_ + 1))
                                                 : placed(to);
    remember();
    const auto call = [&] {
      with_pages<T>([&](const page_view<T>& pages) {
        with_layout(interleaved_one, [&]<class Layout>(Layout) { rebase_keys<Layout>(pages, by, next); });
      });
    };
    if (invalid || outside) return rejected(invalid, outside, "keys that cannot be rebased throw", call);
    call();
    check(values_.untouched() && keys_.untouched_outside(rotated), "only keys of sequences change");
    const rotation_rule back = tables().rule(from, interleaved_one, first_channel_),
                        there = tables().rule(to, interleaved_one, first_channel_);
    for (sequence& one : all_)
      for (Index t = 0; t < one.length(); ++t)
        rebase_key<T>(one.tokens[static_cast<std::size_t>(t)].k, dim_, back, there, t);
  }

  void attend() {
    std::vector<Index> counts;
    const bool all_alike = b_.one_in(3), too_many = b_.one_in(16);
    Index least = 3;
    for (const sequence& one : all_) least = std::min(least, one.length());
    const Index alike = b_.up_to(long(least));
    for (const sequence& one : all_)
      counts.push_back(all_alike  ? alike
                       : too_many ? one.length() + 1
                                  : b_.up_to(long(std::min(one.length(), Index{5}))));
    newest n = laid_out(counts);
    const Index group = b_.between(1, 2), heads = heads_ * group;
    const bool rotated = raw() ? !b_.one_in(12) : b_.coin(), interleaved_one = b_.one_in(4);
    const bool beyond = rotated && b_.one_in(16);
    const std::size_t table = draw_table();
    const Index window = b_.coin() ? 0 : b_.between(1, 4);
    const long chosen = b_.up_to(255);  // of the last 48 lists and ranges, so that others mean what they did
    const Index sinks = chosen % 3;
    asked_queries<T, Q> asked(b_, n.batch, n.tokens, heads, dim_, value_dim_);
    bool enough = true, in_table = true;
    for (Index s = 0; s < sequences(); ++s) {
      const Index count = counts[static_cast<std::size_t>(s)];
      enough = enough && count <= at(s).length();
      if (count > 0) {
        const auto& rows = tables()[table];
        in_table = in_table && rows.contains(at(s).length() - 1) &&
                   rows.contains(raw() ? 0 : std::max(at(s).length() - count, Index{0}));
      }
      for (Index i = 0; i < count; ++i) asked.draw(b_, n.row(s), n.first(s) + i);
    }
    auto [invalid, outside] = spoil_lists(n);
    attention_options options = {.window = window, .sinks = sinks};
    const std::vector<std::int64_t> list(1, 0);
    const head_view<Q> whole = asked.out;
    wrong_option spoilt;
    drawn_ranges ranges;
    const bool ranged = chosen >= 224 && n.batch * n.tokens > 0;
    Index longest = 0;
    for (const sequence& one : all_) longest = std::max(longest, one.length());
    drawn_lists lists;
    if (chosen >= 208 && chosen < 240 && n.batch * n.tokens > 0 && heads_ > 0) {
      const auto size_for = [&](Index r, Index i) {
        for (Index s = 0; s < sequences(); ++s)
          if (r == n.row(s) && i >= n.first(s) && i - n.first(s) < counts[static_cast<std::size_t>(s)])
            return at(s).length();
        return Index{-1};
      };
      lists = drawn_lists(b_, n.batch, n.tokens, heads_, size_for);
      options.selected = lists.view();
      if (b_.one_in(8)) {
        lists.spoil(b_, longest, options);
        invalid = true;
      }
    }
    if (ranged) {
      ranges = drawn_ranges(b_, n.batch, n.tokens, longest);
      options.key_ranges = ranges.list;
      if (!b_.one_in(8)) options.window = options.sinks = 0;
      const bool spoilt_one = b_.one_in(8);
      if (spoilt_one) spoil_ranges(b_, longest, ranges, options);
      invalid = invalid || spoilt_one || options.window != 0 || options.sinks != 0;
    }
    if (b_.one_in(12)) {
      invalid = true;
      switch (b_.up_to(6)) {
        case 0:
          options.window = -1;
          break;
        case 1:
          spoilt.put_into(options, b_, n.batch, n.tokens, heads);
          if (!options.query_offsets.empty()) return;  // those of the call are given below
          break;
        case 2:
          options.key_positions = list;
          break;
        case 3:
          options.query_counts = list;
          break;
        case 4:
          asked.out.head_dim += 1;
          break;
        case 5:
          asked.q.batch += 1;
          break;
        default:
          spoil_queries(asked);
      }
    }
    invalid = invalid || !enough || beyond || (raw() && !rotated);
    // Queries that a sequence does not have are at positions before its first.
    outside = outside || (rotated && !beyond && (!in_table || !enough));
    options.query_offsets = n.offsets;
    asked.q_memory.before = asked.q_memory.now;
    remember();
    const placed_table<float> by = beyond ? beyond_head() : placed(table);
    const auto call = [&] {
      with_pages<const T>([&](const page_view<const T>& pages) {
        if (!rotated) return attention(asked.asking(), pages, asked.out, options);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          attention<Layout>(asked.asking(), pages, asked.out, by, options);
        });
      });
    };
    if (invalid || outside) {
      rejected(invalid, outside, "queries that do not fit the pages throw", call);
      return asked.check_rejected();
    }
    call();
    check(keys_.untouched() && values_.untouched() && asked.q_memory.untouched(),
          "attention changes no pages");
    check(asked.out_memory.untouched_outside(whole), "only the channels of the output are written");
    weights_and_sums weighed(n, sequences(), heads, chosen % 4 == 1 ? heads : heads_, longest);
    if (chosen % 2 == 1)
      with_pages<const T>([&](const page_view<const T>& pages) {
        if (!rotated) return weighed.find(asked.asking(), pages, options);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          weighed.template find<Layout>(asked.asking(), pages, by, options);
        });
      });
    for (Index s = 0; s < sequences(); ++s) {
      // Keys as they are stored, which check_all compares. Raw ones are rotated.
      std::vector<key> keys;
      std::vector<channels> values;
      const Index count = counts[static_cast<std::size_t>(s)];
      for (Index t = 0; t < at(s).length() && count > 0; ++t) {
        const Index page = at(s).blocks[static_cast<std::size_t>(t / page_size_)];
        keys.push_back({stored_channels(keys_.view.batch_range(page, 1), 0, t % page_size_)});
        values.push_back(stored_channels(values_.view.batch_range(page, 1), 0, t % page_size_));
        if (raw()) rotate_by_table<Q>(keys.back(), table, interleaved_one, t);
      }
      for (Index i = 0; i < count; ++i) {
        const Index position = at(s).length() - count + i;
        key query = asked.query(n.row(s), n.first(s) + i);
        if (rotated) rotate_by_table<Q>(query, table, interleaved_one, position);
        std::vector<Index> seen;
        std::vector<key> seen_keys;
        std::vector<channels> seen_values;
        const auto see = [&](Index t) {
          if (lists && !lists.has(n.row(s), n.first(s) + i, n.tokens, t)) return;
          seen.push_back(t);
          seen_keys.push_back(keys[static_cast<std::size_t>(t)]);
          seen_values.push_back(values[static_cast<std::size_t>(t)]);
        };
        if (ranged) ranges.for_seen(n.row(s), n.first(s) + i, at(s).length(), see);
        for (Index t = 0; t <= position && !ranged; ++t)
          if (window == 0 || position - t < window || t < sinks) see(t);
        check_attended("attention to pages is attention to the tokens of each sequence", asked.out, n.row(s),
                       n.first(s) + i, group, query, seen_keys, seen_values);
        for (Index h = 0; h < heads && chosen % 2 == 1; ++h)
          check_weights(weighed, s, n.row(s), n.first(s) + i, h, group, query, seen_keys, seen);
      }
    }
    if (chosen % 2 == 1) weighed.check_sums();
  }

  /// Queries or outputs of another shape, or without memory.
  void spoil_queries(asked_queries<T, Q>& asked) {
    switch (b_.up_to(4)) {
      case 1:
        asked.q.head_dim -= 1;
        break;
      case 2:
        asked.out.heads += 1;
        break;
      case 3:
        asked.q.heads += 1, asked.out.heads += 1;
        if (heads_ > 1) break;
        asked.q.tokens = -1;  // any number of queries may share one head
        break;
      case 4:
        if (asked.out.size() > 0) {
          asked.out.data = nullptr;
          break;
        }
        [[fallthrough]];
      default:
        asked.out.tokens += 1;
    }
  }

  /// The weights of a call and their sums, and what the sums should be.
  struct weights_and_sums {
    Index batch, queries, heads, heads_of_sums, keys;
    std::vector<Q> weights, sums;         // [batch, heads, queries, keys], [sequences, heads of sums, keys]
    std::vector<wide> exact, error;       // of the sums
    std::vector<bool> is_of_visible_key;  // as weights

    weights_and_sums(const newest& n, Index sequences, Index of_q, Index of_sums, Index longest)
        : batch(n.batch),
          queries(n.tokens),
          heads(of_q),
          heads_of_sums(of_sums),
          keys(longest),
          weights(static_cast<std::size_t>(batch * heads * queries * keys), Q(-7)),
          sums(static_cast<std::size_t>(sequences * of_sums * keys), Q(-7)),
          exact(sums.size(), 0),
          error(sums.size(), 0),
          is_of_visible_key(weights.size(), false) {}

    template <class Layout = void, class... Call>
    void find(const head_view<const Q>& q, const page_view<const T>& pages, const Call&... call) {
      if constexpr (std::is_void_v<Layout>) {
        attention_weights(q, pages, weights, call...);
        attention_weight_sums(q, pages, sums, call...);
      } else {
        attention_weights<Layout>(q, pages, weights, call...);
        attention_weight_sums<Layout>(q, pages, sums, call...);
      }
    }
    std::size_t weight(Index row, Index h, Index i, Index j) const {
      return static_cast<std::size_t>(((row * heads + h) * queries + i) * keys + j);
    }
    void check_sums() const {
      for (std::size_t n = 0; n < sums.size(); ++n)
        check(testing::abs(static_cast<wide>(sums[n]) - exact[n]) <=
                  error[n] + tolerance::unit_roundoff<Q>() * exact[n],
              "each token has the sum of its weights");
      for (std::size_t n = 0; n < weights.size(); ++n)
        check(is_of_visible_key[n] || weights[n] == Q(0),
              "a key that a query does not see has a weight of 0");
    }
  };

  /// The weights of one head of one query for the tokens `seen`, whose keys are given.
  static void check_weights(weights_and_sums& of, Index s, Index row, Index i, Index h, Index group,
                            const key& query, const std::vector<key>& keys, const std::vector<Index>& seen) {
    add_weights<Q>(query, keys, h, of.heads, group, [&](std::size_t n, wide exact, wide bound) {
      const std::size_t at = of.weight(row, h, i, seen[n]);
      of.is_of_visible_key[at] = true;
      check(testing::abs(static_cast<wide>(of.weights[at]) - exact) <= bound,
            "weights for pages are those of the tokens of each sequence");
      const Index of_sums = of.heads_of_sums == of.heads ? h : h / group;
      const auto sum = static_cast<std::size_t>((s * of.heads_of_sums + of_sums) * of.keys + seen[n]);
      of.exact[sum] += exact;
      of.error[sum] += bound;
    });
  }

  /// Invalid pools and lists.
  void misuse() {
    std::vector<int> blocks(static_cast<std::size_t>(sequences() * columns_), 0);
    const std::vector<int> lengths(all_.size(), 0);
    typename page_view<T>::pool pool = {keys_.view, values_.view};
    switch (b_.up_to(6)) {
      case 0:
        pool.values = spoilt(pool.values, [](auto& x) { x.batch += 1; });
        break;
      case 1:
        pool.values = spoilt(pool.values, [](auto& x) { x.tokens += 1; });
        break;
      case 2:
        pool.keys = spoilt(pool.keys, [](auto& x) { x.heads += 1; });
        break;
      case 3:
        pool.keys = spoilt(pool.keys, [](auto& x) { x.tokens = 0; });
        pool.values = spoilt(pool.values, [](auto& x) { x.tokens = 0; });
        break;
      case 4:
        pool.keys.head_dim = -1;
        break;
      case 5:
        if (pool.keys.size() == 0) return;
        pool.keys.data = nullptr;
        break;
      default:
        if (b_.coin()) return misuse_rows(pool, lengths);
        if (sequences() == 1) return;
        blocks.push_back(0);
    }
    remember();
    rejected(true, false, "a pool or lists that do not fit each other throw",
             [&] { page_view<T>(pool, blocks, lengths, storage_); });
  }
  /// Blocks in a matrix with another number of rows. With one column it would be a list.
  void misuse_rows(const typename page_view<T>::pool& pool, const std::vector<int>& lengths) {
    const Index rows = 2 * std::max(sequences(), Index{1});
    const Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic> table =
        Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic>::Zero(rows, columns_ + 2);
    remember();
    rejected(true, false, "blocks have a row for every sequence",
             [&] { page_view<T>(pool, table, lengths, storage_); });
  }
  template <class View, class Spoil>
  static View spoilt(View view, const Spoil& spoil) {
    spoil(view);
    if constexpr (is_quantized<T>) spoil(view.scales);
    return view;
  }

  bytes& b_;
  Index page_size_, page_count_, columns_, heads_, dim_, value_dim_;
  key_storage storage_;
  Index first_channel_;
  page_pool<T> keys_, values_;
  std::vector<sequence> all_;
  wrong_entry wrong_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_stored_type(b, [&]<class T>(T) { fuzz::engine<T>(b).run(); });
  return 0;
}
