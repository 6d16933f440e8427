// The rotation as one operation of a library for automatic differentiation, here ADOL-C (Debian:
// libadolc-dev). Such a library records every arithmetic operation on a tape. Recorded in this way, a
// rotation of n channels takes about 6 n entries and two transcendental functions per angle. As an external
// operation it takes a single entry: forward is `rotate`, reverse is `rotate_gradient` and
// `inv_freq_gradient`. The program compares both ways and fails if they differ. A torch::autograd::Function
// or a jax.custom_vjp would call the same functions.

#include <rope/rope.hpp>

#include <adolc/adolc.h>
#include <adolc/externfcts2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using rope::half_split;
using rope::Index;

/// y = rotate(x), differentiable with respect to the heads x and the frequencies inv_freq.
class rotation_op {
 public:
  /// Heads [tokens, heads, head_dim], token t at position start + t.
  rotation_op(Index tokens, Index heads, Index head_dim, long start)
      : tokens_(tokens), heads_(heads), head_dim_(head_dim), start_(start), entry_(reg_ext_fct(&forward)) {
    entry_->zos_forward = &forward;
    entry_->fos_reverse = &reverse;
    entry_->context = this;
    entry_->dp_x_changes = 0;
    entry_->dp_y_priorRequired = 0;
  }
  // The tape stores a reference to this object.
  rotation_op(const rotation_op&) = delete;
  rotation_op& operator=(const rotation_op&) = delete;

  /// Records the operation y = rotate(x) on the active tape. x and y [x.size()], inv_freq [pairs].
  void operator()(std::vector<adouble>& x, std::vector<adouble>& inv_freq, std::vector<adouble>& y) {
    int in_sizes[] = {static_cast<int>(x.size()), static_cast<int>(inv_freq.size())};
    int out_sizes[] = {static_cast<int>(y.size())};
    adouble* in[] = {x.data(), inv_freq.data()};
    adouble* out[] = {y.data()};
    call_ext_fct(entry_, 0, nullptr, 2, 1, in_sizes, in, out_sizes, out);
  }

 private:
  rope::head_view<double> heads(double* data) const { return rope::thd(data, tokens_, heads_, head_dim_); }
  rope::frequency_table<double> table(const double* inv_freq, int pairs) const {
    return {rope::frequencies::custom(Eigen::Map<const Eigen::ArrayXd>(inv_freq, pairs)), start_,
            start_ + tokens_};
  }

  static int forward(int, int*, int, int, int* in_sizes, double** in, int*, double** out, void* context) {
    const auto& op = *static_cast<rotation_op*>(context);
    rope::rotate_to<half_split>(op.heads(in[0]), op.heads(out[0]), op.table(in[1], in_sizes[1]), op.start_);
    return 0;
  }

  /// Converts the gradient with respect to y to gradients of x and inv_freq. It needs x, but no other
  /// intermediate result.
  static int reverse(int, int*, int, int, int*, double** d_out, int* in_sizes, double** d_in, double** in,
                     double**, void* context) {
    const auto& op = *static_cast<rotation_op*>(context);
    const auto table = op.table(in[1], in_sizes[1]);
    std::vector<double> d_x(static_cast<std::size_t>(in_sizes[0]));
    rope::rotate_gradient_to<half_split>(op.heads(d_out[0]), op.heads(d_x.data()), table, op.start_);
    const auto d_inv_freq =
        rope::inv_freq_gradient<half_split>(op.heads(in[0]), op.heads(d_x.data()), table, op.start_);
    // Other uses of x and inv_freq have already added to d_in.
    for (std::size_t n = 0; n < d_x.size(); ++n) d_in[0][n] += d_x[n];
    for (int i = 0; i < in_sizes[1]; ++i) d_in[1][i] += d_inv_freq(i, 0);
    return 0;
  }

  Index tokens_, heads_, head_dim_;
  long start_;
  ext_diff_fct_v2* entry_;
};

constexpr Index tokens = 5, heads = 2, head_dim = 12, pairs = 4, channels = tokens * heads * head_dim;
constexpr long start = 3;

/// The rotation in recorded arithmetic, one operation after another.
void rotate_recorded(const std::vector<adouble>& x, const std::vector<adouble>& inv_freq,
                     std::vector<adouble>& y) {
  for (std::size_t n = 0; n < x.size(); ++n) y[n] = x[n];
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < pairs; ++i) {
        const auto u = static_cast<std::size_t>((t * heads + h) * head_dim + i),
                   v = u + static_cast<std::size_t>(pairs);
        const adouble angle = static_cast<double>(start + t) * inv_freq[static_cast<std::size_t>(i)];
        y[u] = x[u] * cos(angle) - x[v] * sin(angle);
        y[v] = x[v] * cos(angle) + x[u] * sin(angle);
      }
}

/// The gradient of sum_n n tanh(y_n) + |x|^2 + |inv_freq|^2 with respect to x and inv_freq, where y is the
/// rotated x.
template <class Rotate>
std::vector<double> recorded_gradient(short tape, const std::vector<double>& at, const Rotate& rotate) {
  std::vector<adouble> x(channels), inv_freq(pairs), y(channels);
  double value = 0;
  trace_on(tape);
  for (std::size_t n = 0; n < at.size(); ++n) (n < x.size() ? x[n] : inv_freq[n - x.size()]) <<= at[n];
  rotate(x, inv_freq, y);
  adouble loss = 0;
  for (std::size_t n = 0; n < y.size(); ++n) loss += static_cast<double>(n) * tanh(y[n]) + x[n] * x[n];
  for (const adouble& f : inv_freq) loss += f * f;
  loss >>= value;
  trace_off();
  std::size_t counts[STAT_SIZE];
  tapestats(tape, counts);
  std::printf("  loss %.15g, %zu operations on the tape\n", value, counts[NUM_OPERATIONS]);
  std::vector<double> gradient_at(at.size());
  gradient(tape, static_cast<int>(at.size()), at.data(), gradient_at.data());
  return gradient_at;
}

}  // namespace

int main() {
  std::vector<double> at;
  for (Index n = 0; n < channels; ++n) at.push_back(std::sin(1.7 * static_cast<double>(n)));
  for (Index i = 0; i < pairs; ++i) at.push_back(std::pow(0.4, static_cast<double>(i)));

  std::printf("rotation as one operation:\n");
  rotation_op op(tokens, heads, head_dim, start);
  const auto one = recorded_gradient(1, at, [&](auto& x, auto& inv_freq, auto& y) { op(x, inv_freq, y); });
  std::printf("rotation recorded operation by operation:\n");
  const auto many = recorded_gradient(2, at, rotate_recorded);

  double worst = 0;
  for (std::size_t n = 0; n < one.size(); ++n)
    worst = std::max(worst, std::abs(one[n] - many[n]) / (1 + std::abs(many[n])));
  for (Index i = 0; i < pairs; ++i)
    std::printf("  d loss / d inv_freq(%td) = %.12f, recorded %.12f\n", i,
                one[static_cast<std::size_t>(channels + i)], many[static_cast<std::size_t>(channels + i)]);
  const bool agree = worst < 1e-12;
  std::printf("%s: the largest relative difference is %.1e\n", agree ? "agree" : "DIFFER", worst);
  return agree ? 0 : 1;
}
