// The programs of train.md. Each is compared with finite differences or with the same sequences alone.

#include <cstdint>
#include <numeric>
#include <vector>

#include "guide.hpp"

namespace {

using namespace guide;
using namespace rope;

constexpr Index heads = 4, kv_heads = 2, head_dim = 16, pairs = head_dim / 2, count = 12;
using tensor_d = Eigen::Tensor<double, 4, Eigen::RowMajor>;

tensor_d random_double(Index of_heads, std::uint32_t seed) {
  return random_tensor(1, count, of_heads, head_dim, seed).cast<double>();
}

/// sum of out * d_out. The functions below compute its gradients.
double loss_of(tensor_d q, tensor_d k, tensor_d v, const tensor_d& d_out, const frequencies& f) {
  tensor_d out(1, count, heads, head_dim);
  attention<half_split>(bshd(q), bshd(k), bshd(v), bshd(out), frequency_table<double>(f, count));
  return std::inner_product(out.data(), out.data() + out.size(), d_out.data(), 0.0);
}

void gradients() {
  tensor_d q = random_double(heads, 1), k = random_double(kv_heads, 2), v = random_double(kv_heads, 3),
           d_out = random_double(heads, 4), out = d_out, d_q = q, d_k = k, d_v = v;
  Eigen::ArrayXd inv_freq = Eigen::ArrayXd::LinSpaced(pairs, 1, 0.01);
  const frequencies f = frequencies::custom(inv_freq);
  const frequency_table<double> table(f, count);

  attention<half_split>(bshd(q), bshd(k), bshd(v), bshd(out), table);
  attention_gradient<half_split>(attention_tape<double>{.q = bshd(q),
                                                        .k = bshd(k),
                                                        .v = bshd(v),
                                                        .out = bshd(out),
                                                        .d_out = bshd(d_out),
                                                        .d_q = bshd(d_q),
                                                        .d_k = bshd(d_k),
                                                        .d_v = bshd(d_v)},
                                 table);

  const double step = 1e-5;  // central differences: the error is about step^2 plus 1e-16 / step
  double off = 0;
  for (const Index i : {Index{0}, Index{77}, Index{400}}) {
    tensor_d more = q, less = q;
    more.data()[i] += step, less.data()[i] -= step;
    formula::compare(off, (loss_of(more, k, v, d_out, f) - loss_of(less, k, v, d_out, f)) / (2 * step),
                     d_q.data()[i]);
  }
  check(off <= 1e-8, "the gradient with respect to unrotated queries");

  const auto d_inv_freq = inv_freq_gradient<half_split>(bshd(q), bshd(d_q), table);  // [pairs, axes]
  const auto from_keys = inv_freq_gradient<half_split>(bshd(k), bshd(d_k), table);

  off = 0;
  for (Index i = 0; i < pairs; ++i) {
    Eigen::ArrayXd more = inv_freq, less = inv_freq;
    more(i) += step, less(i) -= step;
    const double slope = (loss_of(q, k, v, d_out, frequencies::custom(more)) -
                          loss_of(q, k, v, d_out, frequencies::custom(less))) /
                         (2 * step);
    formula::compare(off, d_inv_freq(i, 0) + from_keys(i, 0), slope);
  }
  check(off <= 1e-6, "the gradient with respect to the frequencies");
}

void gradient_of_a_rotation() {
  const frequency_table<double> table(frequencies(head_dim), 64);
  tensor_d x = random_double(heads, 1), d_y = random_double(heads, 2), y = x, d_x = d_y;

  rotate<half_split>(bshd(y), table, 7);             // forward
  rotate_gradient<half_split>(bshd(d_x), table, 7);  // backward: d_y becomes d_x

  // y is linear in x: d_y . y = d_x . x.
  const double left = std::inner_product(d_y.data(), d_y.data() + d_y.size(), y.data(), 0.0);
  const double right = std::inner_product(d_x.data(), d_x.data() + d_x.size(), x.data(), 0.0);
  check(std::abs(left - right) <= 1e-12, "the gradient of a rotation is its transpose");
}

void packed_sequences() {
  tensor q = random_tensor(1, 24, heads, head_dim, 1), k = random_tensor(1, 24, kv_heads, head_dim, 2),
         v = random_tensor(1, 24, kv_heads, head_dim, 3), out(1, 24, heads, head_dim);
  const frequency_table<float> table(frequencies(head_dim), 64);

  const std::vector<std::int64_t> cu_seqlens = {0, 9, 11, 24};  // three sequences
  attention<half_split>(bshd(q), bshd(k), bshd(v), bshd(out), table, {.query_offsets = cu_seqlens});

  const auto segment = [](Index t) { return t < 9 ? 0 : t < 11 ? 1 : 2; };
  const auto visible = [&](Index, Index i, Index j) { return j <= i && segment(j) == segment(i); };
  check(attention_error(q, k, v, out, formula::speeds_of(head_dim, 10000), visible) <= float_bound,
        "packed sequences see only themselves");
}

void parts_of_a_context() {
  const tensor q = random_tensor(1, 24, heads, head_dim, 1), k = random_tensor(1, 24, kv_heads, head_dim, 2),
               v = random_tensor(1, 24, kv_heads, head_dim, 3);
  tensor out(1, 24, heads, head_dim), other(1, 24, heads, head_dim);
  const frequency_table<float> table(frequencies(head_dim), 64);

  std::vector<std::int64_t> positions(24);
  std::iota(positions.begin(), positions.end(), 0);
  const std::span<const std::int64_t> all(positions);
  std::vector<double> lse(24 * heads), other_lse(24 * heads);
  attention<half_split>(bshd(q), bshd(k).token_range(0, 12), bshd(v).token_range(0, 12), bshd(out), table,
                        {.query_positions = all, .key_positions = all.first(12), .log_sum_exp = lse});
  attention<half_split>(bshd(q), bshd(k).token_range(12, 12), bshd(v).token_range(12, 12), bshd(other), table,
                        {.query_positions = all, .key_positions = all.last(12), .log_sum_exp = other_lse});
  merge_attention(bshd(out), lse, bshd(other), other_lse);

  check(attention_error(q, k, v, out, formula::speeds_of(head_dim, 10000)) <= float_bound,
        "attention to two parts of the keys, merged");
}

}  // namespace

int main() {
  gradients();
  gradient_of_a_rotation();
  packed_sequences();
  parts_of_a_context();
  return all_hold ? 0 : 1;
}
