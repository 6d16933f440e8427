// SPDX-License-Identifier: MIT
// The error of 8-bit keys that guide/serve.md documents for a model, compared with its definition.
#include "../../examples/key_error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <rope/cache/kv_cache.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

using rope::Index;

namespace {

using testing::wide;

constexpr Index tokens = 40, kv_heads = 2, head_dim = 16;

/// The error of heads whose channels are integers times a scale, the largest of them 127.
wide error_by_definition(const std::vector<float>& x) {
  wide difference = 0, length = 0;
  for (std::size_t head = 0; head < x.size(); head += head_dim) {
    wide largest = 0;
    for (std::size_t d = 0; d < head_dim; ++d) largest = std::max(largest, testing::abs(wide(x[head + d])));
    for (std::size_t d = 0; d < head_dim; ++d) {
      const wide steps = x[head + d] / (largest / 127), nearest = std::nearbyint(static_cast<double>(steps)),
                 off = (steps - nearest) * largest / 127;
      difference += off * off;
      length += wide(x[head + d]) * x[head + d];
    }
  }
  return testing::sqrt(difference / length);
}

key_error error_of(const std::vector<float>& keys) {
  rope::kv_cache<float> cache(1, tokens, kv_heads, head_dim);
  const auto x = rope::bshd(keys.data(), 1, tokens, kv_heads, head_dim);
  cache.append(x, x);
  return error_of_8_bit_keys(cache);
}

}  // namespace

TEST_CASE("the error of 8-bit keys is that of its definition", "[examples]") {
  std::vector<float> keys = testing::random_channels<float>(tokens * kv_heads * head_dim, 5);
  const key_error even = error_of(keys);
  // Integers round as nearbyint does, except next to the midpoint of two.
  CHECK(std::abs(even.stored / static_cast<double>(error_by_definition(keys)) - 1) < 1e-3);
  CHECK(even.outlier < 3);
  // One channel of every head is 30 times as large, so the others are rounded to about 1 / 30 of the steps.
  for (std::size_t head = 0; head < keys.size(); head += head_dim)
    keys[head + 3] = keys[head + 3] < 0 ? -30 : 30;
  const key_error spiked = error_of(keys);
  CHECK(std::abs(spiked.stored / static_cast<double>(error_by_definition(keys)) - 1) < 1e-3);
  CHECK(spiked.outlier > 3.8);
  CHECK(spiked.transformed < spiked.stored);
  rope::hadamard_transform(rope::bshd(keys.data(), 1, tokens, kv_heads, head_dim));
  CHECK(std::abs(spiked.transformed / static_cast<double>(error_by_definition(keys)) - 1) < 1e-3);
}
