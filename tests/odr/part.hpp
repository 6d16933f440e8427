// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ODR_PART_HPP
#define ROPE_TESTS_ODR_PART_HPP

#include <memory>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>
#include <typeinfo>

#include "odr.hpp"

// A file of the program is compiled several times, each time with its name (ODR_PART) and the processor it
// needs (ODR_PROCESSOR). Its shared code is in an unnamed namespace here: an inline function shared by two
// differently compiled files would break the rule under test.
namespace {

#if defined(__cpp_exceptions)
constexpr bool has_exceptions = true;
#else
constexpr bool has_exceptions = false;
#endif

constexpr double u = 0x1p-24;

std::vector<float> wave(rope::Index count, int seed) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(seed)) % 17) / 8 - 1;
  return x;
}

template <class Numbers>
odr::result result_of(const char* what, const Numbers& x, double bound) {
  return {what, std::vector<double>(x.data(), x.data() + x.size()), bound};
}

/// A part that stores Objects, which have change() and use().
template <class Objects>
class part_of final : public odr::part {
 public:
  part_of() {
    name = ODR_PART;
    processor = ODR_PROCESSOR;
    errors = has_exceptions ? "throws" : "aborts";
    type = typeid(rope::frequency_table<float>).name();
    odr::parts().push_back(this);
  }
  void make() override {
    kept_ = std::make_unique<Objects>();
    kept_->change();
  }
  std::vector<odr::result> use() override { return kept_->use(); }
  void destroy() override { kept_.reset(); }

  bool throws_if_it_may() override {
#if defined(__cpp_exceptions)
    try {
      rope::frequencies odd(5);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
#else
    return true;
#endif
  }

 private:
  std::unique_ptr<Objects> kept_;
};

}  // namespace

#endif  // ROPE_TESTS_ODR_PART_HPP
