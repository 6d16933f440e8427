// Operations of engines with many users, each next to a call without the feature: rotation of a window or by
// coordinates inside attention, decoding from pages, from integers (multiplied as floats, and as they are), a chunk
// whose keys are integers multiplied as they are, latents (MLA), a batch of steps and a chunk, keys that were rotated
// earlier, tokens that are evicted, comparisons of rotations, caches that grow, rows that move, integers that leave a
// cache and come back, rings that start at a token, heads as rows, positions of a mask, the attention that keys receive,
// weights, and keys that are selected in a cache or in pages.
// Names: what/queries x keys x heads + key heads x head_dim/threads.

#include "../support.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using bench::Index;
using bench::row;
using rope::half_split;
using rope::number_array;

/// Work on one thread or on both.
void run(int threads, const auto& work) {
  if (threads == 2)
    work(bench::pool());
  else
    work(rope::this_thread());
}

struct prompt {
  Index tokens, heads, kv_heads, head_dim;
  number_array<float> q_ = bench::channels(tokens * heads * head_dim),
                      k_ = bench::channels(tokens * kv_heads * head_dim), v_ = k_, out_ = q_;
  rope::head_view<const float> q = rope::thd(static_cast<const float*>(q_.data()), tokens, heads, head_dim),
                               k = rope::thd(static_cast<const float*>(k_.data()), tokens, kv_heads,
                                             head_dim),
                               v = rope::thd(static_cast<const float*>(v_.data()), tokens, kv_heads,
                                             head_dim);
  rope::head_view<float> out = rope::thd(out_.data(), tokens, heads, head_dim);
};

/// Rotation inside attention next to no rotation, for a table placed in the head or with rows of coordinates.
void rotation_beside_none(row& of, const prompt& x, const rope::frequency_table<float>& table,
                          Index first_channel) {
  of.time({[&] { rope::attention<half_split>(x.q, x.k, x.v, x.out, table.at_channel(first_channel)); }},
          {{"no rotation", {{[&] { rope::attention(x.q, x.k, x.v, x.out); }}}}});
}

/// Sequences in pages of 16 tokens, which are in the pool in any order.
struct engine {
  static constexpr Index page_size = 16;
  Index kv_heads, head_dim;
  std::vector<int> lengths = {};
  Index blocks = 0, pages = 0;
  std::vector<int> table = {};
  number_array<float> k_ = {}, v_ = {};

