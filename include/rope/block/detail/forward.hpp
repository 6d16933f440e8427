// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_FORWARD_HPP
#define ROPE_BLOCK_DETAIL_FORWARD_HPP

#include <algorithm>  // std::min, std::max, std::copy_n, std::fill
#include <cstddef>
#include <span>

#include <rope/attention/attention.hpp>
#include <rope/attention/options.hpp>  // count_of_row
#include <rope/attention/weights.hpp>
#include <rope/base/message.hpp>
#include <rope/base/scratch.hpp>
#include <rope/block/detail/block_rotation.hpp>
#include <rope/block/detail/pass.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/detail/cache_step.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// The forward pass of an attention block: attention to keys of the same call, or to a cache.

namespace rope::inline ROPE_ABI::detail {

/// The forward pass of a block.
template <class T>
class block_forward {
  using scratch = block_scratch;

 public:
  /// \param probabilities  [batch, heads, queries, keys], or empty
  block_forward(const block_pass<T>& pass, std::span<T> probabilities)
      : pass_(pass), probabilities_(probabilities) {}

  template <class Rotation, class Threads>
  void attend(const token_ref<T>& x, const token_ref<T>& context, Index batch,
              const writable_token_ref<T>& out, const attention_options& options, const Rotation& rotation,
              const Threads& threads) const {
    pass_.check_call(x, context, out, batch, rotation, options);
    check_probabilities(x.rows(), pass_.tokens_per_row(context, batch, pass_.shape.kv_heads));
    const auto heads = pass_.project(x, context, batch, threads);
    rotation.queries.apply(heads.q, pass_.q_norm(), threads);
    rotation.keys.apply(heads.k, pass_.k_norm(), threads);
    attend_segments(heads.q, heads.k, heads.v, out, options, rotation, threads);
  }

  /// Attention to the keys and values of a projected_context.
  ///
  /// Requires:  the shape of the keys and values fits the block
  template <class Rotation, class Threads>
  void attend_projected(const token_ref<T>& x, const head_view<const T>& k, const head_view<const T>& v,
                        const writable_token_ref<T>& out, const attention_options& options,
                        const Rotation& rotation, const Threads& threads) const {
    pass_.check_queries(x, out);
    const Index queries = pass_.tokens_per_row(x, k.batch, pass_.shape.heads);
    rotation.queries.check_positions(pass_.function, k.batch, queries, pass_.shape.head_dim);
    pass_.check_attention(rotation, options, k.batch, queries, k.tokens);
    check_probabilities(x.rows(), k.tokens);
    const head_view<T> q = pass_.template scratch_heads<scratch::queries>(k.batch, queries, pass_.shape.heads,
                                                                          pass_.shape.head_dim);
    run_products(threads, projected<T>(x, pass_.weights.q, as_rows(q)));
    rotation.queries.apply(q, pass_.q_norm(), threads);
    attend_segments(q, k, v, out, options, rotation, threads);
  }

  template <class Layout, class S, class Cache, class Threads>
  void attend_to_cache(const token_ref<T>& x, Cache& cache, const writable_token_ref<T>& out,
                       const placed_table<S>* table, const row_counts& counts, const Threads& threads) const {
    const multi_head_shape& shape = pass_.shape;
    const attention_options& options = pass_.options.attention;
    pass_.check_queries(x, out);
    pass_.check_context(x);
    const Index batch = cache.batch(), count = pass_.tokens_per_row(x, batch, shape.heads);
    check_next<Layout>(cache, {shape.heads, shape.kv_heads, shape.head_dim, shape.value_dim}, options, count,
                       table, counts);
    if (!probabilities_.empty())
      throw_invalid("multi_head_attention",
                    "a call with a cache cannot report probabilities, got memory for ",
                    probabilities_.size());
    const auto heads = pass_.project(x, x, batch, threads);
    const head_view<T> attended = attended_by(heads.q);
    block_without_rotation.queries.apply(heads.q, pass_.q_norm(), threads);
    block_without_rotation.keys.apply(heads.k, pass_.k_norm(), threads);
    const Index chunk = chunk_of(cache, count);
    Index* now = workspace<scratch::counts, Index>(batch);
    for (Index first = 0; first < count; first += chunk) {
      const Index size = (std::min)(chunk, count - first);
      for (Index b = 0; b < batch; ++b)
        now[b] = (std::min)(size, (std::max)(Index{0}, count_of_row(counts, b, count) - first));
      const row_counts taken =
          counts.empty() ? counts : std::span<const Index>(now, static_cast<std::size_t>(batch));
      const head_view<T> q = heads.q.token_range(first, size), k = heads.k.token_range(first, size),
                         v = heads.v.token_range(first, size), result = attended.token_range(first, size);
      attend_part(heads.q, first, size, options, [&](const attention_options& part) {
        if (table == nullptr) {
          cache.append(k, v, taken, threads);
          attention(q, cache, result, part, taken, threads);
        } else if constexpr (pair_layout<Layout>) {
          if (cache.storage() == key_storage::raw)
            cache.append(k, v, taken, threads);
          else
            cache.template append<Layout>(k, v, *table, taken, threads);
          attention<Layout>(q, cache, result, *table, part, taken, threads);
        }
      });
    }
    run_products(threads, projected<T>(as_rows(attended), pass_.weights.o, out));
  }

