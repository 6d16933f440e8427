// SPDX-License-Identifier: MIT
// Numbers in the texts of errors.
#include <rope/base/message.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

/// An index of a user-defined class.
struct token {
  rope::Index place;
  operator rope::Index() const { return place; }
};

}  // namespace

TEST_CASE("messages name the library, and their numbers read back exactly", "[base]") {
  using rope::detail::message;
  CHECK(message("rotate", ": ", 3, " and ", -4) == "rope::rotate: 3 and -4");
  CHECK(message(std::numeric_limits<std::int64_t>::min()) == "rope::-9223372036854775808");
  CHECK(message(std::numeric_limits<std::uint64_t>::max()) == "rope::18446744073709551615");
  CHECK(message(token{7}, ", ", 0.1, ", ", 10000.0) == "rope::7, 0.10000000000000001, 10000");
  std::string text = "a";
  rope::detail::append(text, {"b"});
  rope::detail::append(text, {2.5});
  CHECK(text == "ab2.5");
}

TEST_CASE("numbers are written with the fewest digits that read back exactly", "[base]") {
  using rope::detail::exact_digits;
  CHECK(exact_digits(10000) == "10000");
  CHECK(exact_digits(10000.25) == "10000.25");
  CHECK(exact_digits(1e300) == "1e+300");
  CHECK(exact_digits(0.1) == "0.1");
  CHECK(exact_digits(1.0 / 3) == "0.3333333333333333");     // 16 digits
  CHECK(exact_digits(0.1 + 0.2) == "0.30000000000000004");  // 17
  CHECK(exact_digits(12345.678901) == "12345.678901");      // 11
  CHECK(exact_digits(1234567890.0) == "1234567890");        // 10
}

TEST_CASE("a broken rule is reported with both numbers", "[base]") {
  using rope::detail::check_rule;
  CHECK_NOTHROW(check_rule("f", true, "one is two", 1, 2));
  CHECK(testing::throws_saying<std::invalid_argument>([] { check_rule("f", false, "one is two", 1, 2); },
                                                      "rope::f: one is two, got 1 and 2"));
}