  engine(const std::vector<int>& of_tokens, Index heads, Index dim)
      : kv_heads(heads), head_dim(dim), lengths(of_tokens) {
    for (const int length : lengths) blocks = std::max(blocks, (length + page_size - 1) / page_size);
    pages = blocks * static_cast<Index>(lengths.size());
    table.resize(static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    k_ = v_ = bench::channels(pages * page_size * kv_heads * head_dim);
  }
  rope::page_view<const float> view(std::span<const int> which_blocks,
                                    std::span<const int> which_lengths) const {
    return {
        {.keys = rope::bhsd(static_cast<const float*>(k_.data()), pages, kv_heads, page_size, head_dim),
         .values = rope::bhsd(static_cast<const float*>(v_.data()), pages, kv_heads, page_size, head_dim)},
        which_blocks,
        which_lengths};
  }
};

void decode_pages(row& of, Index keys, Index heads, Index kv_heads, Index head_dim, int threads) {
  const prompt one = {1, heads, kv_heads, head_dim};
  const engine memory({static_cast<int>(keys)}, kv_heads, head_dim);
  const auto pages = memory.view(memory.table, memory.lengths);
  const auto in_one_piece =
                 rope::bhsd(static_cast<const float*>(memory.k_.data()), 1, kv_heads, keys, head_dim),
             values = rope::bhsd(static_cast<const float*>(memory.v_.data()), 1, kv_heads, keys, head_dim);
  run(threads, [&](const auto& pool) {
    of.time({[&] { rope::attention(one.q, pages, one.out, {}, pool); }},
            {{"the same keys in one piece",
              {{[&] { rope::attention(one.q, in_one_piece, values, one.out, {}, pool); }}}}});
  });
}

void decode_integers(row& of, Index keys, Index heads, Index kv_heads, Index head_dim, int threads,
                     rope::product_precision products) {
  const prompt one = {1, heads, kv_heads, head_dim}, many = {keys, 1, kv_heads, head_dim};
  rope::kv_cache<Eigen::bfloat16> wide(1, keys, kv_heads, head_dim);
  rope::kv_cache<std::int8_t> narrow(1, keys, kv_heads, head_dim);
  wide.append(many.k, many.v);
  narrow.append(many.k, many.v);
  run(threads, [&](const auto& pool) {
    of.time({[&] { rope::attention(one.q, narrow, one.out, {.products = products}, {}, pool); }},
            {{"bfloat16", {{[&] { rope::attention(one.q, wide, one.out, {}, {}, pool); }}}}});
  });
}

/// The newest tokens of an int8 cache: integer products next to float products.
void chunk_of_integers(row& of, Index tokens, Index keys, Index heads, Index kv_heads, Index head_dim,
                       int threads) {
  const prompt chunk = {tokens, heads, kv_heads, head_dim}, many = {keys, 1, kv_heads, head_dim};
  rope::kv_cache<std::int8_t> cache(1, keys, kv_heads, head_dim);
  cache.append(many.k, many.v);
  run(threads, [&](const auto& pool) {
    const auto attend = [&](const rope::attention_options& options) {
      rope::attention(chunk.q, cache, chunk.out, options, {}, pool);
    };
    of.time({[&] { attend({.products = rope::product_precision::integers}); }},
            {{"products in float", {{[&] { attend({}); }}}}});
  });
}

/// Absorbed decoding of 128 heads next to the longer of a read of the latents and the multiply-adds at peak.
void decode_latents(row& of, Index keys, int threads) {
  constexpr Index heads = 128, latent = 512, rotary = 64;
  rope::latent_cache<float> cache(1, keys, latent, rotary);
  {
    const prompt many = {keys, 1, 1, latent + rotary};
    cache.append(many.k.channels(0, latent), many.k.channels(latent, rotary));
  }
  const prompt one = {1, heads, 1, latent + rotary};
  number_array<float> out_ = bench::channels(heads * latent);
  const auto out = rope::thd(out_.data(), 1, heads, latent);
  const double flops = 2.0 * static_cast<double>(heads * keys) * (2 * latent + rotary);
  const rope::attention_options options = {.scale = 0.07};
  const auto read = [&] { bench::read(cache.keys().data, keys * (latent + rotary)); };  // by one thread
  run(threads, [&](const auto& pool) {
    of.time({[&] { rope::attention(one.q, cache, out, options, {}, pool); }},
            {{"limit", {{read}, bench::peak(flops, threads)}, true}});
  });
}

/// Eight steps of 4096 keys and a chunk of 256, in one call, next to separate calls of the steps and the
/// chunk.
void mixed_batch(row& of, Index heads, Index kv_heads, Index head_dim, int threads) {
  constexpr Index steps = 8, chunk = 256;
  std::vector<int> lengths(steps, 4096);
  lengths.push_back(chunk);
  const engine memory(lengths, kv_heads, head_dim);
  const prompt x = {steps + chunk, heads, kv_heads, head_dim};
  std::vector<std::int64_t> offsets(steps + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  const std::vector<std::int64_t> of_steps = offsets, of_chunk = {0, chunk};
  offsets.push_back(steps + chunk);
  const std::span<const int> blocks = memory.table, all = memory.lengths;
  const auto split = static_cast<std::size_t>(steps * memory.blocks);
  const auto together = memory.view(blocks, all), first = memory.view(blocks.first(split), all.first(steps)),
             second = memory.view(blocks.subspan(split), all.subspan(steps));
  run(threads, [&](const auto& pool) {
    const auto two_calls = [&] {
      rope::attention(x.q.token_range(0, steps), first, x.out.token_range(0, steps),
                      {.query_offsets = of_steps}, pool);
      rope::attention(x.q.token_range(steps, chunk), second, x.out.token_range(steps, chunk),
                      {.query_offsets = of_chunk}, pool);
    };
    of.time({[&] { rope::attention(x.q, together, x.out, {.query_offsets = offsets}, pool); }},
            {{"two separate calls", {{two_calls}}}});
  });
}

/// A prompt whose keys were rotated earlier, next to plain copies of its keys and values for each head.
void append_rotated(row& of, Index tokens, Index kv_heads, Index head_dim, int threads) {
  const prompt x = {tokens, 1, kv_heads, head_dim};
  const rope::frequency_table<float> table(rope::frequencies(head_dim), tokens);
  rope::kv_cache<float> cache(1, tokens, kv_heads, head_dim);
  number_array<float> k_copy = x.k_, v_copy = x.v_;
  const auto copy = [&](const rope::head_view<const float>& from, number_array<float>& to) {
    for (Index h = 0; h < kv_heads; ++h)
      for (Index t = 0; t < tokens; ++t)
        std::copy_n(from.at(0, t, h), head_dim, to.data() + (h * tokens + t) * head_dim);
    bench::keep(to.data());
  };
  run(threads, [&](const auto& pool) {
    of.time({[&] {
              cache.clear();
              cache.append_rotated<half_split>(x.k, x.v, table, {}, {}, pool);
            }},
            {{"plain copies", {{[&] { copy(x.k, k_copy), copy(x.v, v_copy); }}}}});
  });
}

/// Every eighth token evicted from a copy of a row, next to two copies of the row.
void evict(row& of, Index tokens, Index kv_heads, Index head_dim) {
  const prompt x = {tokens, 1, kv_heads, head_dim};
  rope::kv_cache<float> full(1, tokens, kv_heads, head_dim), thinned = full;
  full.append(x.k, x.v);
  std::vector<Index> list;
  for (Index t = 0; t < tokens; t += 8) list.push_back(t);
  of.time(
      {[&] {
        thinned.copy_row(full, 0, 0);
        thinned.evict(list);
      }},
      {{"two copies of the row", {{[&] { thinned.copy_row(full, 0, 0), thinned.copy_row(full, 0, 0); }}}}});
}

/// A copy of a cache that reserves as much again, next to two copies of the cache, which allocate too.
void reserve(row& of, Index tokens, Index kv_heads, Index head_dim) {
  const prompt x = {tokens, 1, kv_heads, head_dim};
  using cache_type = rope::kv_cache<float>;
  cache_type full(1, tokens, kv_heads, head_dim);
  full.append(x.k, x.v);
  of.time({[&] {
            cache_type copy = full;
            copy.reserve(2 * tokens);
            bench::keep(copy.keys().data);
          }},
          {{"two copies", {{[&] {
              const cache_type first = full, second = full;
              bench::keep(first.keys().data), bench::keep(second.keys().data);
            }}}}});
}

/// Comparing the rotation of stored keys with that of a table, for tokens with three coordinates, next to
/// appending one token.
void compare_rotations(row& of, Index kv_heads, Index head_dim) {
  const prompt x = {1, 1, kv_heads, head_dim};
  const rope::frequency_table<float> table(
      rope::on_axes(rope::frequencies(head_dim, 1e6),
                    rope::contiguous_sections({head_dim / 8, 3 * head_dim / 16, 3 * head_dim / 16})),
      Eigen::ArrayXXd::Constant(1, 3, 7));
  rope::kv_cache<float> cache(1, 2, kv_heads, head_dim, rope::token_axes(3));
  cache.append<half_split>(x.k, x.v, table);
  of.time({[&] { bench::keep(cache.rotation() == cache.rotation_by<half_split>(table)); }},
          {{"a token appended", {{[&] {
              cache.append<half_split>(x.k, x.v, table);
              cache.truncate(1);
            }}}}});
}

/// Rows of a beam search, half of which continue another row, next to plain copies of the rows that change.
void reorder(row& of, Index rows, Index tokens, Index kv_heads, Index head_dim) {
  const prompt x = {rows * tokens, 1, kv_heads, head_dim};
  rope::kv_cache<float> cache(rows, tokens, kv_heads, head_dim);
  cache.append(rope::bshd(x.k.data, rows, tokens, kv_heads, head_dim),
               rope::bshd(x.v.data, rows, tokens, kv_heads, head_dim));
  std::vector<Index> parents(static_cast<std::size_t>(rows));
  for (Index r = 0; r < rows; ++r) parents[static_cast<std::size_t>(r)] = r / 2 * 2;
  number_array<float> k_copy = x.k_, v_copy = x.v_;
  const auto half = x.k_.size() / 2;
  of.time({[&] { cache.reorder(parents); }}, {{"plain copies", {{[&] {
                                                 std::copy_n(x.k_.begin(), half, k_copy.begin());
                                                 std::copy_n(x.v_.begin(), half, v_copy.begin());
                                                 bench::keep(k_copy.data()), bench::keep(v_copy.data());
                                               }}}}});
}

/// The integers of a cache appended to another one, next to plain copies of as many bytes.
void append_integers(row& of, Index tokens, Index kv_heads, Index head_dim) {
  const prompt x = {tokens, 1, kv_heads, head_dim};
  rope::kv_cache<std::int8_t> cache(1, tokens, kv_heads, head_dim), restored = cache;
  cache.append(x.k, x.v);
  std::vector<std::int8_t> bytes(static_cast<std::size_t>(2 * tokens * kv_heads * head_dim)), copy = bytes;
  of.time({[&] {
            restored.clear();
            restored.append(cache.keys(0), cache.values(0));
          }},
          {{"plain copies", {{[&] {
              std::copy(bytes.begin(), bytes.end(), copy.begin());
              bench::keep(copy.data());
            }}}}});
}

/// A ring whose first token is at a position, next to a ring that begins with position 0.
void start_a_ring(row& of, Index window, Index kv_heads, Index head_dim) {
  const prompt x = {window, 1, kv_heads, head_dim};
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 2 * window);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(window));
  std::iota(positions.begin(), positions.end(), window);
  rope::ring_cache<float> ring(1, {.window = window, .chunk = window}, kv_heads, head_dim);
  of.time({[&] {
            ring.clear();
            ring.append_at<half_split>(x.k, x.v, table, positions);
          }},
          {{"tokens from position 0 on", {{[&] {
              ring.clear();
              ring.append<half_split>(x.k, x.v, table);
            }}}}});
}

