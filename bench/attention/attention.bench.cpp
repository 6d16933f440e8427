// Attention beside the limits of the hardware, timed in turn with each of them: prefill beside a loop of
// multiply-adds (share of peak, counting the visible half only), decoding beside a plain read of the keys and
// values, rotation beside the same attention without it, the backward pass beside the loop of multiply-adds,
// products in bfloat16 beside those in float. Caches of 16-bit and 8-bit keys and
// values are decoded from beside a read of their bytes. And the same attention written as Eigen products.
// Names: what/queries x keys x heads + key heads x head_dim/threads.

#include "operands.hpp"
#include "other_attention.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

using bench::add;
using bench::Index;
using bench::operands;
using bench::shape;
using rope::detail::storage;

/// Attention as two Eigen products per head over tiles of queries, with the softmax of whole rows between
/// them. Each tile multiplies only the keys that its last query sees.
void eigen_products(const operands& x) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using map = Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
  constexpr Index tile = 128;
  const shape& s = x.s;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  matrix scores(tile, s.keys);
  for (Index h = 0; h < s.heads; ++h) {
    const Index kv = h / (s.heads / s.kv_heads);
    const map k(x.k.at(0, 0, kv), s.keys, s.head_dim, Eigen::OuterStride<>(x.k.token_stride));
    const map v(x.v.at(0, 0, kv), s.keys, s.head_dim, Eigen::OuterStride<>(x.v.token_stride));
    for (Index first = 0; first < s.queries; first += tile) {
      const Index count = std::min(tile, s.queries - first), seen = s.keys - s.queries + first + count;
      const map q(x.q.at(0, first, h), count, s.head_dim, Eigen::OuterStride<>(x.q.token_stride));
      map out(x.out.at(0, first, h), count, s.head_dim, Eigen::OuterStride<>(x.out.token_stride));
      auto block = scores.topLeftCorner(count, seen);
      block.noalias() = q * k.topRows(seen).transpose();
      for (Index r = 0; r < count; ++r) {
        const Index own = seen - count + r + 1;
        auto row = block.row(r).head(own).array();
        row = ((row - row.maxCoeff()) * scale).exp();
        row /= row.sum();
        block.row(r).tail(seen - own).setZero();
      }
      out.noalias() = block * v.topRows(seen);
    }
  }
}

/// What a call leaves allocated on a thread that has made none before [KiB]; 0 without glibc.
double scratch_of(const operands& x) {
  double bytes = 0;
#if defined(__GLIBC__)
  std::thread([&] {
    const auto allocated = [] {
      const struct mallinfo2 heap = mallinfo2();
      return static_cast<double>(heap.uordblks) + static_cast<double>(heap.hblkhd);
    };
    const double before = allocated();
    x.attend();
    bytes = allocated() - before;
  }).join();
#endif
  return bytes / 1024;
}

void prefill(benchmark::State& state, shape s, int threads, bool rotates) {
  const operands x(s, false);
  bench::beside_peak(state, s.flops(), threads, [&] {
    if (threads == 2)
      x.attend(bench::pool());
    else if (rotates)
      x.rotate_and_attend();
    else
      x.attend();
  });
  state.counters["scratch_KiB"] = scratch_of(x);
}

/// The backward pass, given the log-sum-exp that the forward pass wrote.
void backward(benchmark::State& state, shape s, int threads) {
  const operands x(s, false);
  std::vector<double> sums(static_cast<std::size_t>(s.queries * s.heads));
  rope::attention_options options;
  options.log_sum_exp = sums;
  rope::attention(x.q, x.k, x.v, x.out, options);
  auto d_out_ = bench::channels(s.queries * s.heads * s.head_dim), d_q_ = d_out_, d_k_ = x.k_, d_v_ = x.v_;
  const auto like = [](rope::head_view<float> view, storage<float>& data) {
    view.data = data.data();
    return view;
  };
  const auto d_out = like(x.out, d_out_), d_q = like(x.q, d_q_), d_k = like(x.k, d_k_), d_v = like(x.v, d_v_);
  bench::beside_peak(state, s.backward_flops(), threads, [&] {
    if (threads == 2)
      rope::attention_gradient(
          rope::attention_tape<float>{
              .q = x.q, .k = x.k, .v = x.v, .out = x.out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v},
          options, {}, bench::pool());
    else
      rope::attention_gradient(
          rope::attention_tape<float>{
              .q = x.q, .k = x.k, .v = x.v, .out = x.out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v},
          options);
  });
}

void decode(benchmark::State& state, shape s, int threads, bool cached) {
  const operands x(s, cached);
  bench::beside_the_limit(
      state, x.bytes(),
      [&] {
        if (threads == 2)
          bench::pool().parallel_for(2, [&](Index part) {
            const auto& half = part == 0 ? x.k_ : x.v_;
            bench::read(half.data(), static_cast<Index>(half.size()));
          });
        else
          x.read();
      },
      [&] {
        if (threads == 2)
          x.attend(bench::pool());
        else
          x.attend();
      });
}

/// Float queries and a full kv_cache of channels C, beside a read of the bytes that it holds.
template <class C>
void decode_from_cache(benchmark::State& state, shape s, int threads) {
  const operands x(s, false);
  rope::kv_cache<C> cache(1, s.keys, s.kv_heads, s.head_dim);
  cache.append(x.k, x.v);
  const Index words = s.keys * s.kv_heads * s.head_dim * Index(sizeof(C)) / Index(sizeof(float));
  const auto read = [&](Index part) {  // the yardstick of the cases above, whatever the bytes mean
    const C* channels = part == 0 ? cache.keys().data : cache.values().data;
    bench::read(reinterpret_cast<const float*>(channels), words);
  };
  bench::beside_the_limit(
      state, x.bytes() / sizeof(float) * sizeof(C),
      [&] {
        if (threads == 2) return bench::pool().parallel_for(2, read);
        read(0);
        read(1);
      },
      [&] {
        if (threads == 2)
          rope::attention(x.q, cache, x.out, {}, {}, bench::pool());
        else
          rope::attention(x.q, cache, x.out);
      });
}

