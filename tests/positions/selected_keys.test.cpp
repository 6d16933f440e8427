// SPDX-License-Identifier: MIT
// Lists of selected keys are those of the caller's object, of any type and storage order.
#include <rope/positions/selected_keys.hpp>

#include <Eigen/Core>
#include <limits>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/span_of_strides.hpp"

using rope::selected_keys;

namespace {

/// Entry (query, key head, n) of every list below.
constexpr int entry(rope::Index query, rope::Index head, rope::Index n) {
  return static_cast<int>(100 * query + 10 * head + n);
}

bool has_entries(const selected_keys& lists, rope::Index queries, rope::Index heads, rope::Index keys) {
  bool same = bool(lists) && lists.queries() == queries && lists.key_heads() == heads && lists.keys() == keys;
  for (rope::Index i = 0; same && i < queries; ++i)
    for (rope::Index h = 0; h < heads; ++h)
      for (rope::Index n = 0; n < keys; ++n) same = same && lists.at(i, h, n) == entry(i, h, n);
  return same;
}

}  // namespace

TEMPLATE_TEST_CASE("lists are read in place, in any container", "[positions]", int, long, long long) {
  Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> by_columns(3, 4);
  Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> by_rows(3, 4), wide(3, 9),
      one_key(3, 1);
  Eigen::Tensor<TestType, 2> tensor(3, 4);
  Eigen::Tensor<TestType, 3> of_heads(3, 2, 4);
  Eigen::Tensor<TestType, 3, Eigen::RowMajor> of_heads_by_rows(3, 2, 4);
  std::vector<TestType> memory;
  for (int i = 0; i < 3; ++i)
    for (int h = 0; h < 2; ++h)
      for (int n = 0; n < 4; ++n) {
        const auto value = static_cast<TestType>(entry(i, h, n));
        if (h == 0) by_columns(i, n) = by_rows(i, n) = wide(i, n + 2) = tensor(i, n) = value;
        if (h == 0 && n == 0) one_key(i, 0) = value;
        of_heads(i, h, n) = of_heads_by_rows(i, h, n) = value;
        memory.push_back(value);
      }
  CHECK(has_entries(by_columns, 3, 1, 4));
  CHECK(has_entries(by_rows, 3, 1, 4));
  CHECK(has_entries(one_key, 3, 1, 1));
  const auto block = wide.middleCols(2, 4);
  CHECK(has_entries(block, 3, 1, 4));
  CHECK(has_entries(tensor, 3, 1, 4));
  CHECK(has_entries(of_heads, 3, 2, 4));
  CHECK(has_entries(of_heads_by_rows, 3, 2, 4));
  CHECK(has_entries({memory.data(), {.queries = 3, .key_heads = 2, .keys = 4}}, 3, 2, 4));
  const testing::span_of_strides<const TestType, 3> span(memory.data(), {3, 2, 4});
  CHECK(has_entries(span, 3, 2, 4));
  const testing::span_of_strides<const TestType, 2> first_heads(memory.data(), {3, 4}, {8, 1});
  CHECK(has_entries(first_heads, 3, 1, 4));
  const std::vector<TestType> list = {0, 1, 2};
  CHECK(has_entries(list, 1, 1, 3));
  const Eigen::Matrix<TestType, Eigen::Dynamic, 1> column =
      Eigen::Map<const Eigen::Matrix<TestType, Eigen::Dynamic, 1>>(list.data(), 3);
  CHECK(has_entries(column, 1, 1, 3));
  const selected_keys part = selected_keys(by_columns).of_queries(1, 2);
  CHECK(part.queries() == 2);
  CHECK(part.at(1, 0, 3) == entry(2, 0, 3));
  CHECK(part.at(1, 5, 3) == entry(2, 0, 3));  // shared by key heads
}

TEST_CASE("a default selected_keys is empty, and lists without entries throw", "[positions]") {
  CHECK(!selected_keys());
  CHECK(testing::throws_saying<std::invalid_argument>([] { selected_keys(std::vector<int>{}); },
                                                      "selected_keys: lists must have entries", "got ",
                                                      "[1, 1, 0]"));
  const int* const none = nullptr;
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        selected_keys(none, {1, 1, 2});
      },
      "[1, 1, 2] at a null pointer; leave"));
  const int list = 0;
  for (const rope::selected_shape& shape : {rope::selected_shape{0, 1, 1}, {1, 0, 1}, {1, 1, -1}})
    CHECK(testing::throws_saying<std::invalid_argument>([&] { selected_keys(&list, shape); },
                                                        "begin an empty list with -1"));
  const rope::Index huge = std::numeric_limits<rope::Index>::max() / 2;
  for (const rope::selected_shape& shape : {rope::selected_shape{1, huge, huge}, {huge, 1, 3}})
    CHECK(testing::throws_saying<std::length_error>([&] { selected_keys(&list, shape); }, "selected_keys: [",
                                                    "] exceeds the address space"));
}
