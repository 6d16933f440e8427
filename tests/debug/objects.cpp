// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cstdint>
#include <vector>

/// One object of every type for which cmake/debug/ has a printer, printed where `stop_here` is called.

#if defined(__GNUC__)
#define ROPE_TEST_NOT_INLINED __attribute__((noinline, used))
#else
#define ROPE_TEST_NOT_INLINED
#endif

volatile int stops = 0;
ROPE_TEST_NOT_INLINED void stop_here() { stops = stops + 1; }

int main() {
  using namespace rope;
  float memory[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Eigen::half halves[] = {Eigen::half(1.5f), Eigen::half(-2)};
  Eigen::bfloat16 bfloats[] = {Eigen::bfloat16(0.75f), Eigen::bfloat16(-3)};
  const head_view<float> dense = bshd(memory, 1, 2, 1, 6);
  [[maybe_unused]] const head_view<float> windowed = dense.channels(4, 2);
  const head_view<const Eigen::half> of_halves = bshd(static_cast<const Eigen::half*>(halves), 1, 1, 1, 2);
  [[maybe_unused]] const head_view<Eigen::bfloat16> of_bfloats = bshd(bfloats, 1, 1, 1, 2);
  const frequencies two_pairs(4, 16.0);
  const frequency_table<float> table(two_pairs, -1, 2);
  [[maybe_unused]] const placed_table<float> placed = table.at_channel(2);
  kv_cache<float> cache(1, 3, 1, 6);
  cache.append(dense, dense);
  ring_cache<float> ring(1, {.window = 4, .chunk = 2}, 1, 6);
  ring.append(dense, dense);
  latent_cache<Eigen::half> latents(1, 2, 2, 2);
  latents.append(of_halves, of_halves);
  [[maybe_unused]] const number_array<double> numbers(3, 1, 0.5);
  const std::vector<int> blocks = {0}, lengths = {2};
  [[maybe_unused]] const page_view<float> pages({dense, dense}, blocks, lengths, key_storage::raw);
  const model_rope model({.source = "my file", .architecture = "mine"},
                         {{.layer_type = "full_attention",
                           .layout = layout_kind::half_split,
                           .head_dim = 6,
                           .first_channel = 2,
                           .frequencies = two_pairs,
                           .rule = "default",
                           .base = 16}},
                         {.types = {"full_attention", "full_attention"}, .without_rope = {1}});
  [[maybe_unused]] const layer_group group = model.groups()[0];
  stop_here();
  return 0;
}
