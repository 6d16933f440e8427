// Eight figures that explain rotary embeddings, in light and dark, drawn from values that rope computed.
// Their numbers are checked against formulas in long double, which share no code with rope.
// Usage: rope_see_rope [folder [older figures to compare with the new ones of equal name ...]]

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numbers>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "by_the_formula.hpp"
#include "svg_plot.hpp"

namespace {

using namespace formula;

bool all_true = true;

void check(bool holds, const char* claim) {
  std::printf("  %s  %s\n", holds ? "ok    " : "FAILED", claim);
  all_true = all_true && holds;
}

/// The vector, rotated at a position.
channels rotated(channels x, const rope::frequencies& frequencies, std::int64_t position) {
  const rope::frequency_table table(frequencies, position, position + 1);
  rope::rotate<rope::half_split>(rope::thd(x.data(), 1, 1, static_cast<rope::Index>(x.size())), table,
                                 position);
  return x;
}

/// The point in a direction of a plane, at a distance from the origin.
svg::point towards(double angle, double away) { return {away * std::cos(angle), away * std::sin(angle)}; }

std::string rotated_pair(const svg::palette& ground) {
  svg::picture figure(520, 400, "A channel pair, rotated by position times frequency",
                      "the pair (u, v) = (1, 0) at positions 0 to 4, frequency f = 0.5 rad per position",
                      ground);
  svg::panel plane(figure, {90, 75, 260, 260}, {"u", -1.4, 1.4}, {"v", -1.4, 1.4});
  const rope::frequencies one_pair = rope::frequencies::custom(Eigen::ArrayXd::Constant(1, 0.5));
  double off = 0;
  std::vector<svg::point> arc;
  for (int step = 0; step <= 30; ++step) arc.push_back(towards(1.5 * step / 30, 0.35));
  for (int position = 0; position <= 4; ++position) {
    const channels x = rotated({1, 0}, one_pair, position);
    const svg::point tip = {real(x[0]), real(x[1])}, expected = towards(0.5 * position, 1);
    compare(off, std::hypot(tip.x - expected.x, tip.y - expected.y), 0);
    plane.arrow({0, 0}, tip, position == 0 ? ground.grey : position == 3 ? ground.vermilion : ground.blue);
    plane.write(towards(0.5 * position, 1.17), svg::format("p = %d", position), ground.ink);
  }
  plane.line(arc, ground.vermilion);
  plane.write(towards(0.75, 0.5), "3 f", ground.vermilion);
  check(off <= rotation_bound, "every arrow is (cos(p f), sin(p f))");
  return figure.text();
}

std::string frequencies_of_pairs(const svg::palette& ground) {
  const speeds speed = speeds_of(8, 100);
  svg::picture figure(980, 310, "Pairs of one vector rotate, each at its own frequency",
                      "head_dim 8, base 100; the vector at positions 0 (grey) to 6 (red)", ground);
  double off = 0;
  for (int pair = 0; pair < 4; ++pair) {
    const auto first = static_cast<std::size_t>(pair);
    svg::panel plane(figure, {75.0 + 235 * pair, 85, 175, 175}, {svg::format("channel %d", pair), -1.1, 1.1},
                     {svg::format("channel %d", pair + 4), -1.1, 1.1},
                     svg::format("pair %d: %.3f rad per position", pair, real(speed[first])));
    for (int position = 0; position <= 6; ++position) {
      const channels x = rotated(channels(8, 0.5f), rope::frequencies(8, 100), position);
      const double angle = real(position * speed[first]) + std::atan2(1.0, 1.0);
      const svg::point tip = {real(x[first]), real(x[first + 4])}, expected = towards(angle, std::sqrt(0.5));
      compare(off, std::hypot(tip.x - expected.x, tip.y - expected.y), 0);
      plane.arrow({0, 0}, tip, position == 0 ? ground.grey : position == 6 ? ground.vermilion : ground.blue);
      if (speed[first] > 0.2L) plane.write(towards(angle, 0.92), std::to_string(position), ground.ink);
    }
  }
  check(off <= rotation_bound, "every arrow is the first one, rotated by position times frequency");
  return figure.text();
}

std::string relative_scores(const svg::palette& ground) {
  svg::picture figure(
      960, 390, "Moved by the same amount, two vectors keep their angle and their lengths",
      "left: one pair at 0.3 rad per position, with its angles in rad; right: 64 channels, base 10000",
      ground);
  svg::panel plane(figure, {80, 75, 250, 250}, {"first channel", -1.3, 1.3}, {"second channel", -1.3, 1.3});
  double angle_off = 0, score_off = 0, length_off = 0;
  for (const int moved : {0, 4}) {
    const char* colour = moved == 0 ? ground.blue : ground.vermilion;
    const auto draw = [&](const char* name, float size, int position) {
      const rope::frequencies one_pair = rope::frequencies::custom(Eigen::ArrayXd::Constant(1, 0.3));
      const channels x = rotated({size, 0}, one_pair, position);
      const double angle = std::atan2(real(x[1]), real(x[0]));
      plane.arrow({0, 0}, {real(x[0]), real(x[1])}, colour);
      plane.write(towards(angle, real(size) + 0.2), svg::format("%s at %d", name, position), colour);
      return angle;
    };
    const double from = draw("k", 0.7f, 1 + moved), to = draw("q", 1, 3 + moved);
    compare(angle_off, to - from, 2 * 0.3);
    std::vector<svg::point> arc;
    for (int step = 0; step <= 20; ++step) arc.push_back(towards(from + (to - from) * step / 20, 0.3));
    plane.line(arc, colour);
    plane.write(towards((from + to) / 2, 0.45), "0.6", colour);
  }
  const rope::frequencies frequencies(64, 10000);
  channels q = random_channels(64, 1), k = random_channels(64, 2);
  for (std::size_t c = 0; c < k.size(); ++c) k[c] = q[c] + k[c] / 2;
  const double whole = length(q) * length(k);
  std::vector<svg::point> both, alone, longs;
  for (int moved = 0; moved <= 60; ++moved) {
    const channels q_there = rotated(q, frequencies, 3 + moved), k_there = rotated(k, frequencies, 1 + moved);
    both.push_back({real(moved), dot(q_there, k_there) / whole});
    alone.push_back({real(moved), dot(rotated(q, frequencies, 3), k_there) / whole});
    longs.push_back({real(moved), length(q_there) / length(q)});
    compare(score_off, both.back().y, score(q, k, speeds_of(64, 10000), 2) / whole);
    compare(score_off, alone.back().y, score(q, k, speeds_of(64, 10000), 2 - moved) / whole);
    compare(length_off, longs.back().y, 1);
  }
  svg::panel moves(figure, {420, 75, 350, 250}, {"moved by (positions)", 0, 60},
                   {"share of |q| |k|, or of |q|", 0, 1.2});
  moves.curve("length of q", longs, ground.green);
  moves.curve("q . k, both moved", both, ground.blue);
  moves.curve("q . k, only k moved", alone, ground.vermilion);
  check(angle_off <= score_bound, "the angle between q and k is 0.6 rad before and after");
  check(score_off <= score_bound, "scores depend on the distance, not on the positions of q and k");
  check(length_off <= rotation_bound, "the length of q stays");
  return figure.text();
}

std::string decay(const svg::palette& ground) {
  constexpr std::size_t dim = 128;
  const channels ones(dim, 1);
  double off = 0;
  const auto draw = [&](svg::panel& panel, const std::string& name, const char* colour,
                        const rope::frequencies& frequencies, const speeds& speed, long double factor = 1) {
    std::vector<svg::point> points;
    for (std::int64_t d = 0; d <= 100000; d += std::max<std::int64_t>(1, d / 12)) {
      const double mean = dot(rotated(ones, frequencies, 0), rotated(ones, frequencies, d)) / dim;
      compare(off, mean / real(factor * factor), score(ones, ones, speed, real(d)) / dim);
      if (d > 0) points.push_back({real(d), mean});
    }
    panel.curve(name, points, colour);
  };
  svg::picture figure(880, 620, "Equal vectors: their score against their distance",
                      "head_dim 128: the mean cosine of 64 pairs, for YaRN times m^2; distances grow by 8 %",
                      ground);
  const svg::axis across = {"distance (positions)", 1, 1e5, true}, up = {"score / head_dim", -0.4, 1.4};
  svg::panel bases(figure, {80, 85, 620, 195}, across, up, "by base");
  const std::pair<double, const char*> drawn[] = {
      {1e2, ground.blue}, {1e4, ground.vermilion}, {5e5, ground.green}, {1e7, ground.purple}};
  for (const auto& [base, colour] : drawn)
    draw(bases, svg::format("base %.0f", base), colour, rope::frequencies(dim, base), speeds_of(dim, base));
  svg::panel rules(figure, {80, 360, 620, 195}, across, up,
                   "by rule of extension: base 10000, trained on 4096 positions, factor 4");
  const rope::yarn_scaling yarn = {.factor = 4, .original_max_position = 4096};
  speeds slowed = speeds_of(dim, 10000);
  for (long double& s : slowed) s /= 4;
  draw(rules, "as trained", ground.blue, rope::frequencies(dim, 10000), speeds_of(dim, 10000));
  draw(rules, "linear", ground.vermilion, rope::frequencies(dim, 10000, rope::linear_scaling{4}), slowed);
  draw(rules, "NTK", ground.green, rope::frequencies(dim, 10000, rope::ntk_scaling{4}),
       ntk_speeds(dim, 10000, 4));
  draw(rules, "YaRN", ground.purple, rope::frequencies(dim, 10000, yarn), yarn_speeds(dim, 10000, 4096, 4),
       yarn_factor(4));
  // A factor in cos and sin adds a rounding to each, in q and in k.
  check(off <= score_bound + 2 * unit,
        "every score is the mean of the cosines, times the factors of q and k");
  return figure.text();
}

std::string heat_maps(const svg::palette& ground) {
  const std::vector<std::string> words = {"the", "dog", "saw", "the", "pig", "and", "the", "pig", "saw"};
  const std::size_t n = words.size();
  constexpr double scale = 4.0 / 64;  // the score of a word with itself is 4
  channels x;
  for (const std::string& word : words)
    for (const float channel : vector_of(word, 64, 1)) x.push_back(channel);
  const auto tokens = rope::thd(std::as_const(x).data(), static_cast<rope::Index>(n), 1, 64);
  const rope::attention_options options = {.scale = scale, .causal = false};
  std::vector<float> without(n * n), with(n * n);
  rope::attention_weights(tokens, tokens, std::span(without), options);
  rope::attention_weights<rope::half_split>(tokens, tokens, std::span(with),
                                            rope::frequency_table(rope::frequencies(64), n), options);
  svg::picture figure(940, 490, "Attention between words, without and with positions",
                      "percent of a word's attention; each word has one vector, as query and as key", ground);
  double off = 0;
  bool nearest = true;
  for (const bool positions : {false, true}) {
    svg::panel map(figure, {positions ? 560.0 : 90.0, 85, 352, 352},
                   {"key", -0.5, real(n) - 0.5, false, words}, {"query", real(n) - 0.5, -0.5, false, words},
                   positions ? "with positions" : "without positions");
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> scores;
      for (std::size_t j = 0; j < n; ++j)
        scores.push_back(
            scale * score(&x[i * 64], &x[j * 64], speeds_of(64, 10000), positions ? real(i) - real(j) : 0));
      const std::vector<double> expected = softmax(scores);
      const float* row = &(positions ? with : without)[i * n];
      for (std::size_t j = 0; j < n; ++j) {
        compare(off, real(row[j]), expected[j]);
        map.cell(real(j), real(i), real(row[j]) / 0.85);
        map.write({real(j), real(i)}, svg::format("%.0f", 100 * real(row[j])),
                  row[j] > 0.5f ? ground.paper : ground.ink);
      }
      nearest = nearest && (!positions || std::max_element(row, row + n) == row + i);
    }
  }
  // A score of 64 products has 64 roundings and the roundings of the rotations, relative to at most 4. A
  // weight changes by twice that.
  check(off <= 2 * 4 * (score_bound + 64 * unit), "every weight is the softmax of the formula");
  check(std::equal(&without[0], &without[n], &without[3 * n]),
        "without positions, equal words have equal weights");
  check(nearest, "with positions, every word attends most to itself");
  return figure.text();
}

