// SPDX-License-Identifier: MIT
// Attention to every storage of keys, copies of objects that own memory, and calls that rotate, with memory
// for no allocation, for one, two, ... until they succeed, as in failing_calls.cpp.

#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "failures.hpp"
#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/tensor.hpp"

using namespace rope;

namespace {

// Declared here, because names in the global namespace would shadow those of the headers.
using testing::batch, testing::tokens, testing::heads, testing::kv_heads, testing::head_dim;
using testing::check_making, testing::check_writing, testing::failures_of, testing::operands;

/// The numbers of heads, to compare.
template <class T>
std::vector<std::remove_const_t<T>> numbers_of(const head_view<T>& x) {
  std::vector<std::remove_const_t<T>> numbers;
  testing::for_each_head(x, [&](Index row, Index t, Index h) {
    numbers.insert(numbers.end(), x.at(row, t, h), x.at(row, t, h) + x.head_dim);
  });
  return numbers;
}

bool equal_all(const auto& a, const auto& b) { return a.rows() == b.rows() && (a == b).all(); }

}  // namespace

TEST_CASE("cached attention without scratch memory leaks nothing, and is right once it has it", "[noalloc]") {
  operands x;
  const auto q = x.wide(x.q), out = x.wide(x.out), k = x.narrow(x.k), v = x.narrow(x.v);
  const auto few = q.token_range(0, 1), few_out = out.token_range(0, 1);
  const auto check = [&](auto cache, const attention_options& options = {}) {
    testing::append_tokens<half_split>(cache, k, v, x.table);
    const auto all = [&] { attention<half_split>(q, cache, out, x.table, options); };
    const auto step = [&] { attention<half_split>(few, cache, few_out, x.table, options); };
    check_writing(x.out, all);
    check_writing(x.out, step);
  };
  const ring_policy ring = {.sinks = 2, .window = 30, .chunk = tokens};
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    CAPTURE(storage == key_storage::raw);
    check(kv_cache<float>(batch, tokens, kv_heads, head_dim, head_dim, storage));
    check(kv_cache<Eigen::bfloat16>(batch, tokens, kv_heads, head_dim, head_dim, storage));
    check(kv_cache<std::int8_t>(batch, tokens, kv_heads, head_dim, head_dim, storage));
    check(ring_cache<float>(batch, ring, kv_heads, head_dim, head_dim, storage));
    check(ring_cache<std::int8_t>(batch, ring, kv_heads, head_dim, head_dim, storage));
  }
  check(kv_cache<std::int8_t>(batch, tokens, kv_heads, head_dim), {.products = product_precision::integers});
}

TEST_CASE("attention with bfloat16 products without scratch memory leaks nothing", "[noalloc]") {
  using testing::random_channels;
  const auto q = random_channels<Eigen::bfloat16>(batch * tokens * heads * head_dim, 1),
             k = random_channels<Eigen::bfloat16>(batch * tokens * kv_heads * head_dim, 2);
  std::vector<Eigen::bfloat16> out(q.size());
  const auto wide = bshd(q.data(), batch, tokens, heads, head_dim);
  const auto narrow = bshd(k.data(), batch, tokens, kv_heads, head_dim);
  const auto written = bshd(out.data(), batch, tokens, heads, head_dim);
  std::vector<float> numbers(out.size());
  check_writing(numbers, [&] {
    attention(wide, narrow, narrow, written, {.products = product_precision::bfloat16});
    std::copy(out.begin(), out.end(), numbers.begin());
  });
}