/// A step of heads that are rows of a batch, next to a step of the same heads.
void step_of_head_rows(row& of, Index keys, Index heads, Index kv_heads, Index head_dim) {
  const prompt one = {1, heads, kv_heads, head_dim}, many = {keys, 1, kv_heads, head_dim};
  rope::kv_cache<float> cache(1, keys, kv_heads, head_dim);
  cache.append(many.k, many.v);
  const auto k = cache.keys(), v = cache.values();
  const auto rows = [&](const auto& x) { return rope::heads_as_batch(x, kv_heads); };
  of.time({[&] { rope::attention(rows(one.q), rows(k), rows(v), rows(one.out)); }},
          {{"heads", {{[&] { rope::attention(one.q, k, v, one.out); }}}}});
}

/// Positions, counts and ranges of a padded batch, next to filling as much memory.
void positions_of_mask(row& of, Index batch, Index tokens) {
  const Eigen::ArrayXXi mask =
      Eigen::ArrayXXi::NullaryExpr(batch, tokens, [=](Index b, Index t) { return t >= 7 * b ? 1 : 0; });
  const auto size = static_cast<std::size_t>(batch * tokens);
  of.time({[&] { bench::keep(rope::positions_of_mask(mask).key_ranges.data()); }},
          {{"filled lists", {{[&] {
              const std::vector<std::int64_t> positions(size, 1);
              const std::vector<rope::key_range> ranges(size, {1, 2});
              bench::keep(positions.data()), bench::keep(ranges.data());
            }}}}});
}

