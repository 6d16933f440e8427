// Learns rotary frequencies by gradient descent. A teacher attends with eight frequencies, whose wavelengths
// no schedule has. A student starts from the usual schedule and gets only the outputs of the teacher. It
// follows the gradient through attention and rotation until it has the frequencies of the teacher.
// Sequences start short: an error d of a frequency is an error d * distance of the angle, and beyond pi
// the gradient points the wrong way. Once frequencies are right for short distances, longer ones make
// them more precise. Usage: rope_learn_frequencies [figure.svg]

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "svg_plot.hpp"

namespace {

using rope::half_split;
using rope::Index;

constexpr Index batch = 4, heads = 4, head_dim = 16, pairs = head_dim / 2;
constexpr int steps_per_length = 200;
constexpr double wavelengths[pairs] = {4, 5.5, 9, 13, 21, 37, 55, 89};  // of the teacher, in tokens

/// Heads of one call, [batch, tokens, heads, head_dim], and their gradient.
struct tensor {
  Index tokens;
  std::vector<double> values;

  explicit tensor(Index length)
      : tokens(length), values(static_cast<std::size_t>(batch * length * heads * head_dim)) {}
  rope::head_view<double> view() { return rope::bshd(values.data(), batch, tokens, heads, head_dim); }
};

tensor random_heads(Index tokens, std::mt19937_64& generator) {
  std::normal_distribution<double> normal;
  tensor x(tokens);
  for (double& value : x.values) value = normal(generator);
  return x;
}

/// The mean squared difference of the student's outputs from the teacher's, and its gradient with respect to
/// the frequencies.
struct lesson {
  double loss;
  Eigen::ArrayXd gradient;
};

lesson study(const Eigen::ArrayXd& inv_freq, const rope::frequencies& teacher, Index tokens,
             std::mt19937_64& generator) {
  tensor q = random_heads(tokens, generator), k = random_heads(tokens, generator),
         v = random_heads(tokens, generator);
  tensor target(tokens), out(tokens), d_out(tokens), d_q(tokens), d_k(tokens), d_v(tokens);
  const rope::attention_options options = {.scale = 1};
  const rope::frequency_table<double> theirs(teacher, tokens),
      ours(rope::frequencies::custom(inv_freq), tokens);
  rope::attention<half_split>(q.view(), k.view(), v.view(), target.view(), theirs, options);
  rope::attention<half_split>(q.view(), k.view(), v.view(), out.view(), ours, options);

  double loss = 0;
  const double share = 1 / static_cast<double>(out.values.size());
  for (std::size_t n = 0; n < out.values.size(); ++n) {
    const double error = out.values[n] - target.values[n];
    loss += share * error * error;
    d_out.values[n] = 2 * share * error;
  }

  // The gradient passes from the output to the unrotated queries and keys, and from these to the frequencies.
  rope::attention_gradient<half_split>(rope::attention_tape<double>{.q = q.view(),
                                                                    .k = k.view(),
                                                                    .v = v.view(),
                                                                    .out = out.view(),
                                                                    .d_out = d_out.view(),
                                                                    .d_q = d_q.view(),
                                                                    .d_k = d_k.view(),
                                                                    .d_v = d_v.view()},
                                       ours, options);
  return {loss, rope::inv_freq_gradient<half_split>(q.view(), d_q.view(), ours).col(0) +
                    rope::inv_freq_gradient<half_split>(k.view(), d_k.view(), ours).col(0)};
}

/// Kingma and Ba 2014, arXiv:1412.6980, algorithm 1.
struct adam {
  Eigen::ArrayXd mean = Eigen::ArrayXd::Zero(pairs), square = Eigen::ArrayXd::Zero(pairs);
  int steps = 0;