/// The share is the time without rotation over the time with it: 1 where rotation is free.
void rotation_inside(benchmark::State& state, shape s) {
  const operands x(s, false);
  bench::beside_the_limit(
      state, x.bytes(), [&] { x.attend(); }, [&] { x.rotate_and_attend(); }, bench::beside::another_call);
}

/// The share is the time with products in float over that with products in bfloat16.
void products_in_bfloat16(benchmark::State& state, shape s) {
  const operands x(s, s.queries < s.keys);
  const auto narrow = [](const storage<float>& wide) {
    storage<Eigen::bfloat16> channels(wide.size());
    for (std::size_t i = 0; i < wide.size(); ++i) channels[i] = Eigen::bfloat16(wide[i]);
    return channels;
  };
  const auto like = [](const rope::head_view<float>& of, storage<Eigen::bfloat16>& channels) {
    return rope::head_view<Eigen::bfloat16>{channels.data(), of.batch,      of.tokens,
                                            of.heads,        of.head_dim,   of.batch_stride,
                                            of.token_stride, of.head_stride};
  };
  auto q_ = narrow(x.q_), k_ = narrow(x.k_), v_ = narrow(x.v_), out_ = narrow(x.out_);
  const auto q = like(x.q, q_), k = like(x.k, k_), v = like(x.v, v_), out = like(x.out, out_);
  bench::beside_the_limit(
      state, x.bytes() / 2, [&] { rope::attention(q, k, v, out); },
      [&] { rope::attention(q, k, v, out, {.products = rope::product_precision::bfloat16}); },
      bench::beside::another_call);
}

}  // namespace

int main(int argc, char** argv) {
  using state = benchmark::State;
  const shape llama = {2048, 2048, 32, 8, 128}, small = {1024, 1024, 8, 8, 64},
              mla = {1024, 1024, 16, 16, 192};
  for (const shape& s : {llama, small, mla}) {
    for (const int threads : {1, 2}) {
      add("prefill", s, threads, [=](state& of) { prefill(of, s, threads, false); });
      add("backward", s, threads, [=](state& of) { backward(of, s, threads); });
    }
    add("prefill_rotated", s, 1, [=](state& of) { prefill(of, s, 1, true); });
    add("rotation_inside", s, 1, [=](state& of) { rotation_inside(of, s); });
    add("eigen_products", s, 1, [=](state& of) {
      const operands x(s, false);
      bench::beside_peak(of, s.flops(), 1, [&] { eigen_products(x); });
    });
  }
  // Few key heads: every thread works on one.
  for (const shape& s : {shape{2048, 2048, 4, 1, 128}, shape{2048, 2048, 1, 1, 128}})
    for (const int threads : {1, 2})
      add("backward", s, threads, [=](state& of) { backward(of, s, threads); });
  for (const Index tokens : {256, 512, 1024, 2048, 4096, 8192, 16384}) {
    const shape s = {tokens, tokens, 4, 1, 128};
    add("tokens/plain", s, 1, [=](state& of) { prefill(of, s, 1, false); });
    add("tokens/rotated", s, 1, [=](state& of) { prefill(of, s, 1, true); });
#if ROPE_BENCH_TORCH
    if (tokens <= 4096)  // it stores every score
      add("tokens/torch", s, 1, [=](state& of) {
        const operands x(s, false);
        bench::beside_peak(
            of, s.flops(), 1,
            bench::torch_attention(x.q.data, x.k.data, x.v.data, s.keys, s.heads, s.kv_heads, s.head_dim));
      });
#endif
    add("tokens/eigen_products", s, 1, [=](state& of) {
      const operands x(s, false);
      bench::beside_peak(of, s.flops(), 1, [&] { eigen_products(x); });
    });
  }
  for (const Index keys : {512, 1024, 4096, 16384})
    for (const int threads : {1, 2}) {
      const shape s = {1, keys, 32, 8, 128};
      add("decode/bhsd", s, threads, [=](state& of) { decode(of, s, threads, true); });
      add("decode/bshd", s, threads, [=](state& of) { decode(of, s, threads, false); });
      add("decode/kv_cache_float", s, threads, [=](state& of) { decode_from_cache<float>(of, s, threads); });
      add("decode/kv_cache_half", s, threads,
          [=](state& of) { decode_from_cache<Eigen::half>(of, s, threads); });
      add("decode/kv_cache_bfloat16", s, threads,
          [=](state& of) { decode_from_cache<Eigen::bfloat16>(of, s, threads); });
      add("decode/kv_cache_int8", s, threads,
          [=](state& of) { decode_from_cache<std::int8_t>(of, s, threads); });
    }
  for (const shape& s : {llama, small, shape{512, 512, 8, 1, 128}, shape{64, 4096, 32, 8, 128},
                         shape{1, 4096, 32, 8, 128}, shape{1, 16384, 32, 8, 128}, shape{1, 4096, 8, 8, 128}})
    add("products_in_bfloat16", s, 1, [=](state& of) { products_in_bfloat16(of, s); });
  bench::describe_run();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return bench::refused() ? 1 : 0;
}
