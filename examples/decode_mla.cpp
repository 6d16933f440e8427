#include <rope/rope.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

// rope_decode_mla [tokens]: decoding with multi-head latent attention, as in DeepSeek V2 and V3, Kimi K2 and
// others. 128 heads compute keys and values from one latent of 512 channels, and share one rotated part of
// 64.
//
//   expanded  a kv_cache has keys of 128 + 64 and values of 128 channels for every head
//   absorbed  a latent_cache has only latents and rotated parts. The expanding weights are multiplied into
//             the query before attention and into the output after it
namespace {

using rope::Index;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using times = std::vector<double>;
constexpr Index heads = 128, latent = 512, rotary = 64, plain = 128, value = 128, width = latent + rotary;

double seconds(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double median(times x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}
volatile float sink = 0.999f;

/// The flops of one core at peak, in registers.
void multiply_add(double flops) {
  using lanes = Eigen::Array<float, EIGEN_MAX_ALIGN_BYTES / sizeof(float), 1>;
  lanes sums[12], factor = lanes::Ones() * float(sink), term = lanes::Ones() * 0.001f;
  for (lanes& sum : sums) sum.setRandom();
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    for (Index n = static_cast<Index>(flops / double(24 * lanes::SizeAtCompileTime)); n > 0; --n)
      ((sums[i] = sums[i] * factor + term), ...);
  }
  (std::make_index_sequence<12>{});
  for (int i = 1; i < 12; ++i) sums[0] += sums[i];
  if (sums[0].sum() < 0) sink = 0.998f;
}

/// Rows of head h in the matrices of all heads, which are stacked.
auto of_head(const matrix& weights, Index h) {
  return weights.middleRows(h * weights.rows() / heads, weights.rows() / heads);
}

}  // namespace

int main(int count, char** arguments) {
  const Index tokens = count > 1 ? std::atol(arguments[1]) : 1024, last = tokens - 1;
  if (tokens < 2 || tokens > 1 << 16) return std::puts("usage: rope_decode_mla [tokens: 2 to 65536]"), 1;
  std::srand(1);
  const rope::attention_options options = {.scale = 1 / std::sqrt(double{plain + rotary})};
  const rope::frequency_table table(rope::frequencies(rotary, 10000.0), tokens);
  // In a model these are weights, and projections of its tokens.
  const matrix up = matrix::Random(heads * plain, latent) / 16,
               down = matrix::Random(heads * value, latent) / 16, latents = matrix::Random(tokens, latent),
               parts = matrix::Random(tokens, rotary), q_plain = matrix::Random(heads, plain),
               q_part = matrix::Random(heads, rotary);

  rope::latent_cache<float> absorbed(1, tokens, latent, rotary);
  matrix q(heads, width), in_latent(heads, latent), absorbed_out(heads, value);
  double attending = 0;  // seconds of attention alone
  const auto remember = [&](Index first, Index n) {
    absorbed.append<rope::interleaved>(rope::thd(latents, 1).token_range(first, n),
                                       rope::thd(parts, 1).token_range(first, n), table);
  };
  const auto absorbed_step = [&] {
    remember(last, 1);
    for (Index h = 0; h < heads; ++h) q.row(h).head(latent).noalias() = q_plain.row(h) * of_head(up, h);
    q.rightCols(rotary) = q_part;
    attending = seconds([&] {
      rope::attention<rope::interleaved>(rope::bshd(q.data(), 1, 1, heads, width), absorbed,
                                         rope::bshd(in_latent.data(), 1, 1, heads, latent), table, options);
    });
    for (Index h = 0; h < heads; ++h)
      absorbed_out.row(h).transpose().noalias() = of_head(down, h) * in_latent.row(h).transpose();
  };

  rope::kv_cache<float> expanded(1, tokens, heads, plain + rotary, value);
  const rope::placed_table behind = table.at_channel(plain);
  matrix query(heads, plain + rotary), expanded_out(heads, value), key = query, values = expanded_out;
  const auto expand = [&](Index t) {
    for (Index h = 0; h < heads; ++h) {
      key.row(h).head(plain).transpose().noalias() = of_head(up, h) * latents.row(t).transpose();
      values.row(h).transpose().noalias() = of_head(down, h) * latents.row(t).transpose();
    }
    key.rightCols(rotary).rowwise() = parts.row(t);
    expanded.append<rope::interleaved>(rope::bshd(key.data(), 1, 1, heads, plain + rotary),
                                       rope::bshd(values.data(), 1, 1, heads, value), behind);
  };
  const auto expanded_step = [&] {
    expand(last);
    query << q_plain, q_part;
    rope::attention<rope::interleaved>(rope::bshd(query.data(), 1, 1, heads, plain + rotary), expanded,
                                       rope::bshd(expanded_out.data(), 1, 1, heads, value), behind, options);
  };
  remember(0, last);
  for (Index t = 0; t < last; ++t) expand(t);

  // Decodes the last token repeatedly, each time next to the peak of the core.
  times absorbed_times, expanded_times, attention_times, multiply_times, read_times;
  for (int i = 0; i < (tokens < 256 ? 3 : 15); ++i) {
    absorbed.truncate(last);
    expanded.truncate(last);
    multiply_times.push_back(seconds([&] { multiply_add(2.0 * double(heads * (width + latent) * tokens)); }));
    absorbed_times.push_back(seconds(absorbed_step));
    attention_times.push_back(attending);
    const Eigen::Map<const Eigen::ArrayXf> keys(absorbed.keys().data, tokens * width);
    read_times.push_back(seconds([&] { sink = keys.sum() * 0 + 0.999f; }));
    expanded_times.push_back(seconds(expanded_step));
  }

  // tests/cache/laws/latent_attention.test.cpp has the general bound. Here scores are small.
  const double largest = double(expanded_out.cwiseAbs().maxCoeff()),
               difference = double((absorbed_out - expanded_out).cwiseAbs().maxCoeff()) / largest * 0x1p24,
               limit = std::max(median(multiply_times), median(read_times));
  std::printf("%d tokens: outputs differ by %.1f u of the largest\n", int(tokens), difference);
  std::printf("                 expanded   absorbed\n");
  std::printf("bytes per token  %8d   %8d\n", int(4 * heads * (plain + rotary + value)), int(4 * width));
  std::printf("ms per step      %8.2f   %8.2f\n", 1e3 * median(expanded_times), 1e3 * median(absorbed_times));
  std::printf(
      "absorbed attention: %.2f ms, %.2f of what the core allows (%.2f ms to multiply, %.2f to read)\n",
      1e3 * median(attention_times), limit / median(attention_times), 1e3 * median(multiply_times),
      1e3 * median(read_times));
  return difference < 64 && largest > 0 ? 0 : 1;
}
