// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_MIRRORED_HPP
#define ROPE_TESTS_FUZZ_MIRRORED_HPP

#include <rope/rotation/view.hpp>

namespace fuzz {

/// A user-defined layout: the first channel with the last, the second with the one before it, ...
struct mirrored {
  static constexpr rope::Index first(rope::Index i, rope::Index /*pairs*/) { return i; }
  static constexpr rope::Index second(rope::Index i, rope::Index pairs) { return 2 * pairs - 1 - i; }
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_MIRRORED_HPP
