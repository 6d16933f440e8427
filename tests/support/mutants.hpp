// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_SUPPORT_MUTANTS_HPP
#define ROPE_TESTS_SUPPORT_MUTANTS_HPP

#if __cplusplus >= 202002L  // CMake tries the compiler with other standards

/// Many mutants in one program, selected by the environment variable ROPE_MUTANT; see mutate_many.py. The
/// program contains `a + rope_mutant::plus_minus<7>() + b` in place of `a + b`: the same operator, so that
/// precedence does not change. At compile time every mutant is off.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace rope_mutant {

constexpr int most = 4000;
inline unsigned char reached[most];  // written by any thread, and only ever to 1

inline int chosen() {
  const char* text = std::getenv("ROPE_MUTANT");
  return text == nullptr ? -1 : std::atoi(text);
}
inline const int active = chosen();

/// Appends the mutants that the program has reached to the file named by ROPE_MUTANTS_REACHED.
struct reporter {
  ~reporter() {
    const char* name = std::getenv("ROPE_MUTANTS_REACHED");
    std::FILE* file = name == nullptr ? nullptr : std::fopen(name, "a");
    if (file == nullptr) return;
    for (int k = 0; k < most; ++k)
      if (reached[k] != 0) std::fprintf(file, "%d\n", k);
    std::fclose(file);
  }
};
inline const reporter at_exit;

inline bool is_active(int k) noexcept {
  reached[k] = 1;
  return active == k;
}

constexpr bool on(int k) noexcept { return std::is_constant_evaluated() ? false : is_active(k); }

#define ROPE_MUTANT_OPERATOR(name, OP, OTHER)                                          \
  template <int K>                                                                     \
  struct name {};                                                                      \
  template <int K, class A>                                                            \
  struct name##_left {                                                                 \
    A&& a;                                                                             \
  };                                                                                   \
  template <class A, int K>                                                            \
  constexpr name##_left<K, A> operator OP(A&& a, name<K>) {                            \
    return {std::forward<A>(a)};                                                       \
  }                                                                                    \
  template <int K, class A, class B>                                                   \
  constexpr auto operator OP(name##_left<K, A> left, B&& b) {                          \
    return on(K) ? (left.a OTHER std::forward<B>(b)) : (left.a OP std::forward<B>(b)); \
  }
ROPE_MUTANT_OPERATOR(plus_minus, +, -)
ROPE_MUTANT_OPERATOR(minus_plus, -, +)
ROPE_MUTANT_OPERATOR(times_over, *, /)
ROPE_MUTANT_OPERATOR(over_times, /, *)
ROPE_MUTANT_OPERATOR(rest_times, %, *)
ROPE_MUTANT_OPERATOR(less_at_most, <, <=)
ROPE_MUTANT_OPERATOR(less_more, <, >)
ROPE_MUTANT_OPERATOR(at_most_less, <=, <)
ROPE_MUTANT_OPERATOR(more_at_least, >, >=)
ROPE_MUTANT_OPERATOR(more_less, >, <)
ROPE_MUTANT_OPERATOR(at_least_more, >=, >)
ROPE_MUTANT_OPERATOR(same_other, ==, !=)
ROPE_MUTANT_OPERATOR(other_same, !=, ==)
ROPE_MUTANT_OPERATOR(up_down, <<, >>)
ROPE_MUTANT_OPERATOR(down_up, >>, <<)
ROPE_MUTANT_OPERATOR(both_any, &, |)
ROPE_MUTANT_OPERATOR(any_both, |, &)
ROPE_MUTANT_OPERATOR(one_both, ^, &)
#undef ROPE_MUTANT_OPERATOR

// The right operand is a lambda, which is called only if it is needed.
#define ROPE_MUTANT_LOGIC(name, OP, OTHER)                      \
  template <int K>                                              \
  struct name {};                                               \
  template <int K>                                              \
  struct name##_left {                                          \
    bool a;                                                     \
  };                                                            \
  template <class A, int K>                                     \
  constexpr name##_left<K> operator OP(A&& a, name<K>) {        \
    return {static_cast<bool>(a)};                              \
  }                                                             \
  template <int K, class B>                                     \
  constexpr bool operator OP(name##_left<K> left, const B& b) { \
    return on(K) ? (left.a OTHER b()) : (left.a OP b());        \
  }
ROPE_MUTANT_LOGIC(and_or, &&, ||)
ROPE_MUTANT_LOGIC(or_and, ||, &&)
#undef ROPE_MUTANT_LOGIC

// Assignments group from the right.
#define ROPE_MUTANT_ASSIGNMENT(name, OP, OTHER)                 \
  template <int K>                                              \
  struct name {};                                               \
  template <int K, class B>                                     \
  struct name##_right {                                         \
    B&& b;                                                      \
  };                                                            \
  template <int K, class B>                                     \
  constexpr name##_right<K, B> operator OP(name<K>, B&& b) {    \
    return {std::forward<B>(b)};                                \
  }                                                             \
  template <int K, class A, class B>                            \
  constexpr void operator OP(A&& a, name##_right<K, B> right) { \
    if (on(K))                                                  \
      a OTHER std::forward<B>(right.b);                         \
    else                                                        \
      a OP std::forward<B>(right.b);                            \
  }
ROPE_MUTANT_ASSIGNMENT(add_take, +=, -=)
ROPE_MUTANT_ASSIGNMENT(take_add, -=, +=)
ROPE_MUTANT_ASSIGNMENT(scale_divide, *=, /=)
ROPE_MUTANT_ASSIGNMENT(divide_scale, /=, *=)
#undef ROPE_MUTANT_ASSIGNMENT

template <int K>
struct sign {};
template <int K, class B>
constexpr auto operator*(sign<K>, const B& b) {
  return on(K) ? static_cast<decltype(-b)>(b) : -b;
}

template <int K>
struct negation {};
template <int K, class B>
constexpr bool operator!=(negation<K>, const B& b) {
  return on(K) ? static_cast<bool>(b) : !b;
}

/// std::min or std::max by `Least`, and the other one if the mutant is on.
template <int K, bool Least, class T>
constexpr const T& either(const T& a, const T& b) {
  return Least != on(K) ? (b < a ? b : a) : (a < b ? b : a);
}

enum class whole { floor, ceil, trunc, round };
template <whole Way, class T>
T rounded(T x) {
  using std::ceil;
  using std::floor;
  using std::round;
  using std::trunc;
  return Way == whole::floor   ? floor(x)
         : Way == whole::ceil  ? ceil(x)
         : Way == whole::trunc ? trunc(x)
                               : round(x);
}
template <int K, whole From, whole To, class T>
T rounded_as(T x) {
  return on(K) ? rounded<To>(x) : rounded<From>(x);
}

}  // namespace rope_mutant

#endif
#endif