 private:
  void check_probabilities(Index rows, Index keys) const {
    if (probabilities_.empty()) return;
    if (!extents_fit(rows, pass_.shape.heads, keys, 1, Index(sizeof(T))))
      throw_length("multi_head_attention", "probabilities ", shape_text({rows, pass_.shape.heads, keys}),
                   " exceed the address space");
    const auto size = static_cast<std::size_t>(rows * pass_.shape.heads * keys);
    if (probabilities_.size() != size)
      throw_invalid("multi_head_attention",
                    "probabilities must be empty or have length batch * heads * queries * keys = ", size,
                    ", got ", probabilities_.size());
  }
  head_view<T> attended_by(const head_view<T>& q) const {
    return pass_.template scratch_heads<scratch::attended>(q.batch, q.tokens, q.heads, pass_.shape.value_dim);
  }

  /// Calls run(options) for queries [first, first + count) of every row. If the log-sum-exps of these queries
  /// are not contiguous in those of the whole call, they are written to scratch memory and then copied.
  template <class Run>
  static void attend_part(const head_view<T>& q, Index first, Index count, attention_options options,
                          const Run& run) {
    const std::span<double> all = options.log_sum_exp;
    if (all.empty()) return run(options);
    const bool in_place = q.batch <= 1 || count == q.tokens;
    const Index of_row = count * q.heads, size = q.batch * of_row;
    double* const part =
        in_place ? all.data() + first * q.heads : workspace<block_scratch::log_sums, double>(size);
    options.log_sum_exp = {part, static_cast<std::size_t>(size)};
    run(options);
    for (Index b = 0; b < q.batch && !in_place; ++b)
      std::copy_n(part + b * of_row, of_row, all.data() + (b * q.tokens + first) * q.heads);
  }

  template <class K, class Rotation, class Threads>
  void attend_segments(const head_view<T>& q, const head_view<K>& k, const head_view<K>& v,
                       const writable_token_ref<T>& out, const attention_options& options,
                       const Rotation& rotation, const Threads& threads) const {
    const head_view<T> attended = attended_by(q);
    // Probabilities between different segments are 0.
    if (rotation.segment_count() > 1) std::fill(probabilities_.begin(), probabilities_.end(), T(0));
    Index first = 0, first_key = 0;
    for (Index s = 0; s < rotation.segment_count(); ++s) {
      const head_view<T> asking = rotation.queries.tokens_of(q, s);
      const head_view<K> seen = rotation.keys.tokens_of(k, s);
      attend_part(q, first, asking.tokens, rotation.options_of(options, s), [&](attention_options part) {
        attention(asking, seen, rotation.keys.tokens_of(v, s), rotation.queries.tokens_of(attended, s), part,
                  threads);
        part.log_sum_exp = {};
        if (probabilities_.empty() || asking.tokens == 0) return;
        const visibility rules = checked_scores<T, T>("attention_weights", asking, seen, part, false);
        const Index head = q.tokens * k.tokens;
        T* const data = probabilities_.data() + first * k.tokens + first_key;
        write_weights(attention_call<T, read_rotation<T>>{asking, seen, {}, {}, rules, {}},
                      weights_view<T>{data, q.heads * head, head, k.tokens, 1}, threads);
      });
      first += asking.tokens;
      first_key += seen.tokens;
    }
    run_products(threads, projected<T>(as_rows(attended), pass_.weights.o, out));
  }

  block_pass<T> pass_;
  std::span<T> probabilities_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BLOCK_DETAIL_FORWARD_HPP
