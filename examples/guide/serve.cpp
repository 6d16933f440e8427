// The programs of serve.md. Each is compared with attention by its formula or with the same tokens in one
// call.

#include <cstdint>
#include <sstream>
#include <thread>
#include <vector>

#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice
#include "guide.hpp"

namespace {

using namespace guide;
using namespace rope;

constexpr Index heads = 4, kv_heads = 2, head_dim = 64;
const formula::speeds inv_freq = formula::speeds_of(head_dim, 10000);
const frequency_table<float> table(frequencies(head_dim), 4096);

struct tokens {
  tensor q, k, v, out;
  explicit tokens(Index count, Index batch = 1)
      : q(random_tensor(batch, count, heads, head_dim, 1)),
        k(random_tensor(batch, count, kv_heads, head_dim, 2)),
        v(random_tensor(batch, count, kv_heads, head_dim, 3)),
        out(batch, count, heads, head_dim) {}
};

void prefill_and_decode() {
  tokens x(40);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);

  kv_cache<float> cache(1, 4096, kv_heads, head_dim);  // batch, capacity, kv_heads, head_dim
  for (Index first = 0, count = 16; first < 40; first += count, count = first < 32 ? 16 : 1) {
    cache.append<half_split>(k.token_range(first, count), v.token_range(first, count), table);
    attention<half_split>(q.token_range(first, count), cache, out.token_range(first, count), table);
  }

  check(attention_error(x.q, x.k, x.v, x.out, inv_freq) <= float_bound,
        "chunks of a prompt, then token by token");
}

void ragged_batch() {
  tokens x(12, 3);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);

  const std::vector<int> counts = {12, 5, 9};  // tokens of each row, the rest is padding on the right
  kv_cache<float> cache(3, 4096, kv_heads, head_dim);
  cache.append<half_split>(k, v, table, counts);
  attention<half_split>(q, cache, out, table, {}, counts);
  const auto next = cache.next_positions();  // 12, 5, 9: where each row continues

  bool positions = true;
  for (std::size_t b = 0; b < 3; ++b) positions = positions && next[b] == counts[b];
  double off = 0;
  for (Index b = 0; b < 3; ++b) {
    const Index n = counts[static_cast<std::size_t>(b)];
    tensor q1(1, n, heads, head_dim), k1(1, n, kv_heads, head_dim), v1(1, n, kv_heads, head_dim),
        o1(1, n, heads, head_dim);
    std::copy_n(&x.q(b, 0, 0, 0), q1.size(), q1.data());
    std::copy_n(&x.k(b, 0, 0, 0), k1.size(), k1.data());
    std::copy_n(&x.v(b, 0, 0, 0), v1.size(), v1.data());
    std::copy_n(&x.out(b, 0, 0, 0), o1.size(), o1.data());
    off = std::max(off, attention_error(q1, k1, v1, o1, inv_freq));
  }
  check(positions && off <= float_bound, "rows of different length, padded on the right");
}

void left_padding() {
  tokens x(14, 2);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);
  const Index padding[] = {0, 5};  // padding tokens on the left of each row
  const auto visible = [&](Index b, Index i, Index j) { return j <= i && j >= padding[b]; };
  const auto check_rows = [&](const char* claim) {
    check(attention_error(x.q, x.k, x.v, x.out, inv_freq, visible) <= float_bound, claim);
    x.out.setConstant(9);
  };

  kv_cache<float> cache(2, 4096, kv_heads, head_dim);
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> is_token(2, 4096);
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 4096; ++t) is_token(b, t) = t >= padding[b];
  for (Index first = 0, count = 12; first < 14; first += count, count = 1) {  // a prompt, then two steps
    cache.append<half_split>(k.token_range(first, count), v.token_range(first, count), table);
    const score_view<bool> mask = {
        .data = is_token.data(), .batch = 2, .keys = cache.size(), .batch_stride = 4096, .key_stride = 1};
    attention<half_split>(q.token_range(first, count), cache, out.token_range(first, count), table,
                          {.mask = mask});
  }
  check_rows("rows padded on the left, in a cache");

  cache.clear();
  for (Index first = 0, count = 12; first < 14; first += count, count = 1) {
    cache.append<half_split>(k.token_range(first, count), v.token_range(first, count), table);
    const decltype(is_token) without_gaps = is_token.leftCols(cache.size());
    attention<half_split>(q.token_range(first, count), cache, out.token_range(first, count), table,
                          {.mask = score_matrix(without_gaps.data(), 2, 1, 1, cache.size())});
  }
  check_rows("rows padded on the left, with a new mask for each step");

  const decltype(is_token) of_all = is_token.leftCols(14);
  attention<half_split>(q, k, v, out, table, {.mask = score_matrix(of_all.data(), 2, 1, 1, 14)});
  check_rows("rows padded on the left, without a cache");

  const Index prompt = 12;
  const padded_rows rows = positions_of_mask(is_token.leftCols(prompt));
  cache.clear();
  cache.append_at<half_split>(k.token_range(0, prompt), v.token_range(0, prompt), table, rows.positions);
  attention<half_split>(q.token_range(0, prompt), cache, out.token_range(0, prompt), table,
                        {.key_ranges = rows.key_ranges});
  for (Index t = prompt; t < 14; ++t) {
    cache.append<half_split>(k.token_range(t, 1), v.token_range(t, 1), table);
    std::vector<key_range> ranges;
    for (const std::int64_t count : rows.counts)
      ranges.push_back({prompt - Index(count), cache.size() - prompt + Index(count)});
    attention<half_split>(q.token_range(t, 1), cache, out.token_range(t, 1), table, {.key_ranges = ranges});
  }
  check_rows("rows padded on the left, by ranges of keys");
}