std::string exchanged_words(const svg::palette& ground) {
  struct {
    const char *query, *key;
    int at[2], of[2];  // their indices in the two sentences
  } const pairs[] = {{"chased", "dog", {2, 2}, {1, 4}},
                     {"chased", "pig", {2, 2}, {4, 1}},
                     {"dog", "pig", {1, 4}, {4, 1}},
                     {"pig", "dog", {4, 1}, {1, 4}}};
  const std::vector<std::string> names = {"chased, dog", "chased, pig", "dog, pig", "pig, dog"};
  svg::picture figure(1080, 350, "Words exchanged: scores of the same pairs of words in two sentences",
                      "each word has a query and a key of 64 channels 1 and -1; base 10000", ground);
  double off = 0;
  bool same = true, other = true;  // the scores of both sentences
  for (const bool positions : {false, true}) {
    svg::panel bars(figure, {positions ? 490.0 : 75.0, 85, 350, 200}, {"query, key", -0.5, 3.5, false, names},
                    {"score", -5, 15}, positions ? "with positions" : "without positions");
    for (int pair = 0; pair < 4; ++pair) {
      const auto& [query, key, at, of] = pairs[pair];
      const channels q = vector_of(query, 64, 1), k = vector_of(key, 64, 2);
      double scores[2];
      for (const int s : {0, 1}) {
        const int q_at = positions ? at[s] : 0, k_at = positions ? of[s] : 0;
        scores[s] = dot(rotated(q, rope::frequencies(64), q_at), rotated(k, rope::frequencies(64), k_at));
        compare(off, scores[s], score(q, k, speeds_of(64, 10000), q_at - k_at));
        bars.bar(pair - 0.17 + 0.34 * s, 0.3, scores[s], s == 0 ? ground.blue : ground.vermilion);
      }
      same = same && (positions || scores[0] == scores[1]);
      other = other && (!positions || std::abs(scores[0] - scores[1]) >= 1);
    }
    if (!positions) continue;
    bars.legend("the dog chased the pig", ground.blue);
    bars.legend("the pig chased the dog", ground.vermilion);
  }
  check(off <= 64 * score_bound, "every score agrees with the formula");
  check(same && other, "without positions, both sentences have the same scores; with them, none is the same");
  return figure.text();
}

