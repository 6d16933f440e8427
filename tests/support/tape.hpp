// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_TAPE_HPP
#define ROPE_TESTS_TAPE_HPP

/// A tape of attention from views in a fixed order, for tests that call the backward pass often.

#include <rope/attention/tape.hpp>

namespace testing {

template <class T>
rope::attention_tape<T> tape(const auto& q, const auto& k, const auto& v, const auto& out, const auto& d_out,
                             const rope::head_view<T>& d_q, const rope::head_view<T>& d_k,
                             const rope::head_view<T>& d_v) {
  return {.q = q, .k = k, .v = v, .out = out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v};
}

}  // namespace testing

#endif  // ROPE_TESTS_TAPE_HPP
