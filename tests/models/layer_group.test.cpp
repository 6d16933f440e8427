// SPDX-License-Identifier: MIT
#include <rope/models/layer_group.hpp>

#include "support/catch.hpp"
#include "support/model_parts.hpp"

TEST_CASE("a group has its numbers by name", "[models][layer_group]") {
  auto group = testing::group_named("");
  group.numbers = {{"factor", 4}};
  CHECK(group.rotary_dim() == 8);
  CHECK(group.number("factor", 1) == 4);
  CHECK(group.number("low", -1) == -1);
}