/// The attention that each key receives from the newest tokens, next to attention of these tokens.
void weight_sums(row& of, Index tokens, Index keys, Index heads, Index kv_heads, Index head_dim,
                 int threads) {
  const prompt x = {tokens, heads, kv_heads, head_dim}, many = {keys, 1, kv_heads, head_dim};
  rope::kv_cache<float> cache(1, keys, kv_heads, head_dim);
  cache.append(many.k, many.v);
  std::vector<float> sums(static_cast<std::size_t>(kv_heads * keys));
  run(threads, [&](const auto& pool) {
    of.time({[&] { rope::attention_weight_sums(x.q, cache, sums, {}, {}, pool); }},
            {{"attention", {{[&] { rope::attention(x.q, cache, x.out, {}, {}, pool); }}}}});
  });
}

/// The weights of a step, next to its attention.
void weights_of_step(row& of, Index keys, Index heads, Index kv_heads, Index head_dim, int threads) {
  const prompt one = {1, heads, kv_heads, head_dim}, many = {keys, 1, kv_heads, head_dim};
  rope::kv_cache<float> cache(1, keys, kv_heads, head_dim);
  cache.append(many.k, many.v);
  std::vector<float> weights(static_cast<std::size_t>(heads * keys));
  run(threads, [&](const auto& pool) {
    of.time({[&] { rope::attention_weights(one.q, cache, weights, {}, {}, pool); }},
            {{"attention", {{[&] { rope::attention(one.q, cache, one.out, {}, {}, pool); }}}}});
  });
}

