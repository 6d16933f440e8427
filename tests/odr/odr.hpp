// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ODR_HPP
#define ROPE_TESTS_ODR_HPP

#include <string>
#include <vector>

/// A program of several files that use the library, each compiled in its own way: compiler, optimisation,
/// instruction set, with and without exceptions. Every file is one `part`. Nothing here includes the library:
/// main.cpp and the types that cross it are the same for every way of compiling the library.

namespace odr {

struct result {
  std::string what;
  std::vector<double> numbers;
  double bound;  // the largest difference of two parts
};

class part {
 public:
  virtual ~part() = default;
  /// Makes objects of the library, which the part keeps.
  virtual void make() = 0;
  /// Uses them, while other parts have theirs in the same heap.
  virtual std::vector<result> use() = 0;
  /// Destroys them.
  virtual void destroy() = 0;
  /// Whether invalid input is reported as the part was compiled to do.
  virtual bool throws_if_it_may() = 0;

  std::string name;       // how the part was compiled
  std::string processor;  // the processor features it needs beyond the baseline
  std::string errors;     // its behaviour on invalid input
  std::string type;       // the mangled name of a type of the library
};

/// The parts of the program, in the order in which it was linked.
std::vector<part*>& parts();

}  // namespace odr

#endif  // ROPE_TESTS_ODR_HPP
