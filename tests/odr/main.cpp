// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "odr.hpp"

std::vector<odr::part*>& odr::parts() {
  static std::vector<part*> all;
  return all;
}

namespace {

int failures = 0;

void check(bool holds, const odr::part& part, const std::string& claim) {
  if (holds) return;
  std::printf("FAILED: %s: %s\n", part.name.c_str(), claim.c_str());
  ++failures;
}

/// The last line of a program that crashes.
void print(const char* what, const odr::part& part) {
  std::printf("%s %s\n", what, part.name.c_str());
  std::fflush(stdout);
}

bool runs_here(const std::string& processor) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
             avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return processor == "haswell" ? avx2 : processor == "skylake-avx512" ? avx512 : processor.empty();
#else
  return processor.empty();
#endif
}

void compare(const odr::part& a, const std::vector<odr::result>& x, const odr::part& b,
             const std::vector<odr::result>& y) {
  check(x.size() == y.size(), b, "has as many results as " + a.name);
  for (std::size_t i = 0; i < (std::min)(x.size(), y.size()); ++i) {
    check(x[i].numbers.size() == y[i].numbers.size(), b, x[i].what + " has as many numbers as " + a.name);
    const double bound = &a == &b ? 0 : x[i].bound;
    for (std::size_t n = 0; n < (std::min)(x[i].numbers.size(), y[i].numbers.size()); ++n) {
      if (std::abs(x[i].numbers[n] - y[i].numbers[n]) <= bound) continue;
      check(false, b,
            x[i].what + ", number " + std::to_string(n) + ": " + std::to_string(y[i].numbers[n]) + " where " +
                a.name + " has " + std::to_string(x[i].numbers[n]));
      break;
    }
  }
}

}  // namespace

/// The library in several files of one program, differently compiled. Objects of all of them live in one
/// heap, the results agree to rounding, and types are shared exactly if code may be.
int main() {
  std::vector<odr::part*> parts;
  for (odr::part* part : odr::parts())
    if (runs_here(part->processor))
      parts.push_back(part);
    else
      print("skipped, as this processor cannot run it:", *part);
  if (parts.size() < 2) return 1;

  for (odr::part* part : parts) print("make", *part), part->make();
  std::vector<std::vector<odr::result>> results;
  for (odr::part* part : parts) print("use", *part), results.push_back(part->use());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    print("use again", *parts[i]);
    compare(*parts[0], results[0], *parts[i], results[i]);
    compare(*parts[i], results[i], *parts[i], parts[i]->use());
  }
  for (odr::part* part : parts) print("destroy", *part), part->destroy();
  for (odr::part* part : parts) {
    print("give bad input to", *part);
    check(part->throws_if_it_may(), *part, "bad input is an exception");
  }
  for (const odr::part* a : parts)
    for (const odr::part* b : parts)
      check((a->type == b->type) == (a->processor == b->processor && a->errors == b->errors), *a,
            "shares types with " + b->name + ", or should");
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
