// Rotation and attention of ggml, or of ik_llama.cpp, which has the same interface, next to rope.
// ../peers.py builds and runs it.
//
// ggml computes cos and sin in every call, and rope reads them from a table made before, as both are used.

#include "peer_rows.hpp"

#include <ggml.h>
#if __has_include(<ggml-cpu.h>)
#include <ggml-cpu.h>
#define PEER_IS_GGML 1
#else
#define PEER_IS_GGML 0  // ik_llama.cpp, a fork of ggml from before that header
#endif

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bench::Index;
using peers::must_agree;
using peers::row;

template <class T>
constexpr ggml_type type_of = std::is_same_v<T, float>         ? GGML_TYPE_F32
                              : std::is_same_v<T, Eigen::half> ? GGML_TYPE_F16
                                                               : GGML_TYPE_BF16;

/// Tensors, and one operation on them as a graph that is planned once.
class graph {
 public:
  graph()
      : context_(ggml_init({.mem_size = std::size_t{1} << 30, .mem_buffer = nullptr, .no_alloc = false})) {}
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  ~graph() { ggml_free(context_); }

  ggml_context* context() const { return context_; }
  /// A tensor whose last extent is the first of `extents`: ggml lists extents in the opposite order of a
  /// view.
  ggml_tensor* tensor(ggml_type type, Index a, Index b, Index c) const {
    return ggml_new_tensor_3d(context_, type, c, b, a);
  }
  void ends_with(ggml_tensor* result) {
    graph_ = ggml_new_graph(context_);
    ggml_build_forward_expand(graph_, result);
#if PEER_IS_GGML
    plan_ = ggml_graph_plan(graph_, 1, nullptr);
#else
    plan_ = ggml_graph_plan(graph_, 1);
#endif
    work_.resize(plan_.work_size);
    plan_.work_data = work_.data();
  }
  void compute() { ggml_graph_compute(graph_, &plan_); }

 private:
  ggml_context* context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_ = {};
  std::vector<std::uint8_t> work_;
};

template <class T>
void fill(ggml_tensor* tensor, int seed) {
  peers::fill(static_cast<T*>(tensor->data), ggml_nelements(tensor), seed);
}

template <class Layout, class T>
void rotate(row& of, const std::string& name, Index tokens, Index heads, Index head_dim) {
  graph theirs;
  ggml_tensor* x = theirs.tensor(type_of<T>, tokens, heads, head_dim);
  ggml_tensor* positions = ggml_new_tensor_1d(theirs.context(), GGML_TYPE_I32, tokens);
  fill<T>(x, 0);
  constexpr int first = 100;  // not 0, where nothing is rotated
  for (Index t = 0; t < tokens; ++t) static_cast<int*>(positions->data)[t] = first + static_cast<int>(t);
  const int mode = std::is_same_v<Layout, rope::half_split> ? 2 : 0;  // GGML_ROPE_TYPE_NEOX, or NORMAL
  theirs.ends_with(ggml_rope_ext_inplace(theirs.context(), x, positions, nullptr, static_cast<int>(head_dim),
                                         mode, static_cast<int>(tokens), 10000.0f, 1.0f, 0.0f, 1.0f, 32.0f,
                                         1.0f));
  const Index size = tokens * heads * head_dim;
  auto* channels = static_cast<T*>(x->data);
  std::vector<T> ours(channels, channels + size);
  const rope::frequency_table<float> table(rope::frequencies(head_dim, 10000.0), first + tokens);
  const auto view = rope::thd(ours.data(), tokens, heads, head_dim);
  rope::rotate<Layout>(view, table, Index{first});
  theirs.compute();
  // ggml multiplies the angle from pair to pair in float. Its relative error grows with the pair, and the
  // angle with the position.
  const double u = std::is_same_v<T, float> ? 0x1p-24 : std::is_same_v<T, Eigen::half> ? 0x1p-11 : 0x1p-8;
  must_agree(name, ours.data(), channels, size,
             4 * u + static_cast<double>(first + tokens) * static_cast<double>(head_dim / 2) * 0x1p-24);
  peers::time_alternately(
      of, [&] { theirs.compute(); }, [&] { rope::rotate<Layout>(view, table, Index{first}); });
}

/// Keys and values are [keys, kv_heads, head_dim], as in a cache of either library.
template <class T>
void attend(row& of, const std::string& name, const peers::attention_shape& shape) {
  const auto [queries, keys, heads, kv_heads, head_dim] = shape;
  graph theirs;
  ggml_context* context = theirs.context();
  ggml_tensor* q = theirs.tensor(GGML_TYPE_F32, queries, heads, head_dim);
  ggml_tensor *k = theirs.tensor(type_of<T>, keys, kv_heads, head_dim),
              *v = theirs.tensor(type_of<T>, keys, kv_heads, head_dim);
  fill<float>(q, 1), fill<T>(k, 2), fill<T>(v, 3);
  // One query has a mask too, as in llama.cpp: without it ik_llama.cpp takes a slower path.
  ggml_tensor* mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, keys, (queries + 63) / 64 * 64);
  auto* hidden = static_cast<Eigen::half*>(mask->data);
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0; j < keys; ++j)
      hidden[i * keys + j] =
          static_cast<Eigen::half>(j <= i + keys - queries ? 0.0f : -std::numeric_limits<float>::infinity());
  const auto heads_first = [&](ggml_tensor* x) { return ggml_permute(context, x, 0, 2, 1, 3); };
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  ggml_tensor* result =
      ggml_flash_attn_ext(context, heads_first(q), heads_first(k), heads_first(v), mask, scale, 0.0f, 0.0f);
  theirs.ends_with(result);

  const Index size = queries * heads * head_dim;
  std::vector<float> ours(static_cast<std::size_t>(size));
  const auto queries_view = rope::thd(static_cast<const float*>(q->data), queries, heads, head_dim);
  const auto keys_view = rope::thd(static_cast<const T*>(k->data), keys, kv_heads, head_dim),
             values_view = rope::thd(static_cast<const T*>(v->data), keys, kv_heads, head_dim);
  const auto out = rope::thd(ours.data(), queries, heads, head_dim);
  rope::attention(queries_view, keys_view, values_view, out, {});
  theirs.compute();
  // The peer rounds queries to the type of the keys, and some of its kernels also the sums over values of
  // type half. These are roundings of `keys` sums, of either sign.
  const double u = std::is_same_v<T, Eigen::bfloat16> ? 0x1p-8 : 0x1p-11;
  must_agree(name, ours.data(), static_cast<const float*>(result->data), size,
             std::fmax(4 * u, u * std::sqrt(static_cast<double>(keys))));
  peers::time_alternately(
      of, [&] { theirs.compute(); }, [&] { rope::attention(queries_view, keys_view, values_view, out, {}); });
}

}  // namespace

int main(int argc, char** argv) {
  ggml_time_init();
  peers::add_rotations<rope::half_split, float>(rotate<rope::half_split, float>);
  peers::add_rotations<rope::interleaved, float>(rotate<rope::interleaved, float>);
  peers::add_rotations<rope::half_split, Eigen::half>(rotate<rope::half_split, Eigen::half>);
  if (PEER_IS_GGML) peers::add_attention<float>(attend<float>);  // ik_llama.cpp has no caches of floats
  peers::add_attention<Eigen::half>(attend<Eigen::half>);
#if PEER_IS_GGML || defined(__AVX512BF16__)  // otherwise ik_llama.cpp ends the program
  peers::add_attention<Eigen::bfloat16>(attend<Eigen::bfloat16>);
#endif
  return bench::run(argc, argv);
}