void pages_of_a_pool() {
  tokens x(24);
  const auto q = thd(x.q.data(), 24, heads, head_dim);
  const auto k = thd(x.k.data(), 24, kv_heads, head_dim), v = thd(x.v.data(), 24, kv_heads, head_dim);
  const auto out = thd(x.out.data(), 24, heads, head_dim);

  std::vector<float> key_pool(8 * 4 * kv_heads * head_dim), value_pool(key_pool);  // 8 pages of 4 tokens
  Eigen::Matrix<int, 2, 4, Eigen::RowMajor> blocks;
  blocks << 6, 1, 3, -1, 0, 2, 5, 7;
  const std::vector<int> lengths = {10, 14};  // tokens of each sequence, after this call
  const std::vector<std::int64_t> offsets = {0, 10, 24};
  const page_view<float> pages({.keys = bhsd(key_pool.data(), 8, kv_heads, 4, head_dim),
                                .values = bhsd(value_pool.data(), 8, kv_heads, 4, head_dim)},
                               blocks, lengths);
  write_pages<half_split>(k, v, pages, table, offsets);
  attention<half_split>(q, pages, out, table, {.query_offsets = offsets});

  const auto visible = [](Index, Index i, Index j) { return j <= i && (j < 10) == (i < 10); };
  check(attention_error(x.q, x.k, x.v, x.out, inv_freq, visible) <= float_bound,
        "two sequences in pages of a pool");
}

void window_with_sinks() {
  tokens x(60);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);

  ring_cache<float> cache(1, {.sinks = 4, .window = 16}, kv_heads, head_dim);  // memory does not grow
  for (Index t = 0; t < 60; ++t) {
    cache.append<half_split>(k.token_range(t, 1), v.token_range(t, 1), table);
    attention<half_split>(q.token_range(t, 1), cache, out.token_range(t, 1), table);
  }

  const auto visible = [](Index, Index i, Index j) { return j <= i && (j < 4 || i - j < 16); };
  check(cache.capacity() == 20 && attention_error(x.q, x.k, x.v, x.out, inv_freq, visible) <= float_bound,
        "a window of 16 tokens with 4 sinks");
}

void selected_keys_of_a_cache() {
  tokens x(40);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);
  kv_cache<float> cache(1, 4096, kv_heads, head_dim);
  cache.append<half_split>(k, v, table);

  Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic> top(40, 3);
  for (int t = 0; t < 40; ++t) top.row(t) << t, t == 0 ? -1 : t / 2, -1;

  attention<half_split>(q, cache, out, table, {.selected = top});  // [queries, n], and -1 ends a list

  const auto visible = [](Index, Index i, Index j) { return j == i / 2 || j == i; };
  check(attention_error(x.q, x.k, x.v, x.out, inv_freq, visible) <= float_bound, "two selected keys");
}

void narrow_caches() {
  tokens x(40);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);

  kv_cache<std::int8_t> bytes(1, 4096, kv_heads, head_dim);  // a scale for each token and head
  bytes.append<half_split>(k, v, table);
  attention<half_split>(q, bytes, out, table);

  // A step is 1 / 127 of the largest channel, and the error of a value is half a step.
  check(attention_error(x.q, x.k, x.v, x.out, inv_freq) <= 0.05, "keys and values of 8 bits");
}