std::string schedules(const svg::palette& ground) {
  constexpr std::size_t dim = 128;
  constexpr double trained = 4096, two_pi = 2 * std::numbers::pi;
  svg::picture figure(900, 420, "Schedules of context extension: wavelength of each pair",
                      "head_dim 128, base 10000, trained on 4096 positions, factor 4", ground);
  svg::panel pairs(figure, {80, 75, 580, 280}, {"pair", 0, 63}, {"wavelength (positions)", 1, 1e6, true});
  pairs.level("4096 positions", trained, ground.grey, "5 3");
  pairs.level("16384 positions", 4 * trained, ground.grey, "1 4");
  double off = 0;
  const auto draw = [&](const char* name, const char* colour, const rope::frequencies& frequencies,
                        const speeds& expected) {
    std::vector<svg::point> points;
    for (std::size_t i = 0; i < dim / 2; ++i) {
      const double inv_freq = frequencies.inv_freq(static_cast<rope::Index>(i), 0);
      compare(off, inv_freq / real(expected[i]), 1);
      points.push_back({real(i), two_pi / inv_freq});
    }
    pairs.curve(name, points, colour);
  };
  const rope::yarn_scaling yarn = {.factor = 4, .original_max_position = trained};
  const speeds as_trained = speeds_of(dim, 10000);
  speeds slowed = as_trained;
  for (long double& s : slowed) s /= 4;
  draw("as trained", ground.blue, rope::frequencies(dim, 10000), as_trained);
  draw("linear", ground.vermilion, rope::frequencies(dim, 10000, rope::linear_scaling{4}), slowed);
  draw("NTK", ground.green, rope::frequencies(dim, 10000, rope::ntk_scaling{4}), ntk_speeds(dim, 10000, 4));
  draw("YaRN", ground.purple, rope::frequencies(dim, 10000, yarn), yarn_speeds(dim, 10000, trained, 4));
  // The formulas in long double have errors of a few of its roundings, a frequency of half an ulp of double.
  check(off <= 0x1p-51, "every frequency agrees with the formula");
  return figure.text();
}

