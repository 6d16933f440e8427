// The rotation as it is usually written in C++.

#include "other_rotations.hpp"

#include <rope/rotation.hpp>

#include <complex>

using rope::half_split;
using rope::Index;
using rope::interleaved;
using table_type = rope::frequency_table<float>;

// The compiler knows that the table and both halves of a head do not overlap. Otherwise the loops would check
// it for every head.
template <>
void bench::plain_loop<half_split>(float* x, const table_type& table, const rotated_shape& s) {
  const Index pairs = s.head_dim / 2;
  for (Index t = 0; t < s.tokens; ++t) {
    const float* __restrict c = table.cos(1 + t).data(), * __restrict sine = table.sin(1 + t).data();
    for (Index h = 0; h < s.heads; ++h) {
      float* __restrict u = x + (t * s.heads + h) * s.head_dim, * __restrict v = u + pairs;
      for (Index i = 0; i < pairs; ++i) {
        const float a = u[i], b = v[i];
        u[i] = a * c[i] - b * sine[i];
        v[i] = b * c[i] + a * sine[i];
      }
    }
  }
}

template <>
void bench::plain_loop<interleaved>(float* x, const table_type& table, const rotated_shape& s) {
  const Index pairs = s.head_dim / 2;
  for (Index t = 0; t < s.tokens; ++t) {
    const float* __restrict c = table.cos(1 + t).data(), * __restrict sine = table.sin(1 + t).data();
    for (Index h = 0; h < s.heads; ++h) {
      float* __restrict u = x + (t * s.heads + h) * s.head_dim;
      for (Index i = 0; i < pairs; ++i) {
        const float a = u[2 * i], b = u[2 * i + 1];
        u[2 * i] = a * c[i] - b * sine[i];
        u[2 * i + 1] = b * c[i] + a * sine[i];
      }
    }
  }
}

template <>
std::function<void(float*)> bench::eigen_expression<half_split>(const table_type& table,
                                                                const rotated_shape& s) {
  return [=, &table, copy = Eigen::ArrayXf(s.head_dim / 2)](float* x) mutable {
    const Index pairs = s.head_dim / 2;
    for (Index t = 0; t < s.tokens; ++t) {
      const auto c = table.cos(1 + t), sine = table.sin(1 + t);
      for (Index h = 0; h < s.heads; ++h) {
        Eigen::Map<Eigen::ArrayXf> u(x + (t * s.heads + h) * s.head_dim, pairs), v(u.data() + pairs, pairs);
        copy = u;
        u = u * c - v * sine;
        v = v * c + copy * sine;
      }
    }
  };
}

template <>
std::function<void(float*)> bench::eigen_expression<interleaved>(const table_type& table,
                                                                 const rotated_shape& s) {
  Eigen::ArrayXXcf factors(s.head_dim / 2, s.tokens);
  for (Index t = 0; t < s.tokens; ++t) {
    factors.col(t).real() = table.cos(1 + t);
    factors.col(t).imag() = table.sin(1 + t);
  }
  return [=, factors = std::move(factors)](float* x) {
    auto* head = reinterpret_cast<std::complex<float>*>(x);
    for (Index t = 0; t < s.tokens; ++t)
      for (Index h = 0; h < s.heads; ++h, head += s.head_dim / 2)
        Eigen::Map<Eigen::ArrayXcf>(head, s.head_dim / 2) *= factors.col(t);
  };
}
