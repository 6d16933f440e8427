// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_CHECK_HPP
#define ROPE_TESTS_FUZZ_CHECK_HPP

/// An error that a target finds ends the program, as one that a sanitizer finds does. The fuzzer, or
/// replay.cpp, then keeps its bytes.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

namespace fuzz {

[[noreturn]] inline void fail(const std::string& claim) {
  std::fprintf(stderr, "does not hold: %s\n", claim.c_str());
  std::abort();
}

inline void check(bool holds, const char* claim) {
  if (!holds) fail(claim);
}

/// The call must throw this kind of exception, and its text must name the library.
template <class Exception, class Call>
void rejects(const char* claim, const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    const std::string text = error.what();
    if (text.find("rope::") != 0 || text.size() < 20) fail(std::string(claim) + ": the text is " + text);
    return;
  } catch (const std::exception& error) {
    fail(std::string(claim) + ": another type was thrown, saying " + error.what());
  }
  fail(std::string(claim) + ": nothing was thrown");
}

/// Names of exceptions, for functions that a template inherits.
template <class Exception>
struct thrown {};
inline constexpr thrown<std::invalid_argument> invalid_argument;
inline constexpr thrown<std::out_of_range> out_of_range;
inline constexpr thrown<std::length_error> length_error;
inline constexpr thrown<std::logic_error> logic_error;  // any of them

}  // namespace fuzz

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

#endif  // ROPE_TESTS_FUZZ_CHECK_HPP
