// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ODR_HPP
#define ROPE_TESTS_ODR_HPP

#include <rope/rope.hpp>
#include <typeinfo>
#include <vector>

namespace odr {

inline constexpr rope::Index tokens = 5, heads = 3, head_dim = 64;

struct outcome {
  const char* table_type;
  std::vector<float> rotated, attended;
};

outcome from_a();
outcome from_b();

}  // namespace odr

// In an unnamed namespace: an inline function shared by two differently compiled files would break the rule
// under test.
namespace {

/// Builds a table, rotates and attends with the code of the including file, on channels in [-1, 1].
odr::outcome run_here() {
  using odr::tokens, odr::heads, odr::head_dim;
  std::vector<float> x(tokens * heads * head_dim), out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto view = rope::thd(x.data(), tokens, heads, head_dim);
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 1000, 1000 + tokens);
  rope::rotate<rope::interleaved>(view, table, 1000);
  rope::attention(view, view, view, rope::thd(out.data(), tokens, heads, head_dim));
  return {typeid(table).name(), x, out};
}

}  // namespace

#endif  // ROPE_TESTS_ODR_HPP