std::string float_angles(const svg::palette& ground) {
  bool bounded = true, exact = true;
  std::vector<svg::point> usual[2], ours;
  const rope::frequencies frequencies[] = {rope::frequencies(128, 10000), rope::frequencies(128, 500000)};
  for (double place = 1; place < 1.3e7; place *= 1.3) {
    const std::int64_t last = std::min<std::int64_t>(std::llround(place), 10000000);
    double table_off = 0;
    for (std::size_t base = 0; base < 2; ++base) {
      const std::int64_t first = std::max<std::int64_t>(1, last - 7);
      const rope::frequency_table<float> table(frequencies[base], first, last + 1);
      double angle_off = 0;
      for (std::int64_t p = first; p <= last; ++p)
        for (rope::Index i = 0; i < 64; ++i) {
          const double speed = frequencies[base].inv_freq()(i, 0);
          const float angle = static_cast<float>(p) * static_cast<float>(speed);
          const cos_sin expected = cos_sin_of(p, speed);
          compare(angle_off, real(std::cos(angle) - expected.cos), 0);
          compare(angle_off, real(std::sin(angle) - expected.sin), 0);
          for (const long double off : {table.cos(p)[i] - expected.cos, table.sin(p)[i] - expected.sin})
            compare(table_off, real(off), 0);
          exact = exact && ulps(table.cos(p)[i], expected.cos) < 0.502 &&
                  ulps(table.sin(p)[i], expected.sin) < 0.502;
        }
      // Two roundings each of the angle, the frequency and the product, and one of its cos or sin.
      bounded = bounded && angle_off <= (2.001 * real(last) + 2) * unit;
      bounded = bounded && (last < 1000000 || angle_off > 0.01);
      usual[base].push_back({real(last), angle_off});
    }
    ours.push_back({real(last), table_off});
  }
  svg::picture figure(860, 420, "Largest error of cos and sin, by how their angle is made",
                      "head_dim 128: the worst of 64 pairs at 8 positions in a row", ground);
  svg::panel errors(figure, {80, 75, 540, 280}, {"position (tokens)", 1, 1e7, true},
                    {"largest error (absolute)", 1e-9, 1, true});
  errors.curve("bound: p / 2^23", {{1, 2 * unit}, {0.5 / unit, 1}}, ground.grey, "stroke-dasharray='2 3'");
  errors.curve("float32 angles, base 10000", usual[0], ground.vermilion);
  errors.curve("float32 angles, base 500000", usual[1], ground.purple);
  errors.curve("rope, the worse of both", ours, ground.blue);
  check(bounded, "float32 angles are off by two roundings of them: by more than 0.01 from a million on");
  check(exact, "a table has the nearest float, to 0.502 ulp, up to ten million");
  return figure.text();
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder(argc > 1 ? argv[1] : ".");
  if (folder.string().starts_with('-')) {
    std::fprintf(stderr, "usage: rope_see_rope [folder [older figure ...]]\n");
    return 2;
  }
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    std::fprintf(stderr, "%s: %s\n", folder.string().c_str(), failed.message().c_str());
    return 1;
  }
  const std::pair<const char*, std::string (*)(const svg::palette&)> figures[] = {
      {"rotated_pair", rotated_pair},
      {"frequencies_of_pairs", frequencies_of_pairs},
      {"relative_scores", relative_scores},
      {"decay", decay},
      {"heat_maps", heat_maps},
      {"exchanged_words", exchanged_words},
      {"schedules", schedules},
      {"float_angles", float_angles}};
  for (const auto& [name, draw] : figures)
    for (const bool dark : {false, true}) {
      const std::string file = svg::format("%s%s.svg", name, dark ? "_dark" : "");
      std::printf("%s\n", file.c_str());
      check(bool(std::ofstream(folder / file) << draw(dark ? svg::dark : svg::light) << std::flush),
            "is written");
    }
  for (int i = 2; i < argc; ++i) {
    std::printf("%s\n", argv[i]);
    std::ifstream kept(argv[i]), drawn(folder / std::filesystem::path(argv[i]).filename());
    check(
        kept && svg::alike({std::istreambuf_iterator(kept), {}}, {std::istreambuf_iterator(drawn), {}}, 0.2),
        "is as it was drawn, to a fifth of a pixel");
  }
  return all_true ? 0 : 1;
}