void rollback() {
  tokens x(24);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);
  kv_cache<float> cache(1, 4096, kv_heads, head_dim);
  cache.append<half_split>(k.token_range(0, 20), v.token_range(0, 20), table);
  attention<half_split>(q.token_range(0, 20), cache, out.token_range(0, 20), table);

  cache.append<half_split>(k.token_range(4, 4), v.token_range(4, 4), table);  // drafts of tokens 20 to 23
  cache.truncate(21);                                                         // keeps token 20
  cache.truncate(20);                                                         // keeps none of the drafts
  cache.append<half_split>(k.token_range(20, 4), v.token_range(20, 4), table);
  attention<half_split>(q.token_range(20, 4), cache, out.token_range(20, 4), table);

  check(attention_error(x.q, x.k, x.v, x.out, inv_freq) <= float_bound, "drafted tokens rolled back");

  kv_cache<float> branches(2, 4096, kv_heads, head_dim);
  branches.append<half_split>(bshd(tokens(8, 2).k), bshd(tokens(8, 2).v), table);
  branches.copy_row(0, 1);  // row 1 continues from the tokens of row 0
  check(std::equal(branches.keys(0).at(0, 0, 0), branches.keys(0).at(0, 0, 0) + head_dim,
                   branches.keys(1).at(0, 0, 0)),
        "a row copied to another one");
}

void saved_and_restored() {
  tokens x(24);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);
  std::stringstream file;
  const auto channels = static_cast<std::streamsize>(20 * kv_heads * head_dim * Index(sizeof(float)));

  rotate<half_split>(k, table);  // keys that you rotate yourself can be read back and stored again
  file.write(reinterpret_cast<const char*>(x.k.data()), channels);
  file.write(reinterpret_cast<const char*>(x.v.data()), channels);

  tensor keys(1, 20, kv_heads, head_dim), values(1, 20, kv_heads, head_dim);
  file.read(reinterpret_cast<char*>(keys.data()), channels);
  file.read(reinterpret_cast<char*>(values.data()), channels);
  kv_cache<float> cache(1, 4096, kv_heads, head_dim);
  cache.append(bshd(keys), bshd(values));
  cache.append(k.token_range(20, 4), v.token_range(20, 4));
  rotate<half_split>(q, table);
  attention(q.token_range(20, 4), cache, out.token_range(20, 4));

  tokens same(24);
  attention<half_split>(bshd(same.q), bshd(same.k), bshd(same.v), bshd(same.out), table);
  double off = 0;
  for (Index t = 20; t < 24; ++t)
    for (Index d = 0; d < head_dim; ++d)
      formula::compare(off, double(x.out(0, t, 3, d)), double(same.out(0, t, 3, d)));
  check(off <= float_bound, "keys and values saved and restored");
}

void threads() {
  tokens x(512), same(512);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);
  kv_cache<float> cache(1, 4096, kv_heads, head_dim), alone(1, 4096, kv_heads, head_dim);
  tensor cached(1, 512, heads, head_dim);
  const auto out_of_cache = bshd(cached);

  Eigen::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice device(&pool, 2);
  attention<half_split>(q, k, v, out, table, {}, device);
  cache.append<half_split>(k, v, table, {}, device);
  attention<half_split>(q, cache, out_of_cache, table, {}, {}, device);

  attention<half_split>(bshd(same.q), bshd(same.k), bshd(same.v), bshd(same.out), table);
  check(difference(x.out, same.out) <= 0, "Eigen::ThreadPoolDevice: the same bits as one thread");
  alone.append<half_split>(bshd(same.k), bshd(same.v), table);
  attention<half_split>(bshd(same.q), alone, bshd(same.out), table);
  check(difference(cached, same.out) <= 0,
        "Eigen::ThreadPoolDevice with a cache: the same bits as one thread");
}

/// A pool of your own is a type with two functions.
struct own_threads {
  Index threads() const { return 2; }
  void parallel_for(Index count, const auto& body) const {
    std::thread other([&] {
      for (Index i = 1; i < count; i += 2) body(i);
    });
    for (Index i = 0; i < count; i += 2) body(i);
    other.join();
  }
};

void own_pool() {
  tokens x(512), same(512);
  const auto q = bshd(x.q), k = bshd(x.k), v = bshd(x.v), out = bshd(x.out);

  attention<half_split>(q, k, v, out, table, {}, own_threads{});

  attention<half_split>(bshd(same.q), bshd(same.k), bshd(same.v), bshd(same.out), table);
  check(difference(x.out, same.out) <= 0, "a pool of your own: the same bits as one thread");
}

}  // namespace

int main() {
  prefill_and_decode();
  ragged_batch();
  left_padding();
  pages_of_a_pool();
  window_with_sinks();
  selected_keys_of_a_cache();
  narrow_caches();
  rollback();
  saved_and_restored();
  threads();
  own_pool();
  return all_hold ? 0 : 1;
}
