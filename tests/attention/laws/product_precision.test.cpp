// SPDX-License-Identifier: MIT
// Narrow products throw for operands that do not support them. Their results: laws/bfloat16_products.test.cpp
// and laws/integer_products.test.cpp.
#include <rope/attention/options.hpp>

#include <cstdint>
#include <rope/attention/attention.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::product_precision;
using testing::throws_saying;

}  // namespace

TEST_CASE("integer products need quantized keys and values", "[attention]") {
  const std::vector<float> x(3 * 2 * 8, 1);
  std::vector<float> out(3 * 2 * 8, 99);
  const auto q = rope::bshd(x.data(), 1, 3, 2, 8);
  const auto to = rope::bshd(out.data(), 1, 3, 2, 8);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::attention(q, q, q, to, {.products = product_precision::integers}); },
      "attention: integer products need quantized keys and values; set products to "
      "product_precision::full"));
  CHECK(out == std::vector<float>(out.size(), 99));
}

TEST_CASE(
    "integer products need keys that were rotated before quantization, and heads of at most 65536 channels",
    "[attention]") {
  std::vector<float> x(65538, 1), out(65538, 99), scales(2, 0.1f);
  const std::vector<std::int8_t> integers(65538, 3);
  const rope::attention_options options = {.products = product_precision::integers};
  const auto attend = [&](rope::Index dim, auto... table) {
    const auto q = rope::bshd(static_cast<const float*>(x.data()), 1, 1, 1, dim);
    const auto k = rope::bshd(integers.data(), scales.data(), 1, 1, 1, dim);
    if constexpr (sizeof...(table) > 0)
      rope::attention<rope::half_split>(q, k, k, rope::bshd(out.data(), 1, 1, 1, dim), table..., options);
    else
      rope::attention(q, k, k, rope::bshd(out.data(), 1, 1, 1, dim), options);
  };
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attend(8, rope::frequency_table<float>(rope::frequencies(8), 1)); },
      "attention: integer products need keys that were rotated before quantization"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attend(65537); }, "attention: integer products need a head_dim of at most 65536, got 65537"));
  CHECK(out == std::vector<float>(out.size(), 99));
  attend(65536);
  CHECK(out[0] < 1);
}

TEST_CASE("integers have no bfloat16 products", "[attention]") {
  const std::vector<float> x(8, 1), scales(1, 0.1f);
  std::vector<float> out(8, 99);
  const std::vector<std::int8_t> integers(8, 3);
  const auto k = rope::bshd(integers.data(), scales.data(), 1, 1, 1, 8);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::attention(rope::bshd(x.data(), 1, 1, 1, 8), k, k, rope::bshd(out.data(), 1, 1, 1, 8),
                        {.products = product_precision::bfloat16});
      },
      "attention: products in bfloat16 need queries, keys, values and outputs of bfloat16"));
  CHECK(out == std::vector<float>(8, 99));
}
