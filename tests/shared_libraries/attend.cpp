// SPDX-License-Identifier: MIT
#include <rope/cache/attention.hpp>
#include <stdexcept>

#include "decoder.hpp"

std::vector<float> decoder::attend(const caches& to, const std::vector<float>& q,
                                   const rope::frequency_table<float>& table) {
  std::vector<float> out(4 * q.size());
  const auto x = rope::bshd(q.data(), 1, tokens, heads, head_dim);
  const auto result = [&](std::size_t i) {
    return rope::bshd(out.data() + i * q.size(), 1, tokens, heads, head_dim);
  };
  rope::attention<rope::half_split>(x, to.half_split, result(0), table);
  rope::attention<rope::interleaved>(x, to.interleaved, result(1), table);
  rope::attention<mirrored>(x, to.own, result(2), table);
  rope::attention<rope::half_split>(x, to.ring, result(3), table);
  return out;
}

bool decoder::rejects_another_layout(const caches& to, const rope::frequency_table<float>& table) {
  try {
    to.half_split.check_table<rope::interleaved>(table);
    return false;
  } catch (const std::invalid_argument&) {
  }
  try {
    to.own.check_table<rope::half_split>(table);
    return false;
  } catch (const std::invalid_argument&) {
    return true;
  }
}
