// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_CATCH_HPP
#define ROPE_TESTS_CATCH_HPP

/// Catch2 2.13 and 3.x under one set of names.

// No handler around each assertion: an exception in it ends its test case, as it should, and compiling takes
// an eighth less time.
#define CATCH_CONFIG_FAST_COMPILE
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define ROPE_CATCH_MAJOR 3
#else
#include <catch2/catch.hpp>
#define ROPE_CATCH_MAJOR 2
#endif

#include <cstdint>
#include <string>

namespace testing {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;
using Catch::Matchers::WithinULP;

/// The seed of this run, printed by Catch2 and set with --rng-seed.
#if ROPE_CATCH_MAJOR >= 3
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
inline std::uint32_t seed() { return Catch::getSeed(); }
#else
using Catch::Detail::Approx;
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
inline std::uint32_t seed() { return Catch::rngSeed(); }
#endif

}  // namespace testing

#endif  // ROPE_TESTS_CATCH_HPP
