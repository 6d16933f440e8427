// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_BYTES_HPP
#define ROPE_TESTS_FUZZ_BYTES_HPP

/// The bytes of a fuzzer, read as bounded choices: every sequence of bytes is a valid test, and a change of
/// one byte changes one choice.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace fuzz {

/// Zeros after the bytes have ended, so that the rest of a test takes its first choices.
class bytes {
 public:
  bytes(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::span<const std::uint8_t> rest() const { return left_; }

  std::uint64_t bits(std::size_t count = 8) {
    std::uint64_t value = 0;
    for (; count > 0; --count) value = value << 8 | byte();
    return value;
  }

  /// In [0, most], from as few bytes as distinguish the choices.
  long up_to(long most) {
    if (most <= 0) return 0;
    const auto choices = static_cast<std::uint64_t>(most) + 1;
    return static_cast<long>(bits(choices <= 0x100 ? 1 : choices <= 0x10000 ? 2 : 8) % choices);
  }
  long between(long least, long most) { return least + up_to(most - least); }
  /// Rarely true for a large n, and never after the bytes have ended.
  bool one_in(long n) { return up_to(n - 1) == n - 1; }
  bool coin() { return one_in(2); }

  template <class List>
  const auto& one_of(const List& list) {
    return list[static_cast<std::size_t>(up_to(static_cast<long>(std::size(list)) - 1))];
  }

  /// Small ones, the neighbours of powers of two, or any.
  std::int64_t integer() {
    switch (up_to(3)) {
      case 0:
        return between(-3, 40);
      case 1:
      case 2: {
        const auto power = std::uint64_t{1} << up_to(63);
        const auto near = static_cast<std::int64_t>(power + bits(1) % 5 - 2);
        return coin() ? near : static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(near));
      }
      default:
        return static_cast<std::int64_t>(bits());
    }
  }

  /// A number that models have, a special one, or any.
  double real() {
    static constexpr double common[] = {1,    2,    0.5,  4,   8,   32,  64,   128,
                                        1024, 4096, 8192, 1e4, 5e5, 1e6, 0.25, 0.1};
    using limits = std::numeric_limits<double>;
    static constexpr double special[] = {0,
                                         -0.0,
                                         -1,
                                         0x1p24,
                                         0x1p31,
                                         0x1p53,
                                         0x1p63,
                                         0x1p64,
                                         1e30,
                                         1e300,
                                         -1e300,
                                         1e-300,
                                         limits::denorm_min(),
                                         (limits::max)(),
                                         limits::infinity(),
                                         -limits::infinity(),
                                         limits::quiet_NaN()};
    switch (up_to(7)) {
      case 0:
      case 1:
      case 2:
        return one_of(common);
      case 3:
        return one_of(special);
      case 4:
        return static_cast<double>(integer());
      case 5:
      case 6:
        return moderate();
      default: {
        const std::uint64_t any = bits();
        double value = 0;
        std::memcpy(&value, &any, sizeof value);
        return value;
      }
    }
  }

  /// In [0, 256), a multiple of 2^-8.
  double moderate() { return static_cast<double>(bits(2)) / 256; }

 private:
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const std::uint8_t first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }

  std::span<const std::uint8_t> left_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_BYTES_HPP
