// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ODR_HPP
#define ROPE_TESTS_ODR_HPP

#include <rope/rope.hpp>
#include <typeinfo>
#include <vector>

namespace odr {

struct outcome {
  const char* table_type;
  std::vector<float> q;
};

outcome from_a();
outcome from_b();

}  // namespace odr

// In an unnamed namespace: an inline function shared by two differently compiled files would break the rule under test.
namespace {

/// Builds a table and rotates with the code of the including file.
odr::outcome rotate_here() {
  constexpr rope::Index tokens = 5, heads = 3, head_dim = 64;
  std::vector<float> q(tokens * heads * head_dim);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 17) - 8.0f;
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 1000, 1000 + tokens);
  rope::rotate<rope::interleaved>(rope::thd(q.data(), tokens, heads, head_dim), table, 1000);
  return {typeid(table).name(), q};
}

}  // namespace

#endif  // ROPE_TESTS_ODR_HPP
