// Prefill next to peak multiply-adds (only the visible half counts), prefill with rotation, and the same as
// Eigen products. The backward pass. Decoding from caches of every type next to the longer of a read of K and
// V and the multiply-adds at peak. Products in bfloat16. Names: what/queries x keys x heads + key heads x
// head_dim/threads.

#include "operands.hpp"

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
using rope::number_array;

/// Attention as two Eigen products per head over tiles of queries, with the softmax of whole rows between
/// them. Each tile multiplies only the keys visible to its last query.
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

/// The memory that a call keeps allocated on a new thread [KiB]. 0 without glibc.
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

void prefill(bench::row& of, shape s, int threads) {
  const operands x(s, false);
  of.numbers.push_back({"scratch_KiB", scratch_of(x)});
  std::vector<bench::yardstick> yardsticks = {{"peak multiply-adds", {bench::peak(s.flops(), threads)}}};
  if (threads == 2) return of.time({[&] { x.attend(bench::pool()); }}, yardsticks);
  yardsticks.push_back({"the same with rotation inside", {{[&] { x.rotate_and_attend(); }}}});
  yardsticks.push_back({"Eigen products", {{[&] { eigen_products(x); }}}});
  of.time({[&] { x.attend(); }}, yardsticks);
}

/// The backward pass, given the log-sum-exp of the forward pass.
void backward(bench::row& of, shape s, int threads) {
  const operands x(s, false);
  std::vector<double> sums(static_cast<std::size_t>(s.queries * s.heads));
  rope::attention_options options;
  options.log_sum_exp = sums;
  rope::attention(x.q, x.k, x.v, x.out, options);
  auto d_out_ = bench::channels(s.queries * s.heads * s.head_dim), d_q_ = d_out_, d_k_ = x.k_, d_v_ = x.v_;
  const auto like = [](rope::head_view<float> view, number_array<float>& data) {
    view.data = data.data();
    return view;
  };
  const auto d_out = like(x.out, d_out_), d_q = like(x.q, d_q_), d_k = like(x.k, d_k_), d_v = like(x.v, d_v_);
  const auto gradient = [&] {
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
  };
  of.time({gradient}, {{"peak multiply-adds", {bench::peak(s.backward_flops(), threads)}}});
}

void decode(bench::row& of, shape s, int threads, bool cached) {
  const operands x(s, cached);
  const auto read = [&] {
    if (threads == 1) return x.read();
    bench::pool().parallel_for(2, [&](Index part) {
      const auto& half = part == 0 ? x.k_ : x.v_;
      bench::read(half.data(), half.size());
    });
  };
  const auto attend = [&] { threads == 1 ? x.attend() : x.attend(bench::pool()); };
  of.time({attend}, {{"limit", {{read}, bench::peak(s.flops(), threads)}, true}});
}

/// Float queries and a full kv_cache of channels C.
template <class C>
void decode_from_cache(bench::row& of, shape s, int threads) {
  const operands x(s, false);
  rope::kv_cache<C> cache(1, s.keys, s.kv_heads, s.head_dim);
  cache.append(x.k, x.v);
  const Index words = s.keys * s.kv_heads * s.head_dim * Index(sizeof(C)) / Index(sizeof(float));
  const auto read_half = [&](Index part) {  // reads any bytes as floats
    const C* channels = part == 0 ? cache.keys().data : cache.values().data;
    bench::read(reinterpret_cast<const float*>(channels), words);
  };
  const auto read = [&] {
    if (threads == 2) return bench::pool().parallel_for(2, read_half);
    read_half(0);
    read_half(1);
  };
  const auto attend = [&] {
    if (threads == 2)
      rope::attention(x.q, cache, x.out, {}, {}, bench::pool());
    else
      rope::attention(x.q, cache, x.out);
  };
  of.time({attend}, {{"limit", {{read}, bench::peak(s.flops(), threads)}, true}});
}

void products_in_bfloat16(bench::row& of, shape s) {
  const operands x(s, s.queries < s.keys);
  const auto narrow = [](const number_array<float>& wide) {
    number_array<Eigen::bfloat16> channels(wide.size());
    for (Index i = 0; i < wide.size(); ++i) channels(i) = Eigen::bfloat16(wide(i));
    return channels;
  };
  const auto like = [](const rope::head_view<float>& view, number_array<Eigen::bfloat16>& channels) {
    return rope::head_view<Eigen::bfloat16>{channels.data(),   view.batch,      view.tokens,
                                            view.heads,        view.head_dim,   view.batch_stride,
                                            view.token_stride, view.head_stride};
  };
  auto q_ = narrow(x.q_), k_ = narrow(x.k_), v_ = narrow(x.v_), out_ = narrow(x.out_);
  const auto q = like(x.q, q_), k = like(x.k, k_), v = like(x.v, v_), out = like(x.out, out_);
  of.time({[&] { rope::attention(q, k, v, out, {.products = rope::product_precision::bfloat16}); }},
          {{"products in float", {{[&] { rope::attention(q, k, v, out); }}}}});
}

}  // namespace

int main(int argc, char** argv) {
  using bench::row;
  const shape llama = {2048, 2048, 32, 8, 128}, small = {1024, 1024, 8, 8, 64},
              mla = {1024, 1024, 16, 16, 192};
  for (const shape& s : {llama, small, mla})
    for (const int threads : {1, 2}) {
      add("prefill", "prefill", s, threads, [=](row& of) { prefill(of, s, threads); });
      add("backward pass of prefill", "backward", s, threads, [=](row& of) { backward(of, s, threads); });
    }
  // With few key heads, every thread works on one.
  for (const shape& s : {shape{2048, 2048, 4, 1, 128}, shape{2048, 2048, 1, 1, 128}})
    for (const int threads : {1, 2})
      add("backward pass of prefill", "backward", s, threads, [=](row& of) { backward(of, s, threads); });
  for (const Index tokens : {256, 512, 1024, 2048, 4096}) {
    const shape s = {tokens, tokens, 4, 1, 128};
    add("prefill", "tokens", s, 1, [=](row& of) { prefill(of, s, 1); });
  }
  for (const Index keys : {512, 1024, 4096, 16384})
    for (const int threads : {1, 2}) {
      const shape s = {1, keys, 32, 8, 128};
      const auto cache = [&]<class C>(const std::string& type, C) {
        add("decoding from a cache of " + type, "decode/kv_cache_" + type, s, threads,
            [=](row& of) { decode_from_cache<C>(of, s, threads); });
      };
      add("decoding, keys in the order of a cache", "decode/bhsd", s, threads,
          [=](row& of) { decode(of, s, threads, true); });
      add("decoding, keys in the order of activations", "decode/bshd", s, threads,
          [=](row& of) { decode(of, s, threads, false); });
      cache("half", Eigen::half());
      cache("bfloat16", Eigen::bfloat16());
      cache("int8", std::int8_t());
    }
  for (const shape& s : {llama, small, shape{512, 512, 8, 1, 128}, shape{64, 4096, 32, 8, 128},
                         shape{1, 4096, 32, 8, 128}, shape{1, 16384, 32, 8, 128}, shape{1, 4096, 8, 8, 128}})
    add("products in bfloat16", "products_in_bfloat16", s, 1, [=](row& of) { products_in_bfloat16(of, s); });
  return bench::run(argc, argv);
}
