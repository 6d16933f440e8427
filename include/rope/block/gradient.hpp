// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_GRADIENT_HPP
#define ROPE_BLOCK_GRADIENT_HPP

#include <algorithm>  // std::fill
#include <cstddef>
#include <span>
#include <type_traits>  // std::type_identity_t

#include <rope/attention/attention.hpp>
#include <rope/attention/gradient.hpp>
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/block/detail/block_rotation.hpp>
#include <rope/block/detail/pass.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/multi_head_attention.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The backward pass of an attention block.

namespace rope::inline ROPE_ABI {

/// The inputs of a forward pass of a block, and the gradient with respect to its output.
///
///     cross_attention_gradient(
///         block, {.x = x, .context = context, .batch = batch, .d_out = d_out}, gradients);
template <class T>
struct multi_head_tape {
  detail::token_ref<T> x;                          // [batch * tokens, model_dim], as in the forward pass
  detail::token_ref<T> context{nullptr, 0, 0, 0};  // [batch * keys, context_dim], of cross-attention
  Index batch;                                     // rows of the batch
  detail::token_ref<T> d_out;                      // [batch * tokens, out_dim]
};

/// Memory for the gradients of a block, each with the shape of its parameter or input. Empty
/// gradients are not computed.
///
///     multi_head_gradients<float> gradients = {.x = {d_x.data(), d_x.rows(), d_x.cols()}};
///     multi_head_attention_gradient(block, {.x = x, .batch = batch, .d_out = d_out}, gradients);
template <class T>
struct multi_head_gradients {
  using token_map = typename projection<T>::weight_map;  // row-major [rows, columns], writable
  /// With respect to the tokens x, [batch * tokens, model_dim]. In self-attention, tokens contribute to the
  /// loss through queries, keys and values, in cross-attention only through the queries.
  token_map x{nullptr, 0, 0};
  /// With respect to the context of cross-attention, [batch * keys, context_dim].
  token_map context{nullptr, 0, 0};
  /// With respect to the weights. Each gradient has the shape of its weight.
  multi_head_parameters<T> weights = {};
  /// With respect to sink_logits and bias of the attention options. If these are not empty, a call with more
  /// than one segment throws.
  option_gradients options = {};
};

namespace detail {

template <class T, class Layout, class Rotation, class Threads>
class block_gradient {
 public:
  /// \param self  whether keys and values are projected from x (self-attention)
  block_gradient(const multi_head_attention<T, Layout>& block, const multi_head_tape<T>& tape,
                 const multi_head_gradients<T>& gradients, bool self, const Rotation& rotation,
                 const Threads& threads)
      : pass_{block.weights(), block.options(), block.shape(),
              self ? "multi_head_attention_gradient" : "cross_attention_gradient", "d_out"},
        tape_(tape),
        context_(self ? tape.x : tape.context),
        gradients_(gradients),
        self_(self),
        options_(self ? block.options().attention : block.all_visible()),
        rotation_(rotation),
        threads_(threads) {
    options_.log_sum_exp = {};  // written by the forward pass, and recomputed here in scratch memory
    if (self)
      for (const Index rows : {tape.context.rows(), gradients.context.rows()})
        if (rows > 0)
          throw_invalid(pass_.function, "self-attention has no context, got memory for ", rows,
                        " of its tokens");
    check_call();
  }

  void run() {
    const multi_head_weights<T>& weights = pass_.weights;
    const multi_head_shape& shape = pass_.shape;
    const auto [q_before, k_before, v] = pass_.project(tape_.x, context_, tape_.batch, threads_);
    const head_view<T> q = normalised<scratch::rotated_queries>(q_before, pass_.q_norm()),
                       k = normalised<scratch::rotated_keys>(k_before, pass_.k_norm());
    const head_norm<T> none;
    rotation_.queries.apply(q, none, threads_);
    rotation_.keys.apply(k, none, threads_);

    const head_view<T> out = like<scratch::attended>(q, shape.value_dim),
                       d_heads = like<scratch::d_attended>(q, shape.value_dim);
    run_products(threads_,
                 gradient_by_tokens<T>(as_rows(d_heads), projected_back<T>{tape_.d_out, weights.o}));
    const head_view<T> d_q = like<scratch::d_queries>(q, shape.head_dim),
                       d_k = like<scratch::d_keys>(k, shape.head_dim),
                       d_v = like<scratch::d_values>(v, shape.value_dim);
    if (rotation_.segment_count() == 0)  // otherwise attend_back writes these gradients
      for (const std::span<double>& d : {gradients_.options.sink_logits, gradients_.options.bias})
        std::fill(d.begin(), d.end(), 0.0);
    for (Index s = 0; s < rotation_.segment_count(); ++s)
      attend_back(s, q, k, v, out, d_heads, d_q, d_k, d_v);
    rotation_.queries.apply_transpose(d_q, threads_);
    rotation_.keys.apply_transpose(d_k, threads_);

    const multi_head_parameters<T>& d = gradients_.weights;
    by_norm(d.q_norm, pass_.q_norm(), q_before, d_q);
    by_norm(d.k_norm, pass_.k_norm(), k_before, d_k);
    const projected_back<T> by_q = {as_rows(d_q), weights.q}, by_k = {as_rows(d_k), weights.k},
                            by_v = {as_rows(d_v), weights.v};
    run_products(threads_, gradient_by_projection<T>(as_rows(out), tape_.d_out, d.o),
                 gradient_by_projection<T>(tape_.x, as_rows(d_q), d.q),
                 gradient_by_projection<T>(context_, as_rows(d_k), d.k),
                 gradient_by_projection<T>(context_, as_rows(d_v), d.v));
    const token_map &d_x = gradients_.x, &d_context = gradients_.context;
    if (self_)
      run_products(threads_, gradient_by_tokens<T>(d_x, by_q, by_k, by_v));
    else
      run_products(threads_, gradient_by_tokens<T>(d_x, by_q), gradient_by_tokens<T>(d_context, by_k, by_v));
  }