TEST_CASE("attention to tokens on axes, to latents and to pages without scratch memory leaks nothing",
          "[noalloc]") {
  operands x;
  const auto q = x.wide(x.q), out = x.wide(x.out), k = x.narrow(x.k), v = x.narrow(x.v);
  const frequencies f(head_dim);
  const frequency_table<float> placed(on_axes(f, contiguous_sections({2, 3, 3})), grid_positions({1, 5, 8}));
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    CAPTURE(storage == key_storage::raw);
    kv_cache<float> cache(batch, tokens, kv_heads, head_dim, token_axes{3}, head_dim, storage);
    if (storage == key_storage::raw)
      cache.append_at(k, v, token_coordinates(grid_positions({1, 5, 8})));
    else
      cache.append<half_split>(k, v, placed);
    const frequency_table<float> stored(on_axes(f, contiguous_sections({2, 3, 3})), cache.coordinates());
    const auto& read_by = storage == key_storage::raw ? stored : placed;
    check_writing(x.out, [&] { attention<half_split>(q, cache, out, read_by); });
  }

  constexpr Index latent_dim = 12, rotary_dim = 4;
  const frequency_table<float> few_pairs(frequencies(rotary_dim), tokens);
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    CAPTURE(storage == key_storage::raw);
    latent_cache<Eigen::bfloat16> cache(batch, tokens, latent_dim, rotary_dim, storage);
    const auto latents = k.head_range(0, 1).channels(0, latent_dim),
               parts = k.head_range(0, 1).channels(latent_dim, rotary_dim);
    testing::append_tokens<half_split>(cache, latents, parts, few_pairs);
    check_writing(x.out, [&] {
      attention<half_split>(q, cache, out.channels(0, latent_dim), few_pairs, {.scale = 0.25});
    });
  }

  constexpr Index page_size = 8, pages = batch * tokens / page_size;
  const std::vector<int> blocks = {3, 0, 9, 6, 1, 2, 4, 8, 5, 7}, lengths = {int(tokens), int(tokens)};
  std::vector<float> keys(std::size_t(pages * page_size * kv_heads * head_dim)), values(keys.size());
  const page_view<float> view({.keys = bshd(keys.data(), pages, page_size, kv_heads, head_dim),
                               .values = bshd(values.data(), pages, page_size, kv_heads, head_dim)},
                              blocks, lengths);
  write_pages<half_split>(k, v, view, x.table);
  check_writing(x.out, [&] { attention<half_split>(q, view, out, x.table); });
  std::vector<std::int8_t> narrow_keys(keys.size()), narrow_values(keys.size());
  std::vector<float> key_scales(std::size_t(pages * page_size * kv_heads)), value_scales(key_scales.size());
  const page_view<std::int8_t> integers(
      {.keys = bshd(narrow_keys.data(), key_scales.data(), pages, page_size, kv_heads, head_dim),
       .values = bshd(narrow_values.data(), value_scales.data(), pages, page_size, kv_heads, head_dim)},
      blocks, lengths);
  write_pages<half_split>(k, v, integers, x.table);
  check_writing(x.out, [&] { attention<half_split>(q, integers, out, x.table); });
  check_writing(x.out, [&] {
    attention<half_split>(q, integers, out, x.table, {.products = product_precision::integers});
  });
}

TEST_CASE("coordinates, the bias of pope keys and projected contexts without memory leak nothing",
          "[noalloc]") {
  const Eigen::ArrayXXi places = Eigen::ArrayXXi::Constant(7, 3, 5);
  const auto same_places = [](const token_coordinates& a, const token_coordinates& b) {
    return equal_all(a.coordinates(), b.coordinates());
  };
  check_making([&] { return token_coordinates(places); }, same_places);
  const token_coordinates coordinates(places);
  check_making([&] { return coordinates; }, same_places);

  const Eigen::ArrayXXf phases = Eigen::ArrayXXf::Constant(3, 4, -1.0f);
  const auto same_bias = [](const pope_bias& a, const pope_bias& b) {
    return a.heads() == b.heads() && a.channels() == b.channels() && a.head(2)[3].cos == b.head(2)[3].cos;
  };
  check_making([&] { return pope_bias(phases); }, same_bias);
  const pope_bias bias(phases);
  check_making([&] { return bias; }, same_bias);

  using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Index dim = heads * head_dim;
  const std::vector<float> weights = testing::random_channels<float>(dim * dim, 6);
  const multi_head_attention<float, half_split> block({.q = {weights.data(), dim, dim},
                                                       .k = {weights.data(), kv_heads * head_dim, dim},
                                                       .v = {weights.data(), kv_heads * head_dim, dim},
                                                       .o = {weights.data(), dim, dim}},
                                                      {.heads = heads, .kv_heads = kv_heads});
  const rows x = rows::Constant(20, dim, 0.5f);
  const frequency_table<float> table(frequencies(head_dim), 20);
  const std::vector<int> offsets = {0, 7, 20};
  const auto project = [&] {
    return block.project_context(x, 1, table, segments<int>{std::span<const int>(offsets)});
  };
  const auto same_context = [](const projected_context<float>& a, const projected_context<float>& b) {
    return numbers_of(a.keys()) == numbers_of(b.keys()) && numbers_of(a.values()) == numbers_of(b.values());
  };
  check_making(project, same_context);
  const projected_context<float> context = project();
  check_making([&] { return context; }, same_context);
}

