// The rotation as it is usually written in C++.

#include "other_rotations.hpp"

#include <complex>

namespace {

using rope::Index;
using table_type = rope::frequency_table<float>;

void plain_loop_half_split(float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
  const Index pairs = head_dim / 2;
  for (Index t = 0; t < tokens; ++t) {
    const float *c = table.cos(t).data(), *s = table.sin(t).data();
    for (Index h = 0; h < heads; ++h) {
      float* u = x + (t * heads + h) * head_dim;
      for (Index i = 0; i < pairs; ++i) {
        const float a = u[i], b = u[i + pairs];
        u[i] = a * c[i] - b * s[i];
        u[i + pairs] = b * c[i] + a * s[i];
      }
    }
  }
}

void plain_loop_interleaved(float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
  const Index pairs = head_dim / 2;
  for (Index t = 0; t < tokens; ++t) {
    const float *c = table.cos(t).data(), *s = table.sin(t).data();
    for (Index h = 0; h < heads; ++h) {
      float* u = x + (t * heads + h) * head_dim;
      for (Index i = 0; i < pairs; ++i) {
        const float a = u[2 * i], b = u[2 * i + 1];
        u[2 * i] = a * c[i] - b * s[i];
        u[2 * i + 1] = b * c[i] + a * s[i];
      }
    }
  }
}

void eigen_arrays(float* x, const table_type& table, Index tokens, Index heads, Index head_dim,
                  Eigen::ArrayXf& copy) {
  const Index pairs = head_dim / 2;
  for (Index t = 0; t < tokens; ++t) {
    const auto c = table.cos(t), s = table.sin(t);
    for (Index h = 0; h < heads; ++h) {
      Eigen::Map<Eigen::ArrayXf> u(x + (t * heads + h) * head_dim, pairs), v(u.data() + pairs, pairs);
      copy = u;
      u = u * c - v * s;
      v = v * c + copy * s;
    }
  }
}

void complex_product(float* x, const Eigen::ArrayXXcf& pope, Index tokens, Index heads, Index head_dim) {
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      Eigen::Map<Eigen::ArrayXcf>(reinterpret_cast<std::complex<float>*>(x + (t * heads + h) * head_dim),
                                  head_dim / 2) *= pope.col(t);
}

}  // namespace

std::vector<bench::rotation_way> bench::plain_ways() {
  return {
      {"plain_loop/half_split",
       [](float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
         return [=, &table] { plain_loop_half_split(x, table, tokens, heads, head_dim); };
       }},
      {"plain_loop/interleaved",
       [](float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
         return [=, &table] { plain_loop_interleaved(x, table, tokens, heads, head_dim); };
       }},
      {"eigen_arrays/half_split",
       [](float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
         return [=, &table, copy = Eigen::ArrayXf(head_dim / 2)]() mutable {
           eigen_arrays(x, table, tokens, heads, head_dim, copy);
         };
       }},
      {"complex_product/interleaved",
       [](float* x, const table_type& table, Index tokens, Index heads, Index head_dim) {
         Eigen::ArrayXXcf pope(head_dim / 2, tokens);
         for (Index t = 0; t < tokens; ++t) {
           pope.col(t).real() = table.cos(t);
           pope.col(t).imag() = table.sin(t);
         }
         return [=] { complex_product(x, pope, tokens, heads, head_dim); };
       }},
  };
}
