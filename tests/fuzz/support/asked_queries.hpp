// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_ASKED_QUERIES_HPP
#define ROPE_TESTS_FUZZ_ASKED_QUERIES_HPP

/// Queries of a call of attention, the memory of its output, and which part of the output may change.

#include <cstddef>
#include <vector>

#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"

namespace fuzz {

/// \tparam T  the type of stored keys
/// \tparam Q  of the queries and the output
template <class T, class Q = numbers<T>>
class asked_queries {
 public:
  testing::guarded_memory<Q> q_memory{0}, out_memory{0};
  rope::head_view<Q> q, out;

  asked_queries(bytes& b, Index batch, Index queries, Index heads, Index head_dim, Index value_dim)
      : q(draw_view(b, q_memory, batch, queries, heads, head_dim)),
        out(draw_view(b, out_memory, batch, queries, heads, value_dim)),
        queries_(queries),
        heads_of_(static_cast<std::size_t>(batch * queries)) {}
  asked_queries(const asked_queries&) = delete;
  asked_queries& operator=(const asked_queries&) = delete;

  void draw(bytes& b, Index r, Index i) {
    channels& heads = heads_of_[index(r, i)];
    heads = draw_channels<T>(b, static_cast<std::size_t>(q.heads * q.head_dim));
    put(q, r, i, heads.data());
  }
  void draw_all(bytes& b) {
    for (Index r = 0; r < q.batch; ++r)
      for (Index i = 0; i < queries_; ++i) draw(b, r, i);
  }
  key query(Index r, Index i) const { return {heads_of_[index(r, i)]}; }
  rope::head_view<const Q> asking() const { return q; }

  void check_rejected() const { check(out_memory.untouched(), "a call that throws writes nothing"); }
  void check_written() const {
    check(out_memory.untouched_outside(out), "only the channels of the output are written");
  }
  /// Calls f(r, i) for every query of a row that has counts[r] of them. Outputs after them must be zero.
  template <class Call>
  void for_each(const std::vector<Index>& counts, const Call& f) const {
    for (Index r = 0; r < q.batch; ++r)
      for (Index i = 0; i < queries_; ++i)
        i < counts[static_cast<std::size_t>(r)] ? f(r, i) : check_padding(out, r, i);
  }

 private:
  std::size_t index(Index r, Index i) const { return static_cast<std::size_t>(r * queries_ + i); }

  Index queries_;
  std::vector<channels> heads_of_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_ASKED_QUERIES_HPP
