// SPDX-License-Identifier: MIT
#include <rope/cache/describe.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>

#include <cstdint>
#include <rope/frequencies/axes.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <vector>

#include "support/catch.hpp"

using namespace rope;

namespace {

const std::vector<float> ones(2 * 30 * 4, 1.0f);
head_view<const float> tokens(Index batch, Index count) { return bshd(ones.data(), batch, count, 1, 4); }

}  // namespace

TEST_CASE("a cache describes each row in one line", "[cache]") {
  kv_cache<float> cache(2, 9, 1, 4);
  const int counts[] = {3, 0};
  cache.append(tokens(2, 3), tokens(2, 3), counts);
  CHECK(describe(cache) ==
        "row 0: 3 of 9 tokens, from 0 to 2, text goes on at 3; rotated keys; 3 of 3 queries without counts\n"
        "row 1: no tokens of 9, text goes on at 0; rotated keys; 0 of 3 queries without counts");
  cache.append(tokens(2, 2), tokens(2, 2));
  CHECK(describe(cache) ==
        "row 0: 5 of 9 tokens, from 0 to 4, text goes on at 5; rotated keys; up to 2 queries without counts\n"
        "row 1: 2 of 9 tokens, from 0 to 1, text goes on at 2; rotated keys; up to 2 queries without counts");
  cache.remove(3, 1, batch_row{0});
  CHECK(describe(cache) ==
        "row 0: 4 of 9 tokens, from 0 to 4, text goes on at 5; rotated keys; queries need counts\n"
        "row 1: 2 of 9 tokens, from 0 to 1, text goes on at 2; rotated keys; queries need counts");
  kv_cache<float> raw(1, 9, 1, 4, 0, key_storage::raw);
  raw.append_at(tokens(1, 2), tokens(1, 2), std::vector<std::int64_t>{7, -3});
  CHECK(describe(raw) == "row 0: 2 of 9 tokens, from 7 to -3, text goes on at 8; raw keys");
  kv_cache<float> rolled_back(2, 16, 1, 4);
  rolled_back.append(tokens(2, 2), tokens(2, 2), std::vector<int>{2, 1});
  rolled_back.append(tokens(2, 2), tokens(2, 2), std::vector<int>{1, 2});
  rolled_back.append(tokens(2, 2), tokens(2, 2));
  rolled_back.truncate(3);
  CHECK(describe(rolled_back) ==
        "row 0: 3 of 16 tokens, from 0 to 2, text goes on at 3; rotated keys; queries need counts\n"
        "row 1: 3 of 16 tokens, from 0 to 2, text goes on at 3; rotated keys; queries need counts");
  latent_cache<float> latents(1, 9, 4, 4);
  latents.append(tokens(1, 2), tokens(1, 2));
  CHECK(describe(latents) == "row 0: 2 of 9 tokens, from 0 to 1, text goes on at 2; rotated keys");
  CHECK(describe(kv_cache<float>(0, 9, 1, 4)).empty());
}

TEST_CASE("a cache of coordinates describes the positions of its tokens on all axes", "[cache]") {
  kv_cache<float> cache(1, 20, 1, 4, token_axes{3});
  const auto prompt = qwen_vl_positions({text_run{2}, vision_run{1, 2, 3}});
  cache.append_at(tokens(1, 8), tokens(1, 8), token_coordinates(prompt.coordinates));
  CHECK(describe(cache) ==
        "row 0: 8 of 20 tokens, from (0, 0, 0) to (2, 3, 4), text goes on at 5; rotated keys");
  cache.append_at(tokens(1, 1), tokens(1, 1), token_coordinates(Eigen::Array<double, 1, 3>(6.5, 0.1, -1)));
  CHECK(describe(cache) ==
        "row 0: 9 of 20 tokens, from (0, 0, 0) to (6.5, 0.1, -1), text goes on at 7.5; rotated keys");
  kv_cache<float> on_one(1, 9, 1, 4, token_axes{1});
  on_one.append_at(tokens(1, 2), tokens(1, 2), token_coordinates(Eigen::Array<double, 2, 1>(0.25, 6.5)));
  CHECK(describe(on_one) == "row 0: 2 of 9 tokens, from (0.25) to (6.5), text goes on at 7.5; rotated keys");
}

TEST_CASE("a ring describes which of its tokens it still contains", "[cache]") {
  ring_cache<float> ring(1, {.sinks = 0, .window = 4, .chunk = 2}, 1, 4),
      sinks(1, {.sinks = 1, .window = 4}, 1, 4);
  CHECK(describe(ring) == "row 0: no tokens of 5, text goes on at 0; rotated keys");
  ring.append(tokens(1, 13), tokens(1, 13));
  CHECK(describe(ring) == "row 0: 5 of 13 seen tokens, from 8 to 12, text goes on at 13; rotated keys");
  ring.truncate(12);
  CHECK(describe(ring) == "row 0: 4 of 12 seen tokens, from 8 to 11, text goes on at 12; rotated keys");
  sinks.append(tokens(1, 13), tokens(1, 13));
  CHECK(describe(sinks) == "row 0: 5 of 13 seen tokens, from 0 to 12, text goes on at 13; rotated keys");
  ring_cache<float> only_sinks(1, {.sinks = 2, .window = 1, .chunk = 1}, 1, 4);
  only_sinks.append(tokens(1, 10), tokens(1, 10));
  only_sinks.truncate(5);
  CHECK(describe(only_sinks) == "row 0: 2 of 5 seen tokens, from 0 to 1, text goes on at 5; rotated keys");
  const auto after_skip_to = [](std::int64_t position, Index chunk) {
    ring_cache<float> skips(1, {.window = 8, .chunk = chunk}, 1, 4);
    skips.append(tokens(1, 2), tokens(1, 2));
    skips.append_at(tokens(1, 1), tokens(1, 1), position);
    skips.truncate(position);
    return describe(skips);
  };
  CHECK(after_skip_to(7, 4) == "row 0: 2 of 7 seen tokens, from 0 to 1, text goes on at 7; rotated keys");
  CHECK(after_skip_to(8, 1) == "row 0: 1 of 8 seen tokens, from 1 to 1, text goes on at 8; rotated keys");
  ring_cache<float> on_axes(1, {.window = 2, .chunk = 1}, 1, 4, token_axes{2});
  on_axes.append(tokens(1, 3), tokens(1, 3));
  CHECK(describe(on_axes) ==
        "row 0: 2 of 3 seen tokens, from (1, 1) to (2, 2), text goes on at 3; rotated keys");
}
