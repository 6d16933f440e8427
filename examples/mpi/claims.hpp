#ifndef ROPE_EXAMPLES_CLAIMS_HPP
#define ROPE_EXAMPLES_CLAIMS_HPP

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "mpi_calls.hpp"

/// The claims of a program about itself. Every rank checks them, the first rank prints them, and they decide
/// the exit code.

namespace many {

/// Numbers in [-1, 1), the same on every rank.
template <class T>
void fill(std::vector<T>& numbers, std::mt19937& random) {
  for (T& x : numbers) x = static_cast<T>(static_cast<double>(random()) * 0x1p-31 - 1);
}

template <class T>
double largest_of(const std::vector<T>& numbers) {
  double largest = 0;
  for (const T x : numbers) largest = std::max(largest, std::abs(static_cast<double>(x)));
  return largest;
}

/// The largest difference. Infinite if a number is not a number, or if the lengths differ.
template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  double largest = a.size() == b.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = difference <= largest ? largest : difference > 0 ? difference : HUGE_VAL;
  }
  return largest;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// All ranks call every function.
class claims {
 public:
  explicit claims(const job& of) : first_(of.rank() == 0) {}

  /// Prints on one rank.
  __attribute__((format(printf, 2, 3))) void print(const char* format, ...) const {
    std::va_list values;
    va_start(values, format);
    if (first_) std::vprintf(format, values), std::fflush(stdout);
    va_end(values);
  }

  /// Claims that `error` is at most `bound`, on every rank.
  void within(const std::string& what, double error, double bound) {
    double mine[] = {error, bound}, all[2];
    MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const bool holds = everywhere(error <= bound);
    print("  %-66s %7.1e <= %7.1e%s\n", what.c_str(), all[0], all[1], holds ? "" : "  FAILED");
  }
  /// Claims that a condition holds on every rank.
  void holds(const std::string& what, bool claim) {
    const bool all = everywhere(claim);
    print("  %-66s %s\n", what.c_str(), all ? "yes" : "NO: FAILED");
  }

  int exit_code() const { return failed_ ? 1 : 0; }

 private:
  bool everywhere(bool claim) {
    int mine = claim ? 1 : 0, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (all == 0) failed_ = true;
    return all != 0;
  }

  bool first_, failed_ = false;
};

}  // namespace many

#endif  // ROPE_EXAMPLES_CLAIMS_HPP