 private:
  using token_map = typename multi_head_gradients<T>::token_map;
  using scratch = block_scratch;

  template <class Map, class Of>
  void check_shape(const char* name, const Map& given, const Of& of) const {
    if (given.size() > 0 && of.size() == 0)
      throw_invalid(pass_.function, "the gradient with respect to ", name, " must be empty, as ", name,
                    " is, got ", shape_text({given.rows(), given.cols()}));
    if (given.size() > 0 && (given.rows() != of.rows() || given.cols() != of.cols()))
      throw_invalid(pass_.function, "the gradient with respect to ", name, " must be empty or ",
                    shape_text({of.rows(), of.cols()}), ", got ", shape_text({given.rows(), given.cols()}));
    if (given.size() > 0 && given.data() == nullptr)
      throw_invalid(pass_.function, "the gradient with respect to ", name, " must have memory, got null for ",
                    shape_text({given.rows(), given.cols()}));
  }
  void check_call() const {
    pass_.check_call(tape_.x, context_, tape_.d_out, tape_.batch, rotation_, options_);
    const multi_head_parameters<T>& d = gradients_.weights;
    const auto linear = [this](const char* weight, const char* bias, const projection<T>& given,
                               const projection<const T>& of) {
      check_shape(weight, given.weight, of.weight);
      check_shape(bias, given.bias, of.bias);
    };
    linear("the q weight", "the q bias", d.q, pass_.weights.q);
    linear("the k weight", "the k bias", d.k, pass_.weights.k);
    linear("the v weight", "the v bias", d.v, pass_.weights.v);
    linear("the o weight", "the o bias", d.o, pass_.weights.o);
    check_shape("q_norm", d.q_norm, pass_.weights.q_norm);
    check_shape("k_norm", d.k_norm, pass_.weights.k_norm);
    check_shape("x", gradients_.x, tape_.x);
    check_shape("the context", gradients_.context, context_);
    if (rotation_.segment_count() > 1 &&
        (!gradients_.options.sink_logits.empty() || !gradients_.options.bias.empty()))
      throw_invalid(pass_.function, "gradients with respect to options are those of one segment, got ",
                    rotation_.segment_count());
    check_option_gradients(pass_.function, gradients_.options, options_);
  }
  template <class Purpose>
  head_view<T> like(const head_view<T>& x, Index head_dim) const {
    return pass_.template scratch_heads<Purpose>(x.batch, x.tokens, x.heads, head_dim);
  }
  /// A normalised copy of the heads, because the heads before the norm are needed again. Without a norm, the
  /// heads themselves.
  template <class Purpose>
  head_view<T> normalised(const head_view<T>& x, const head_norm<T>& norm) const {
    if (norm.weight.empty()) return x;
    const head_view<T> y = like<Purpose>(x, x.head_dim);
    normalize_heads_to(x, y, norm, threads_);
    return y;
  }

  /// Forward and backward pass through the attention of one segment.
  void attend_back(Index s, const head_view<T>& q, const head_view<T>& k, const head_view<T>& v,
                   const head_view<T>& out, const head_view<T>& d_out, const head_view<T>& d_q,
                   const head_view<T>& d_k, const head_view<T>& d_v) const {
    const auto of_queries = [&](const head_view<T>& x) { return rotation_.queries.tokens_of(x, s); };
    const auto of_keys = [&](const head_view<T>& x) { return rotation_.keys.tokens_of(x, s); };
    const head_view<T> asking = of_queries(q);
    const Index sums = asking.batch * asking.tokens * asking.heads;
    attention_options options = rotation_.options_of(options_, s);
    options.log_sum_exp = {workspace<scratch::log_sums, double>(sums), static_cast<std::size_t>(sums)};
    attention(asking, of_keys(k), of_keys(v), of_queries(out), options, threads_);
    attention_gradient(attention_tape<T>{.q = asking,
                                         .k = of_keys(k),
                                         .v = of_keys(v),
                                         .out = of_queries(out),
                                         .d_out = of_queries(d_out),
                                         .d_q = of_queries(d_q),
                                         .d_k = of_keys(d_k),
                                         .d_v = of_keys(d_v)},
                       options, gradients_.options, threads_);
  }