/// A step whose 2048 keys are selected for each key head, in a cache or in pages, next to keys selected in
/// memory.
void selected_step(row& of, Index keys, Index heads, Index kv_heads, Index head_dim, bool in_pages) {
  constexpr Index size = 2048;
  const prompt one = {1, heads, kv_heads, head_dim};
  const engine memory({static_cast<int>(keys)}, kv_heads, head_dim);
  const auto k = rope::bhsd(static_cast<const float*>(memory.k_.data()), 1, kv_heads, keys, head_dim),
             v = rope::bhsd(static_cast<const float*>(memory.v_.data()), 1, kv_heads, keys, head_dim);
  rope::kv_cache<float> cache(1, in_pages ? 0 : keys, kv_heads, head_dim);
  if (!in_pages) cache.append(k, v);
  std::vector<std::int32_t> list(static_cast<std::size_t>(kv_heads * size));
  for (std::size_t i = 0; i < list.size(); ++i)  // a permutation of all keys: each head takes the next ones
    list[i] = static_cast<std::int32_t>(i * 40503 % static_cast<std::size_t>(keys));
  const rope::attention_options options = {
      .selected = {list.data(), {.queries = 1, .key_heads = kv_heads, .keys = size}}};
  const auto pages = memory.view(memory.table, memory.lengths);
  of.time({[&] {
            if (in_pages)
              rope::attention(one.q, pages, one.out, options);
            else
              rope::attention(one.q, cache, one.out, options);
          }},
          {{"keys in memory", {{[&] { rope::attention(one.q, k, v, one.out, options); }}}}});
}

void add(const std::string& group, const std::string& what, int threads,
         const std::function<void(row&)>& body) {
  bench::add(group, what + "/" + std::to_string(threads) + (threads == 1 ? " thread" : " threads"), body);
}

}  // namespace

