// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ERRORS_HPP
#define ROPE_TESTS_ERRORS_HPP

/// Whether invalid input throws the right type, with the rule and the value.

#include <exception>
#include <string>

#include "catch.hpp"

namespace testing {

/// Whether `call` throws an Exception whose text contains every one of `parts`. A failing assertion prints
/// the text.
template <class Exception, class Call, class... Parts>
bool throws_saying(const Call& call, const Parts&... parts) {
  try {
    call();
    UNSCOPED_INFO("nothing was thrown");
    return false;
  } catch (const Exception& error) {
    const std::string text = error.what();
    UNSCOPED_INFO("the message was: " << text);
    return ((text.find(parts) != std::string::npos) && ...);
  } catch (const std::exception& error) {
    UNSCOPED_INFO("another type was thrown, saying: " << error.what());
    return false;
  }
}

}  // namespace testing

#endif  // ROPE_TESTS_ERRORS_HPP
