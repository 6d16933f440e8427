// SPDX-License-Identifier: MIT
#include <rope/models/model_facts.hpp>

#include <cstdint>

#include "support/catch.hpp"

using namespace rope;

TEST_CASE("a rule chosen at run time gives the results of that rule", "[models][query_scaling]") {
  const query_scaling none, log_n{log_n_query_scaling{.train_length = 4096}}, llama4{llama4_query_scaling{}};
  CHECK(none.is_one());
  CHECK_FALSE(log_n.is_one());
  for (const std::int64_t p : {0, 8191, 100000}) {
    CHECK(none(p) == 1);
    CHECK(log_n(p) == log_n_query_scaling{.train_length = 4096}(p));
    CHECK(llama4(p) == llama4_query_scaling{}(p));
  }
}