int main(int argc, char** argv) {
  add("rotation inside prefill", "window/1024x1024x16+16x192", 1, [](row& of) {
    const rope::frequency_table<float> table(rope::frequencies(64), 1024);
    rotation_beside_none(of, {1024, 16, 16, 192}, table, 128);
  });
  add("rotation inside prefill", "axes/1024x1024x16+4x128", 1, [](row& of) {
    Eigen::ArrayXXd at(1024, 3);
    for (Index t = 0; t < 1024; ++t) at.row(t) << 3, static_cast<double>(t / 32), static_cast<double>(t % 32);
    const rope::frequency_table<float> table(
        rope::on_axes(rope::frequencies(128, 1e6), rope::contiguous_sections({16, 24, 24})), at);
    rotation_beside_none(of, {1024, 16, 4, 128}, table, 0);
  });
  add("tokens evicted, one in eight", "evict/1x4096x8x128", 1, [](row& of) { evict(of, 4096, 8, 128); });
  add("a cache that grows", "reserve/1x4096x8x128", 1, [](row& of) { reserve(of, 4096, 8, 128); });
  add("rotations that are compared", "rotation_by/1x8x128", 1,
      [](row& of) { compare_rotations(of, 8, 128); });
  add("rows that move", "reorder/8x1024x8x128", 1, [](row& of) { reorder(of, 8, 1024, 8, 128); });
  add("integers from cache to cache", "append_int8/1x4096x8x128", 1,
      [](row& of) { append_integers(of, 4096, 8, 128); });
  add("a ring that starts at a token", "ring_at/1x4096x8x128", 1,
      [](row& of) { start_a_ring(of, 4096, 8, 128); });
  for (const bool in_pages : {false, true})
    add("selected keys of a cache or of pages",
        std::string(in_pages ? "selected_in_pages" : "selected_in_a_cache") + "/1x65536x32+8x128", 1,
        [=](row& of) { selected_step(of, 65536, 32, 8, 128, in_pages); });
  add("heads as rows of a batch", "heads_as_batch/1x4096x32+8x128", 1,
      [](row& of) { step_of_head_rows(of, 4096, 32, 8, 128); });
  add("positions of a mask", "positions_of_mask/8x4096", 1, [](row& of) { positions_of_mask(of, 8, 4096); });
  for (const int threads : {1, 2}) {
    add("keys that were rotated earlier", "append_rotated/1x4096x8x128", threads,
        [=](row& of) { append_rotated(of, 4096, 8, 128, threads); });
    for (const Index keys : {1024, 4096, 16384}) {
      const std::string shape = "1x" + std::to_string(keys) + "x32+8x128";
      const auto pages = [&](Index kv_heads, Index head_dim) {
        add("decoding from pages of 16 keys",
            "pages/1x" + std::to_string(keys) + "x32+" + std::to_string(kv_heads) + "x" +
                std::to_string(head_dim),
            threads, [=](row& of) { decode_pages(of, keys, 32, kv_heads, head_dim, threads); });
      };
      pages(8, 128);
      if (keys < 16384) pages(32, 64);  // a page of a head is too short to prefetch the next one in time
      for (const auto products : {rope::product_precision::full, rope::product_precision::integers})
        add(products == rope::product_precision::full ? "decoding from int8"
                                                      : "decoding from int8, products of integers",
            (products == rope::product_precision::full ? "int8_beside_bfloat16/"
                                                       : "int8_products_beside_bfloat16/") +
                shape,
            threads, [=](row& of) { decode_integers(of, keys, 32, 8, 128, threads, products); });
    }
    add("a chunk after int8, products of integers", "int8_products_beside_int8/256x4096x32+8x128", threads,
        [=](row& of) { chunk_of_integers(of, 256, 4096, 32, 8, 128, threads); });
    for (const Index keys : {1024, 4096})
      add("decoding from latents (MLA)", "latents/1x" + std::to_string(keys) + "x128+1x576", threads,
          [=](row& of) { decode_latents(of, keys, threads); });
    for (const Index tokens : {1, 64})
      add("the attention that keys receive", "weight_sums/" + std::to_string(tokens) + "x4096x32+8x128",
          threads, [=](row& of) { weight_sums(of, tokens, 4096, 32, 8, 128, threads); });
    add("weights", "weights/1x4096x32+8x128", threads,
        [=](row& of) { weights_of_step(of, 4096, 32, 8, 128, threads); });
    add("8 steps and a chunk in one call", "mixed_batch/8x4096_and_256x32+8x128", threads,
        [=](row& of) { mixed_batch(of, 32, 8, 128, threads); });
  }
  return bench::run(argc, argv);
}
