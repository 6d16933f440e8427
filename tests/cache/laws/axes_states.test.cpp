// SPDX-License-Identifier: MIT
// A cache with axes, after any sequence of calls, equals a list of tokens with coordinates: it reports what
// the list contains, its keys are those of the list rotated to their coordinates, and attention is that of
// one prompt of these tokens.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index capacity = 24, heads = 4, kv_heads = 2, head_dim = 10, value_dim = 3, pairs = 4;
using Axes = Eigen::ArrayXXd;

/// Two schedules for the same axes: a cache is rebased from one to the other.
struct model {
  const char* name;
  frequencies text[2], on[2];
  bool has_text;  // whether a table of positions rotates text
};
model dealt(const char* name, const axis_assignment& axes) {
  const frequencies a(2 * pairs, 1e4),
      b(2 * pairs, 3e5, yarn_scaling{.factor = 4, .original_max_position = 64});
  return {name, {a, b}, {on_axes(a, axes), on_axes(b, axes)}, true};
}
std::vector<model> models() {
  Eigen::MatrixXd u(pairs, 2);
  u << 1, 0.5, -0.25, 1, 0.125, -1, 0.75, 0.75;
  const frequencies a(2 * pairs, 50.0), b(2 * pairs, 900.0);
  return {dealt("Qwen2-VL", contiguous_sections({1, 1, 2})),
          dealt("Qwen3-VL", interleaved_sections({2, 1, 1})),
          dealt("Ernie 4.5 VL", height_width_then_time(1, 2)),
          dealt("one axis", contiguous_sections({4})),
          {"mixed", {a, b}, {along_directions(a, u), along_directions(b, u)}, false}};
}

template <class T>
struct token {
  std::vector<double> at;  // [axes]
  std::vector<T> q, k, v;
  long rotations = 0;  // shifts and rebases since it was rotated
};
template <class T>
using row = std::vector<token<T>>;

/// Copies the heads of one token to another place.
template <class T>
void set(testing::tensor<T>& x, Index b, Index t, const std::vector<T>& channels) {
  std::copy(channels.begin(), channels.end(), &x(b, t, 0, 0));
}

