// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_TEXT_ON_AXES_HPP
#define ROPE_TESTS_FUZZ_TEXT_ON_AXES_HPP

/// A cache whose tokens have coordinates, and how text continues after them: at one integer on all axes,
/// after the largest coordinate of a row.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <rope/cache/describe.hpp>
#include <rope/cache/policy.hpp>

#include "fuzz/support/axes.hpp"
#include "fuzz/support/shown.hpp"
#include "fuzz/support/tokens.hpp"

namespace fuzz {

/// The largest coordinate, in magnitude.
inline constexpr double limit = 0x1p53;

struct token_on_axes {
  key k;
  channels v;
  coordinates at;
};

template <class T>
token_on_axes draw_token(bytes& b, Index heads, Index head_dim, Index value_dim) {
  return {{draw_channels<T>(b, static_cast<std::size_t>(heads * head_dim))},
          draw_channels<T>(b, static_cast<std::size_t>(heads * value_dim)),
          {}};
}
/// Stores a key, rotated to its coordinates or unchanged.
template <class T>
void store(token_on_axes& one, Index head_dim, bool rotated, const axis_rotation& given) {
  if (!rotated)
    one.k.error = storing_error<T>(one.k.exact);
  else if (is_near(one.at))
    rotate_on_axes<T>(one.k, head_dim, given, one.at, given.factor());
  else
    one.k.error = 8;  // beyond the exact range of the model
}

/// Rows of coordinates for new tokens: of all rows, or shared by the rows of a batch, rarely with more rows
/// than tokens.
struct given_places {
  std::vector<coordinates> rows;
  bool shared = false, odd = false;

  given_places(bytes& b, Index batch, Index tokens, bool any)
      : shared(any && b.one_in(4)), any_(any), batch_(batch), tokens_(tokens) {}
  Index count() const { return shared ? tokens_ : batch_ * tokens_; }
  const coordinates& of(Index r, Index t) const {
    return rows[static_cast<std::size_t>(shared ? t : r * tokens_ + t)];
  }
  void spoil_seldom(bytes& b) {
    odd = any_ && b.one_in(16);
    if (!odd) return;
    rows.push_back({0, 0});
    const auto n = static_cast<Index>(rows.size());
    if (n == tokens_ || n == batch_ * tokens_) rows.push_back({0, 0});
  }

 private:
  bool any_;
  Index batch_, tokens_;
};

/// \tparam Base  a target with empty(), tokens_of(r), all tokens that a row has or took, and evicted(r)
template <class Base>
class text_on_axes : public Base {
 protected:
  using Base::b_, Base::batch_, Base::cache_, Base::rejected, Base::tokens_of;

  template <class... Shape>
  text_on_axes(bytes& b, Index first_channel, const Shape&... shape)
      : Base(b, shape...), first_channel_(first_channel) {}

  double largest(Index r) const {
    double result = this->evicted(r);
    for (const token_on_axes& one : tokens_of(r)) result = std::max(result, largest_of(one.at));
    return result < -limit ? -1 : result;
  }
  bool goes_on_whole() const {
    bool whole = true;
    for (Index r = 0; r < batch_; ++r) whole = whole && is_whole(largest(r));
    return whole;
  }
  bool has_slots_for(Index tokens) const {
    bool fits = true;
    for (Index r = 0; r < batch_; ++r) fits = fits && largest(r) <= limit - static_cast<double>(tokens);
    return fits;
  }
  /// Whether the model computes with all coordinates exactly.
  bool all_near() const {
    bool result = true;
    for (Index r = 0; r < batch_; ++r)
      for (const token_on_axes& one : tokens_of(r)) result = result && is_near(one.at);
    return result;
  }
  axis_rotation draw_rotation(bool text) {
    return fuzz::draw_rotation(b_, text, this->empty(), rotation_, first_channel_, cache_.head_dim());
  }
  bool agrees_with(const axis_rotation& given) const { return known_ && rotation_.agrees_with(given); }
  /// Keys were appended, rotated in this way or, without `rotated`, in an unknown way.
  void remember(bool rotated, const axis_rotation& given) {
    if (rotated) rotation_ = this->empty() ? given : rotation_.joined(given);
    known_ = rotated;
  }

  bits state() const override {
    bits all = shown_by(cache_);
    add_number(all, cache_.next_coordinates(0).rows());
    for (int text = 0; text < 2; ++text)
      for (const bool interleaved_one : {false, true})
        add_number(all,
                   fuzz::agrees_with(cache_, axis_rotation::of_text(text, interleaved_one, first_channel_)));
    return all;
  }

  void check_text() {
    for (Index r = 0; r < batch_; ++r)
      rejected(invalid_argument, "tokens with coordinates have no positions",
               [&] { static_cast<void>(cache_.positions(r)); });
    if (goes_on_whole()) {
      const auto next = cache_.next_positions();
      for (Index r = 0; r < batch_; ++r)
        check(static_cast<double>(next[static_cast<std::size_t>(r)]) == largest(r) + 1,
              "text continues after the largest coordinate");
    } else {
      rejected(invalid_argument, "a position is an integer",
               [&] { static_cast<void>(cache_.next_positions()); });
    }
    const Index tokens = b_.up_to(2);
    if (!has_slots_for(tokens))
      return rejected(out_of_range, "text stays within 2^53",
                      [&] { static_cast<void>(cache_.next_coordinates(tokens)); });
    const auto text = cache_.next_coordinates(tokens);
    check(text.rows() == batch_ * tokens, "text has a row for every token");
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t)
        for (Index a = 0; a < axes; ++a)
          check(text(r * tokens + t, a) == largest(r) + static_cast<double>(t + 1),
                "text to come is at one place on all axes");
  }

  void call_with_no_text() {
    using limits = std::numeric_limits<Index>;
    rejected(invalid_argument, "a count of text is not negative",
             [&] { static_cast<void>(cache_.next_coordinates(b_.coin() ? -1 : limits::min())); });
    if (batch_ > 0)
      rejected(out_of_range, "text stays within 2^53",
               [&] { static_cast<void>(cache_.next_coordinates(limits::max())); });
  }
  /// Tables that no cache on these axes accepts, those that this one accepts, and its text.
  void check_tables() {
    for (const auto& table : axis_tables::get().rejected)
      rejected(invalid_argument, "a table of other angles or axes throws",
               [&] { cache_.template check_table<rope::half_split>(table); });
    if (cache_.storage() == rope::key_storage::rotated)
      check_rotations(cache_, this->empty(), known_ ? &rotation_ : nullptr, first_channel_);
    if (!has_slots_for(1))
      return rejected(out_of_range, "no text goes on beyond 2^53",
                      [&] { static_cast<void>(describe(cache_)); });
    const std::string text = describe(cache_);
    check(batch_ == 0 ? text.empty() : std::count(text.begin(), text.end(), '\n') + 1 == batch_,
          "a cache has a line of text for every row");
  }

  Index first_channel_;
  bool known_ = false;
  axis_rotation rotation_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_TEXT_ON_AXES_HPP
