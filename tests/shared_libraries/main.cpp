// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdio>
#include <exception>
#include <rope/attention/attention.hpp>

#include "decoder.hpp"

/// Keys that one library rotated are read by another, by the value of their layout: hidden symbols have an
/// address in each.
int main() {
  using namespace decoder;
  std::vector<float> x(tokens * heads * head_dim), expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 19) / 8 - 1;
  const rope::frequency_table<float> table(rope::frequencies(head_dim), tokens);
  caches written = {{1, tokens, heads, head_dim},
                    {1, tokens, heads, head_dim},
                    {1, tokens, heads, head_dim},
                    {1, {.window = tokens}, heads, head_dim}};
  try {
    append(written, x, table);
    const std::vector<float> got = attend(written, x, table);
    const auto all = rope::bshd(x.data(), 1, tokens, heads, head_dim);
    const auto out = rope::bshd(expected.data(), 1, tokens, heads, head_dim);
    const auto same_as = [&](std::size_t i) {
      for (std::size_t j = 0; j < x.size(); ++j)
        if (!(std::abs(got[i * x.size() + j] - expected[j]) <= 1e-5f)) {
          std::printf("cache %zu, channel %zu: %g instead of %g\n", i, j,
                      static_cast<double>(got[i * x.size() + j]), static_cast<double>(expected[j]));
          return false;
        }
      return true;
    };
    rope::attention<rope::half_split>(all, all, all, out, table);
    if (!same_as(0) || !same_as(3)) return 1;
    rope::attention<rope::interleaved>(all, all, all, out, table);
    if (!same_as(1)) return 1;
    rope::attention<mirrored>(all, all, all, out, table);
    if (!same_as(2)) return 1;
    if (!rejects_another_layout(written, table)) {
      std::puts("keys were read with another layout than theirs");
      return 1;
    }
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
  return 0;
}