  /// Replaces the gradient with respect to the output of a norm by the gradient with respect to its input.
  template <class Map>
  void by_norm(Map d_weight, const head_norm<T>& norm, const head_view<T>& before,
               const head_view<T>& d) const {
    if (!norm.weight.empty())
      normalize_heads_gradient(before, norm, d, {d_weight.data(), static_cast<std::size_t>(d_weight.size())},
                               threads_);
  }

  block_pass<T> pass_;
  const multi_head_tape<T>& tape_;
  const token_ref<T>& context_;  // the tokens of keys and values
  const multi_head_gradients<T>& gradients_;
  bool self_;
  attention_options options_;
  const Rotation& rotation_;
  const Threads& threads_;
};

template <class T, class Layout, class Rotation, class Threads>
block_gradient(const multi_head_attention<T, Layout>&, const multi_head_tape<T>&,
               const multi_head_gradients<T>&, bool, const Rotation&, const Threads&)
    -> block_gradient<T, Layout, Rotation, Threads>;

}  // namespace detail

/// Gradients of a loss. d_out is its gradient with respect to the output of `block.forward(x, batch, out)`.
///
///     multi_head_attention_gradient(block, {.x = x, .batch = batch, .d_out = d_out},
///                                   multi_head_gradients<float>{
///                                       .x = {d_x.data(), d_x.rows(), d_x.cols()},
///                                       .weights = {.q = {d_wq.data(), d_wq.rows(), d_wq.cols()}}});
///
/// No activations are stored between the passes: the forward pass is run again, except for its last product.
///
/// \param tape       the inputs of the forward pass, and d_out
/// \param gradients  memory for the gradients; empty gradients are not computed
/// \param threads    your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  the gradients share no element with each other or with an input
/// Throws:    std::invalid_argument if shapes disagree, and as the forward pass; nothing is then written
/// Cost:      about three times the forward pass. Scratch memory is that of the forward pass, and as much
///            again for the gradients with respect to heads (base/scratch.hpp)
/// Source:    the chain rule; attention/gradient.hpp, rotation/gradient.hpp
template <class T, class Layout, parallel_executor Threads = this_thread>
void multi_head_attention_gradient(const multi_head_attention<T, Layout>& block,
                                   const std::type_identity_t<multi_head_tape<T>>& tape,
                                   const multi_head_gradients<T>& gradients, const Threads& threads = {}) {
  detail::block_gradient(block, tape, gradients, true, detail::block_without_rotation, threads).run();
}

/// Gradients for `block.forward(x, batch, out, table, positions)`.
///
/// Throws:  as above; std::out_of_range if a position is outside the table; nothing is then written
template <class T, class Layout, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void multi_head_attention_gradient(const multi_head_attention<T, Layout>& block,
                                   const std::type_identity_t<multi_head_tape<T>>& tape,
                                   const multi_head_gradients<T>& gradients, const Table& table,
                                   const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("multi_head_attention_gradient", Threads);
  const auto rotation = detail::rotation_of_block<Layout>(table, positions);
  detail::block_gradient(block, tape, gradients, true, rotation, threads).run();
}

/// Gradients for `block.cross(x, context, batch, out)`.
///
/// Throws:  as above
template <class T, class Layout, parallel_executor Threads = this_thread>
void cross_attention_gradient(const multi_head_attention<T, Layout>& block,
                              const std::type_identity_t<multi_head_tape<T>>& tape,
                              const multi_head_gradients<T>& gradients, const Threads& threads = {}) {
  detail::block_gradient(block, tape, gradients, false, detail::block_without_rotation, threads).run();
}

/// Gradients for `block.cross(x, context, batch, out, table, query_positions, key_positions)`.
///
/// Throws:  as above; std::out_of_range if a position is outside the table; nothing is then written
template <class T, class Layout, rotation_table Table, class PQ, class PK, class Threads = this_thread>
void cross_attention_gradient(const multi_head_attention<T, Layout>& block,
                              const std::type_identity_t<multi_head_tape<T>>& tape,
                              const multi_head_gradients<T>& gradients, const Table& table,
                              const PQ& query_positions, const PK& key_positions,
                              const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("cross_attention_gradient", Threads);
  const auto rotation = detail::rotation_of_block<Layout>(table, query_positions, key_positions);
  detail::block_gradient(block, tape, gradients, false, rotation, threads).run();
}

ROPE_DETAIL_ASK_OF_GRADIENT(multi_head_attention_gradient, 0, 1, "with positions");
ROPE_DETAIL_ASK_OF_GRADIENT(cross_attention_gradient, 2, 2, "with positions of x and of the context");

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BLOCK_GRADIENT_HPP