TEST_CASE("a copy without memory leaks nothing", "[noalloc]") {
  operands x;
  const auto k = x.narrow(x.k), v = x.narrow(x.v);
  const auto check = [](const auto& of) {
    using type = std::decay_t<decltype(of)>;
    const auto same = [](const type& a, const type& b) {
      return a.size(1) == b.size(1) && a.capacity() == b.capacity() &&
             numbers_of(a.keys(1)) == numbers_of(b.keys(1));
    };
    check_making([&] { return of; }, same);
    type changed = of;
    changed.clear();
    const type empty = changed;
    CHECK(failures_of([&] { changed = of; }, [&] { return same(changed, empty); }) > 0);
    CHECK(same(changed, of));
  };
  const frequencies f(head_dim);
  const frequency_table<float> placed(on_axes(f, contiguous_sections({2, 3, 3})), grid_positions({1, 5, 8}));
  kv_cache<float> cache(batch, tokens, kv_heads, head_dim);
  cache.append<half_split>(k, v, x.table);
  check(cache);
  kv_cache<float> on_three(batch, tokens, kv_heads, head_dim, token_axes{3});
  on_three.append<half_split>(k, v, placed);
  check(on_three);
  ring_cache<float> ring(batch, {.sinks = 2, .window = 9, .chunk = tokens}, kv_heads, head_dim,
                         token_axes{3});
  ring.append<half_split>(k, v, placed);
  check(ring);
  latent_cache<float> latents(batch, tokens, 12, head_dim - 12);
  latents.append(k.head_range(0, 1).channels(0, 12), k.head_range(0, 1).channels(12, head_dim - 12));
  check(latents);
}

TEST_CASE("positions of sounds, videos and grids without memory leak nothing", "[noalloc]") {
  const auto same_prompt = [](const auto& a, const auto& b) {
    return equal_all(a.coordinates, b.coordinates) && a.next == b.next;
  };
  const auto same = [](const auto& a, const auto& b) { return equal_all(a, b); };
  const auto same_list = [](const auto& a, const auto& b) { return a == b; };
  const std::vector<omni_run> runs = {text_run{3}, sounding_video_run{merged_patches(2, 4, 4, 2), 30}};
  check_making([&] { return qwen2_5_omni_positions(runs); }, same_prompt);
  check_making([&] { return qwen3_omni_positions(runs); }, same_prompt);
  const std::vector<prompt_run> prompt = {text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}};
  check_making([&] { return video_rope_positions(prompt); }, same_prompt);
  check_making([] { return grid_ids({3, 4}, {5, 6}); }, same_list);
  check_making([] { return cogvideox_positions({.frames = 3, .height = 4, .width = 5}); }, same);
}

TEST_CASE("calls that rotate, norm and permute write all or nothing", "[noalloc]") {
  operands x;
  const auto q = x.wide(x.q), out = x.wide(x.out);
  const frequency_table<float> table =
      table_of_angles(Eigen::ArrayXXd::Constant(tokens, head_dim / 2, 0.5), table_form::half_width);
  const std::vector<float> weight(head_dim, 2.0f);
  const auto check = [&](const auto& call) {
    const std::vector<float> before = operands::numbers(heads, 4);
    x.out = before;
    call();
    const std::vector<float> expected = x.out;
    x.out = before;
    failures_of(call, [&] { return testing::same_bits(x.out, before); });
    CHECK(testing::same_bits(x.out, expected));
    CHECK_FALSE(testing::same_bits(x.out, before));
  };
  const head_view<const float> in = q;
  check([&] { rotate_to<half_split>(in, out, x.table, 3); });
  check([&] { unrotate_to<half_split>(in, out, table); });
  check([&] { normalize_and_rotate_to<half_split>(in, out, head_norm<float>{weight}, x.table, 3); });
  check([&] { permute_channels<half_split, interleaved>(out); });
}