  Eigen::ArrayXd step(const Eigen::ArrayXd& gradient, double rate) {
    ++steps;
    mean = 0.9 * mean + 0.1 * gradient;
    square = 0.99 * square + 0.01 * gradient.square();
    return rate * (mean / (1 - std::pow(0.9, steps))) /
           ((square / (1 - std::pow(0.99, steps))).sqrt() + 1e-12);
  }
};

struct record {
  Index tokens;
  double loss;
  Eigen::ArrayXd inv_freq;
};

/// Two panels: the loss, and the path of every frequency to the one of the teacher.
std::string figure(const std::vector<record>& history) {
  svg::picture both(
      1080, 430, "Frequencies found by gradient descent",
      svg::format("%d steps each with sequences of 4, 8, 16 and 32 tokens; dotted what was planted",
                  steps_per_length));
  const svg::axis step = {"step of Adam", 0, static_cast<double>(history.size())};
  svg::panel loss(both, {80, 85, 330, 280}, step, {"mean squared error", 1e-33, 1, true},
                  "loss of the outputs");
  svg::panel paths(both, {520, 85, 330, 280}, step, {"inv_freq (rad per token)", 1e-4, 10, true},
                   "the frequency of every pair");
  const auto path = [&](const auto& value) {
    std::vector<svg::point> points;
    for (std::size_t n = 0; n < history.size(); ++n)
      points.push_back({static_cast<double>(n), value(history[n])});
    return points;
  };
  loss.line(path([](const record& at) { return at.loss; }), svg::blue);
  for (Index i = 0; i < pairs; ++i) {
    const std::string colour = svg::format("hsl(%d,65%%,45%%)", 210 + 18 * static_cast<int>(i));
    paths.curve(svg::format("pair %d: %g tokens", static_cast<int>(i), wavelengths[i]),
                path([i](const record& at) { return std::abs(at.inv_freq(i)); }), colour.c_str());
    const double goal = 2 * std::numbers::pi / wavelengths[i];
    paths.line({{step.low, goal}, {step.high, goal}}, svg::ink, "stroke-dasharray='2 5'");
  }
  return both.text();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string path = count > 1 ? arguments[1] : "learn_frequencies.svg";
  Eigen::ArrayXd planted(pairs);
  for (Index i = 0; i < pairs; ++i) planted(i) = 2 * std::numbers::pi / wavelengths[i];
  const auto teacher = rope::frequencies::custom(planted);
  Eigen::ArrayXd inv_freq = rope::frequencies(head_dim).inv_freq().col(0);

  std::mt19937_64 generator(1);
  std::vector<record> history;
  std::printf("%-6s %-6s %-12s %s\n", "step", "tokens", "loss", "largest |inv_freq - planted| / planted");
  adam optimiser;
  for (Index tokens = 4; tokens <= 32; tokens *= 2) {
    for (int step = 0; step < steps_per_length; ++step) {
      const lesson now = study(inv_freq, teacher, tokens, generator);
      history.push_back({tokens, now.loss, inv_freq});
      if (step % 50 == 0)
        std::printf("%-6zu %-6td %-12.3e %.2e\n", history.size() - 1, tokens, now.loss,
                    ((inv_freq - planted).abs() / planted).maxCoeff());
      // From large steps, which cross the gap, to small steps, which settle.
      const double rate = 0.03 * std::pow(1e-4, static_cast<double>(history.size()) / (4 * steps_per_length));
      inv_freq -= optimiser.step(now.gradient, rate);
    }
  }

  std::printf("\n%-5s %-12s %-12s %-12s %s\n", "pair", "start", "learned", "planted", "wavelength");
  for (Index i = 0; i < pairs; ++i)
    std::printf("%-5td %-12.8f %-12.8f %-12.8f %.6f\n", i, history.front().inv_freq(i), inv_freq(i),
                planted(i), 2 * std::numbers::pi / inv_freq(i));
  std::ofstream file(path);
  file << figure(history);
  file.close();
  if (!file) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  const double error = ((inv_freq - planted).abs() / planted).maxCoeff();
  const bool recovered = error < 1e-12;
  std::printf("\n%s: the largest relative error is %.2e; see %s\n", recovered ? "recovered" : "NOT RECOVERED",
              error, path.c_str());
  return recovered ? 0 : 1;
}
