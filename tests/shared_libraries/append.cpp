// SPDX-License-Identifier: MIT
#include "decoder.hpp"

void decoder::append(caches& to, const std::vector<float>& k, const rope::frequency_table<float>& table) {
  const auto x = rope::bshd(k.data(), 1, tokens, heads, head_dim);
  to.half_split.append<rope::half_split>(x, x, table);
  to.interleaved.append<rope::interleaved>(x, x, table);
  to.own.append<mirrored>(x, x, table);
  to.ring.append<rope::half_split>(x, x, table);
}