template <class T>
class machine {
 public:
  machine(const model& m, std::uint64_t seed)
      : random_(seed),
        model_(m),
        axes_(m.on[0].axes()),
        raw_(up_to(3) == 0),
        batch_(1 + up_to(2)),
        first_(up_to(1) == 0 ? 0 : 2),
        cache_(batch_, capacity, kv_heads, head_dim, token_axes{axes_}, value_dim,
               raw_ ? key_storage::raw : key_storage::rotated),
        rows_(static_cast<std::size_t>(batch_)) {}

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      switch (up_to(11)) {
        case 0:
        case 1:
          append_text();
          break;
        case 2:
        case 3:
          append_coordinates();
          break;
        case 4:
          append_image();
          break;
        case 5:
          truncate();
          break;
        case 6:
          remove();
          break;
        case 7:
          shift();
          break;
        case 8:
          rebase();
          break;
        case 9:
          reorder();
          break;
        case 10:
          replace();
          break;
        default:
          append_text_at();
          break;
      }
      CAPTURE(i);
      check();
      attend();
    }
  }

 private:
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using tables = frequency_table<S>;

  Index up_to(Index most) { return static_cast<Index>(random_.integer(0, most)); }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  std::vector<T> channels(Index count) {
    std::vector<T> x(at(count));
    for (T& value : x) value = static_cast<T>(2 * random_.unit() - 1);
    return x;
  }
  double next(Index b) const {
    double largest = -1;
    if (!rows_[at(b)].empty()) largest = rows_[at(b)][0].at[0];
    for (const auto& t : rows_[at(b)])
      for (const double c : t.at) largest = (std::max)(largest, c);
    return largest + 1;
  }
  bool whole() const {
    for (Index b = 0; b < batch_; ++b)
      if (next(b) != std::floor(next(b))) return false;
    return true;
  }
  Index free_slots() const {
    std::size_t most = 0;
    for (const auto& r : rows_) most = (std::max)(most, r.size());
    return capacity - static_cast<Index>(most);
  }
  tables text_table() const { return tables(model_.text[schedule_], -400, 800); }
  template <class Derived>
  tables axes_table(const Eigen::DenseBase<Derived>& c) const {
    return tables(model_.on[schedule_], c);
  }
  /// Either table, if both give these tokens the same angles.
  tables any_table() {
    return !images_ && model_.has_text && up_to(1) == 0 ? text_table() : axes_table(Axes::Zero(1, axes_));
  }

  /// Tokens [batch, count] at coordinate(b, t, a), of which row b takes counts[b].
  struct added {
    testing::tensor<T> k, v;
    Axes coordinates;
    std::vector<int> counts;
  };
  template <class CoordinateOf>
  added new_tokens(Index count, const CoordinateOf& coordinate) {
    added a{{batch_, count, kv_heads, head_dim},
            {batch_, count, kv_heads, value_dim},
            Axes(batch_ * count, axes_),
            {}};
    const bool ragged = up_to(2) == 0;
    for (Index b = 0; b < batch_; ++b) {
      const Index taken = ragged ? up_to(count) : count;
      a.counts.push_back(static_cast<int>(taken));
      for (Index t = 0; t < count; ++t) {
        token<T> one{
            {}, channels(heads * head_dim), channels(kv_heads * head_dim), channels(kv_heads * value_dim)};
        for (Index axis = 0; axis < axes_; ++axis) {
          one.at.push_back(coordinate(b, t, axis));
          a.coordinates(b * count + t, axis) = one.at.back();
        }
        set(a.k, b, t, one.k);
        set(a.v, b, t, one.v);
        if (t < taken) pending_.emplace_back(b, one);
      }
    }
    if (!ragged && up_to(1) == 0) a.counts.clear();
    return a;
  }
  void take() {
    for (auto& [b, one] : pending_) rows_[at(b)].push_back(std::move(one));
    pending_.clear();
  }
  void append(const added& a, const tables& table) {
    testing::random& r = random_;
    const auto placed = table.at_channel(first_);
    if (r.integer(0, 1) == 0)
      cache_.template append<half_split>(view(a.k), view(a.v), placed, a.counts);
    else
      cache_.template append<half_split>(view(std::as_const(a.k)), view(a.v), placed, a.counts);
  }

  void append_text() {
    const Index count = (std::min)(free_slots(), up_to(3));
    std::vector<double> start;
    for (Index b = 0; b < batch_; ++b) start.push_back(next(b));
    const bool was_whole = whole(), by_positions = !raw_ && model_.has_text && up_to(1) == 0;
    const owned_array<double> given = cache_.next_coordinates(count);
    const added a = new_tokens(count, [&](Index b, Index t, Index) { return start[at(b)] + double(t); });
    CHECK((given == a.coordinates).all());
    if (raw_ ? up_to(1) == 0 && was_whole : by_positions && was_whole) {
      if (raw_)
        cache_.append(view(a.k), view(a.v), a.counts);
      else
        append(a, text_table());
    } else if (raw_) {
      cache_.append_at(view(a.k), view(a.v), token_coordinates(given), a.counts);
    } else {
      if (by_positions)
        CHECK(throws_saying<std::invalid_argument>([&] { append(a, text_table()); },
                                                   "the next position must be an integer"));
      append(a, axes_table(given));
      images_ = true;
    }
    take();
  }
  void append_text_at() {
    if (!model_.has_text && !raw_) return;
    const Index count = (std::min)(free_slots(), up_to(2));
    std::vector<int> ids;
    for (Index i = 0; i < batch_ * count; ++i) ids.push_back(static_cast<int>(up_to(200)) - 100);
    const added a =
        new_tokens(count, [&](Index b, Index t, Index) { return double(ids[at(b * count + t)]); });
    if (raw_)
      cache_.append_at(view(a.k), view(a.v), ids, a.counts);
    else
      cache_.template append_at<half_split>(view(a.k), view(a.v), text_table().at_channel(first_), ids,
                                            a.counts);
    take();
  }
  void append_coordinates() {
    const Index count = (std::min)(free_slots(), up_to(4));
    const double unit = up_to(3) == 0 ? 0.25 : 1.0;
    const bool shared = up_to(1) == 0;
    Axes c(batch_ * count, axes_);
    for (Index r = 0; r < c.rows(); ++r)
      for (Index a = 0; a < axes_; ++a)
        c(r, a) = shared && r >= count ? c(r % count, a) : unit * double(up_to(160) - 40);
    const added a = new_tokens(count, [&](Index b, Index t, Index axis) { return c(b * count + t, axis); });
    const Axes rows = shared ? Axes(c.topRows(count)) : c;
    if (raw_)
      cache_.append_at(view(a.k), view(a.v), token_coordinates(rows), a.counts);
    else
      append(a, axes_table(rows));
    images_ = true;
    take();
  }
  void append_image() {
    if (axes_ != 3 || batch_ > 1 || !whole() || free_slots() < 7) return;
    const auto runs = std::vector<prompt_run>{text_run{1}, vision_run{1, 2, 3}};
    const auto prompt = qwen_vl_positions(runs, cache_.next_positions()[0]);
    const added a =
        new_tokens(7, [&](Index, Index t, Index axis) { return double(prompt.coordinates(t, axis)); });
    if (raw_)
      cache_.append_at(view(a.k), view(a.v), token_coordinates(prompt.coordinates), a.counts);
    else
      append(a, axes_table(prompt.coordinates));
    images_ = true;
    take();
  }

  /// One row, or all of them if they are equally long.
  std::pair<batch_row, Index> any_row() {
    bool even = true;
    for (const auto& r : rows_) even = even && r.size() == rows_[0].size();
    if (even && up_to(1) == 0) return {every_row, static_cast<Index>(rows_[0].size())};
    const Index b = up_to(batch_ - 1);
    return {batch_row{b}, static_cast<Index>(rows_[at(b)].size())};
  }
  template <class Change>
  void change(batch_row which, const Change& change_row) {
    for (Index b = 0; b < batch_; ++b)
      if (which.every || which.index == b) change_row(rows_[at(b)]);
  }
  void truncate() {
    const auto [which, size] = any_row();
    const Index left = up_to(size);
    cache_.truncate(left, which);
    change(which, [&](row<T>& r) { r.resize(at(left)); });
    forget_images();
  }
  void remove() {
    const auto [which, size] = any_row();
    const Index first = up_to(size), count = up_to(size - first);
    cache_.remove(first, count, which);
    change(which, [&](row<T>& r) { r.erase(r.begin() + first, r.begin() + first + count); });
    forget_images();
  }
  void shift() {
    const auto [which, size] = any_row();
    const Index first = up_to(size), count = up_to(size - first);
    const std::int64_t delta = random_.integer(-20, 20);
    if (raw_ && up_to(1) == 0)
      cache_.shift(first, count, delta, which);
    else
      cache_.template shift<half_split>(first, count, delta, any_table().at_channel(first_), which);
    change(which, [&](row<T>& r) {
      for (Index t = first; t < first + count; ++t) {
        for (double& c : r[at(t)].at) c += double(delta);
        if (delta != 0) ++r[at(t)].rotations;
      }
    });
  }
  void rebase() {
    if (raw_) {
      schedule_ = 1 - schedule_;
      return;
    }
    if (cache_.coordinates().rows() == 0) return;
    const tables from = any_table();
    schedule_ = 1 - schedule_;
    const tables to = any_table();
    cache_.template rebase<half_split>(from.at_channel(first_), to.at_channel(first_));
    if (to.source() == table_source::coordinates) images_ = true;
    for (auto& r : rows_)
      for (auto& t : r) ++t.rotations;
  }
  void reorder() {
    std::vector<int> parents;
    for (Index b = 0; b < batch_; ++b) parents.push_back(static_cast<int>(up_to(batch_ - 1)));
    const auto before = rows_;
    for (Index b = 0; b < batch_; ++b) rows_[at(b)] = before[at(parents[at(b)])];
    cache_.reorder(parents);
    const Index from = up_to(batch_ - 1), to = up_to(batch_ - 1);
    cache_.copy_row(from, to);
    rows_[at(to)] = row<T>(rows_[at(from)]);
    forget_images();
  }
  void replace() {
    if (up_to(4) == 0) {
      cache_.clear();
      for (auto& r : rows_) r.clear();
      forget_images();
      return;
    }
    kv_cache<T> other = cache_;
    cache_.clear();
    CHECK(cache_.coordinates().rows() == 0);
    cache_ = std::move(other);
    CHECK(other.axes() == 0);  // NOLINT: its state after the move is documented
    CHECK(other.coordinates().size() == 0);
    CHECK(other.next_coordinates().size() == 0);
  }
  void forget_images() {
    for (const auto& r : rows_)
      if (!r.empty()) return;
    images_ = false;
    if (up_to(1) == 0) schedule_ = 1 - schedule_;  // an empty cache takes any frequencies
  }

  reference::model bounds() const {
    return {at(heads), at(kv_heads), at(head_dim), at(value_dim), {}, {}, 1.14L};  // m of both is less
  }
  Axes coordinates(const row<T>& r) const {
    Axes c(static_cast<Index>(r.size()), axes_);
    for (Index t = 0; t < c.rows(); ++t)
      for (Index a = 0; a < axes_; ++a) c(t, a) = r[at(t)].at[at(a)];
    return c;
  }

  void check() {
    Index all = 0;
    for (Index b = 0; b < batch_; ++b) {
      const row<T>& r = rows_[at(b)];
      const auto size = static_cast<Index>(r.size());
      REQUIRE(cache_.size(b) == size);
      const Axes c = coordinates(r);
      CHECK((cache_.coordinates(b) == c).all());
      CHECK((cache_.coordinates().middleRows(all, size) == c).all());
      all += size;
      CHECK(cache_.next_coordinates()(b, axes_ - 1) == next(b));
      if (whole()) CHECK(cache_.next_positions()[at(b)] == static_cast<std::int64_t>(next(b)));
      for (Index t = 0; t < size; ++t) CHECK(cache_.order(b)[at(t)] == t);
      if (size == 0) continue;
      testing::tensor<T> k(1, size, kv_heads, head_dim), v(1, size, kv_heads, value_dim);
      for (Index t = 0; t < size; ++t) {
        set(k, 0, t, r[at(t)].k);
        set(v, 0, t, r[at(t)].v);
      }
      CHECK(testing::same_heads(cache_.values(b), view(v)));
      if (!raw_) rotate<half_split>(view(k), axes_table(c).at_channel(first_));
      const double u = static_cast<double>(tolerance::unit_roundoff<T>());
      for (Index t = 0; t < size; ++t) {
        const auto is = cache_.keys(b).token_range(t, 1), expected = view(std::as_const(k)).token_range(t, 1);
        if (r[at(t)].rotations == 0 || raw_) {
          CHECK(testing::same_heads(is, expected));
          continue;
        }
        // Each further rotation adds 4.2 u times the length of the pair, which is below 1.42 m, and so do the
        // first rotation and the direct one.
        CHECK(testing::largest_difference(is, expected) <=
              4.2 * 1.42 * 1.14 * u * double(2 + 2 * r[at(t)].rotations));
      }
    }
  }

  /// The queries are the newest tokens of every row.
  void attend() {
    Index most = 0;
    std::vector<int> counts;
    long rotations = 0;
    for (const auto& r : rows_) {
      counts.push_back(static_cast<int>(up_to((std::min)(Index{6}, static_cast<Index>(r.size())))));
      most = (std::max)(most, Index{counts.back()});
      for (const auto& t : r) rotations = (std::max)(rotations, t.rotations);
    }
    const Index queries = most + up_to(1);
    testing::tensor<T> q(batch_, queries, heads, head_dim), out(batch_, queries, heads, value_dim);
    Axes at_queries = Axes::Zero(batch_ * queries, axes_);
    bool text = model_.has_text;
    for (Index b = 0; b < batch_; ++b)
      for (Index t = 0; t < counts[at(b)]; ++t) {
        const auto& one = rows_[at(b)][rows_[at(b)].size() - at(counts[at(b)]) + at(t)];
        set(q, b, t, one.q);
        for (Index a = 0; a < axes_; ++a) {
          at_queries(b * queries + t, a) = one.at[at(a)];
          text = text && one.at[at(a)] == one.at[0] && one.at[0] == std::floor(one.at[0]);
        }
      }
    const attention_options options = {.window = up_to(2) == 0 ? 1 + up_to(4) : 0, .sinks = up_to(2)};
    const auto ask = [&](const tables& table) {
      attention<half_split>(view(q), cache_, view(out), table.at_channel(first_), options, counts);
    };
    if (raw_)
      ask(axes_table(cache_.coordinates()));
    else if (text && up_to(1) == 0)
      ask(text_table());
    else
      ask(axes_table(at_queries));
    for (Index b = 0; b < batch_; ++b) {
      const row<T>& r = rows_[at(b)];
      const auto size = static_cast<Index>(r.size());
      const Index count = counts[at(b)];
      for (Index t = count; t < queries; ++t)
        for (Index d = 0; d < value_dim; ++d) CHECK(view(out).at(b, t, 0)[d] == 0);
      if (size == 0 || count == 0) continue;
      testing::tensor<T> qq(1, count, heads, head_dim), k(1, size, kv_heads, head_dim),
          v(1, size, kv_heads, value_dim), expected(1, count, heads, value_dim);
      for (Index t = 0; t < size; ++t) {
        set(k, 0, t, r[at(t)].k);
        set(v, 0, t, r[at(t)].v);
        if (t >= size - count) set(qq, 0, t - (size - count), r[at(t)].q);
      }
      const tables table = axes_table(coordinates(r));
      attention<half_split>(view(qq), view(k), view(v), view(expected), table.at_channel(first_), options);
      const double bound = reference::decoder_bound<T, T>(bounds(), at(size), rotations, !raw_) +
                           reference::decoder_bound<T, T>(bounds(), at(size), 0, !raw_);
      CHECK(testing::largest_difference(view(expected), view(out).batch_range(b, 1)) <= bound);
    }
  }

  testing::random random_;
  const model& model_;
  Index axes_;
  bool raw_;
  Index batch_, first_;
  kv_cache<T> cache_;
  std::vector<row<T>> rows_;
  std::vector<std::pair<Index, token<T>>> pending_;
  std::size_t schedule_ = 0;
  bool images_ = false;  // whether the cache can know its frequencies on axes
};

template <class T>
void run_all(std::uint64_t seeds, int calls) {
  const auto all = models();
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    for (const model& m : all) {
      CAPTURE(seed, m.name);
      machine<T>(m, seed).run(calls);
    }
}

}  // namespace

TEST_CASE("a cache with axes equals a list of tokens with coordinates", "[cache]") {
  run_all<float>(40, 30);
  run_all<double>(20, 30);
}
