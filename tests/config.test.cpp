// SPDX-License-Identifier: MIT
#include <rope/config.hpp>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "support/catch.hpp"
#include "support/errors.hpp"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the index type is Eigen's, signed and as wide as a pointer", "[library][config]") {
  STATIC_REQUIRE(std::is_same_v<rope::Index, Eigen::Index>);
  STATIC_REQUIRE(std::is_signed_v<rope::Index>);
  STATIC_REQUIRE(sizeof(rope::Index) == sizeof(void*));
}

TEST_CASE("the version is written once, as text and as numbers", "[library][config]") {
  CHECK(std::string(ROPE_VERSION_STRING) ==
        TEXT(ROPE_VERSION_MAJOR) "." TEXT(ROPE_VERSION_MINOR) "." TEXT(ROPE_VERSION_PATCH));
}

// tests/odr links translation units with different flags, and tests that they do not mix.
TEST_CASE("the inline namespace contains the version and how the code was compiled", "[library][config]") {
  STATIC_REQUIRE(std::is_same_v<rope::Index, rope::ROPE_ABI::Index>);
  const std::string abi = TEXT(ROPE_ABI);
  CAPTURE(abi);
  CHECK(abi.rfind("v" TEXT(ROPE_VERSION_MAJOR) "_", 0) == 0);
#if defined(__AVX512F__)
  CHECK(contains(abi, "_avx512"));
#elif defined(__AVX2__)
  CHECK(contains(abi, "_avx2_"));
#elif defined(__x86_64__) && !defined(__SSE3__)
  CHECK(contains(abi, "_baseline_"));
#endif
#if defined(__x86_64__)
#if defined(__FMA__)
  CHECK(contains(abi, "_fma_"));
#else
  CHECK(contains(abi, "_nofma_"));
#endif
#endif
#if defined(__F16C__)
  CHECK(contains(abi, "_f16c_"));
#else
  CHECK(contains(abi, "_nof16c_"));
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
  CHECK(contains(abi, "_fast_"));
#else
  CHECK(contains(abi, "_ieee_"));
#endif
  CHECK(contains(abi, "_throws_"));  // this test is one with exceptions
  CHECK(abi.substr(abi.rfind('_')) == (sizeof(rope::Index) < sizeof(void*) ? "_intindex" : "_index"));
}

TEST_CASE("errors are thrown as the named type, also from an if without braces", "[library][config]") {
  const auto check = [](bool bad) {
    if (bad)
      ROPE_THROW(std::out_of_range, std::string("the rule, got ") + "7");
    else
      return 1;
    return 2;
  };
  CHECK(testing::throws_saying<std::out_of_range>([&] { check(true); }, "the rule, got 7"));
  CHECK(check(false) == 1);
}

TEST_CASE("an assertion that holds does nothing", "[library][config]") {
  int evaluations = 0;
  const auto holds = [&evaluations] { return ++evaluations > 0; };
  ROPE_ASSERT(holds());
  CHECK(evaluations <= 1);
  CHECK(holds());
}
