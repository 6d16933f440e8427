// SPDX-License-Identifier: MIT
#include <rope/tables.hpp>

#include <cstddef>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

TEMPLATE_TEST_CASE("a row_maker writes rows and makes tables without an allocation", "[noalloc]", float,
                   double) {
  const Eigen::Array<double, 40, 2> inv_freq = Eigen::Array<double, 40, 2>::Random();
  const rope::row_maker<TestType> one(rope::frequencies(80)), two(rope::frequencies::custom(inv_freq, 0.5));
  const Eigen::Array<double, 3, 2> real = Eigen::Array<double, 3, 2>::Random();
  const Eigen::Array<int, 3, 2> whole = (real * 1000).cast<int>();
  std::vector<TestType> row(80), rows(3 * 80);
  std::vector<std::byte> memory(two.memory_size(3));
  CHECK(testing::allocations_in([&] {
          one.write(7, row);
          two.write(real, rows);
          two.write(whole, rows);
          for (int i = 0; i < 2; ++i) {
            rope::frequency_table<TestType> table = two.table(real, memory);
            table = two.table(whole, memory);
          }
        }) == 0);
}
