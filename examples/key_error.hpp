// The error of the keys of a cache in 8 bits, without and after hadamard_transform.
//
//     const key_error error = error_of_8_bit_keys(cache);
//     std::printf("%.2f %%\n", 100 * error.stored);
//
// The transform changes no score q . k and no length, so both errors compare.

#ifndef ROPE_EXAMPLES_KEY_ERROR_HPP
#define ROPE_EXAMPLES_KEY_ERROR_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/rope.hpp>
#include <vector>

/// error = sqrt(sum |k - k'|^2 / sum |k|^2) over all heads of keys k, with k' = integers times a scale
struct key_error {
  double stored = 0, transformed = 0;  // as they are, and after hadamard_transform
  double outlier = 0;  // the largest channel over the root mean square of its head, on average
};

/// \param x  heads [1, tokens, heads, head_dim] in one piece
inline double error_of_8_bits(rope::head_view<const float> x) {
  std::vector<std::int8_t> integers(static_cast<std::size_t>(x.size()));
  std::vector<float> scales(static_cast<std::size_t>(x.tokens * x.heads)), back(integers.size());
  const auto narrow = rope::thd(integers.data(), scales.data(), x.tokens, x.heads, x.head_dim);
  rope::quantize(x, narrow);
  rope::dequantize(narrow, rope::thd(back.data(), x.tokens, x.heads, x.head_dim));
  const Eigen::Map<const Eigen::ArrayXf> exact(x.data, x.size()), got(back.data(), x.size());
  return (got.cast<double>() - exact.cast<double>()).matrix().norm() / exact.cast<double>().matrix().norm();
}

/// Throws:  std::invalid_argument if rows of the cache differ in size, or head_dim is no power of two
template <class T>
key_error error_of_8_bit_keys(const rope::kv_cache<T>& cache) {
  const auto keys = cache.keys();
  const rope::Index tokens = keys.batch * keys.tokens;
  std::vector<float> x;
  key_error error;
  for (rope::Index b = 0; b < keys.batch; ++b)
    for (rope::Index t = 0; t < keys.tokens; ++t)
      for (rope::Index h = 0; h < keys.heads; ++h) {
        const auto head =
            Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>(keys.at(b, t, h), keys.head_dim)
                .template cast<double>()
                .eval();
        for (const double channel : head) x.push_back(static_cast<float>(channel));
        const double mean = std::sqrt(head.square().mean());
        error.outlier += head.abs().maxCoeff() / mean / static_cast<double>(tokens * keys.heads);
      }
  const auto heads = rope::thd(x.data(), tokens, keys.heads, Eigen::Index{keys.head_dim});
  error.stored = error_of_8_bits(heads);
  rope::hadamard_transform(heads);
  error.transformed = error_of_8_bits(heads);
  return error;
}

#endif  // ROPE_EXAMPLES_KEY_ERROR_HPP
