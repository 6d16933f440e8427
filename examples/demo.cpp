// The attention core of a Llama 3 8B layer (rotation, scores, softmax, weighted values: no weights, no
// projections) over a text. Each byte value is a fixed random vector. It runs as one prefill and again token
// by token, compares its outputs with recorded ones of Hugging Face transformers, and checks every claim of
// the report. A Hugging Face config.json, such as a file of examples/configs, replaces the shapes.
// Usage: rope_demo [text file [config.json [interleaved|half_split]]]
// The layout is needed only if the architecture has no known layout.

#include "recorded_attention.hpp"

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define ROPE_DEMO_HAS_JSON 1
#else
#define ROPE_DEMO_HAS_JSON 0
#endif

namespace {

using rope::Index;

// The shapes of Llama 3 8B, unless a config replaces them.
std::string model_name = "Llama 3 8B";
Index query_heads = 32, key_heads = 8, head_dim = 128;
Index first_channel = 0;  // of a head to rotate: DeepSeek rotates the last third
double softmax_multiplier = 1;
rope::frequencies frequencies(128, 500000);
rope::layout_kind layout = rope::layout_kind::half_split;

constexpr Index max_tokens = 4096;
constexpr double unit = 0x1p-24;  // half an ulp of 1 in float

bool all_true = true;

void check(bool holds, const char* claim) {
  std::printf("  %s  %s\n", holds ? "ok    " : "FAILED", claim);
  all_true = all_true && holds;
}

/// Takes the layer from a config.json. Throws if it cannot.
///
/// \param name  the layout by name, or empty
void read_config([[maybe_unused]] const std::string& path, [[maybe_unused]] std::string_view name) {
#if ROPE_DEMO_HAS_JSON
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot be read");
  std::optional<rope::layout_kind> named;
  for (const auto known : {rope::layout_kind::interleaved, rope::layout_kind::half_split})
    if (name == rope::name_of(known)) named = known;
  if (!name.empty() && !named) throw std::runtime_error("the layout must be interleaved or half_split");
  const auto model = rope::import_hugging_face(nlohmann::json::parse(file), {.layout = named});
  if (model.groups().empty()) throw std::runtime_error("no layer of this model rotates");
  const rope::layer_group& group = model.groups().front();
  if (model.key_heads == 0 || model.query_heads % model.key_heads != 0)
    throw std::runtime_error("num_attention_heads must be a multiple of num_key_value_heads");
  model_name = model.architecture + (group.layer_type.empty() ? "" : ", " + group.layer_type);
  query_heads = model.query_heads;
  key_heads = model.key_heads;
  head_dim = group.head_dim;
  first_channel = group.first_channel;
  softmax_multiplier = group.softmax_multiplier;
  frequencies = group.frequencies;
  layout = group.layout;
#else
  throw std::runtime_error("this build has no JSON library");
#endif
}

rope::attention_options attention_options() {
  return {.scale = softmax_multiplier / std::sqrt(static_cast<double>(head_dim))};
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The text as one channel vector per byte and head. Equal bytes have equal vectors, so they differ only by
/// their positions. Values are uniform in [-1, 1), the same on every machine.
std::vector<float> embed(const std::string& text, Index heads, std::uint32_t seed) {
  const Index width = heads * head_dim;
  std::mt19937 random(seed);
  std::vector<float> dictionary(static_cast<std::size_t>(256 * width));
  for (float& channel : dictionary)
    channel = static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-31f;
  std::vector<float> channels;
  channels.reserve(text.size() * static_cast<std::size_t>(width));
  for (const char c : text) {
    const auto row = dictionary.begin() + static_cast<Index>(static_cast<unsigned char>(c)) * width;
    channels.insert(channels.end(), row, row + width);
  }
  return channels;
}

double largest_magnitude(const std::vector<float>& x) {
  float largest = 0;
  for (const float value : x) largest = (std::max)(largest, std::abs(value));
  return static_cast<double>(largest);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = (std::max)(largest, std::abs(a[i] - b[i]));
  return static_cast<double>(largest);
}

/// Scores q . k / sqrt(head_dim) of the last query token with every key, all heads, summed in double. Queries
/// are rotated in one layout, keys in the same or in the other one, from position `start` on.
template <class QueryLayout, class KeyLayout>
std::vector<float> last_scores(const std::vector<float>& q, const std::vector<float>& k, Index tokens,
                               std::int64_t start) {
  const rope::frequency_table<float> plain(frequencies, start, start + tokens);
  const auto table = plain.at_channel(first_channel);
  std::vector<float> rotated_q(q.end() - query_heads * head_dim, q.end()), rotated_k = k;
  const auto query = rope::thd(rotated_q.data(), 1, query_heads, head_dim);
  const auto keys = rope::thd(rotated_k.data(), tokens, key_heads, head_dim);
  rope::rotate<QueryLayout>(query, table, start + tokens - 1);
  rope::rotate<KeyLayout>(keys, table, start);
  std::vector<float> scores;
  for (Index h = 0; h < query_heads; ++h)
    for (Index t = 0; t < tokens; ++t) {
      double sum = 0;
      for (Index d = 0; d < head_dim; ++d)
        sum += static_cast<double>(query.at(0, 0, h)[d]) *
               static_cast<double>(keys.at(0, t, h / (query_heads / key_heads))[d]);
      scores.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(head_dim))));
    }
  return scores;
}

template <class Layout>
void report_decoding(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                     Index tokens) {
  const rope::frequency_table<float> plain(frequencies, tokens);
  const auto table = plain.at_channel(first_channel);
  const auto queries = rope::thd(q.data(), tokens, query_heads, head_dim);
  const auto keys = rope::thd(k.data(), tokens, key_heads, head_dim);
  const auto values = rope::thd(v.data(), tokens, key_heads, head_dim);
  std::vector<float> at_once(q.size()), one_by_one(q.size());

  std::printf("\nPrefill and decoding\n  prefill in one call ...");
  std::fflush(stdout);
  const auto prefill_out = rope::thd(at_once.data(), tokens, query_heads, head_dim);
  const double prefill = seconds_of(
      [&] { rope::attention<Layout>(queries, keys, values, prefill_out, table, attention_options()); });
  const double visible = 4.0 * static_cast<double>(head_dim * query_heads) * static_cast<double>(tokens) *
                         static_cast<double>(tokens) / 2;
  std::printf(" %.2f s, %.0f GFLOP/s\n", prefill, visible / prefill * 1e-9);

  rope::kv_cache<float> cache(1, tokens, key_heads, head_dim);
  const auto out = rope::thd(one_by_one.data(), tokens, query_heads, head_dim);
  std::printf("  token by token through kv_cache ");
  const double decode = seconds_of([&] {
    for (Index t = 0; t < tokens; ++t) {
      cache.append<Layout>(keys.token_range(t, 1), values.token_range(t, 1), table);
      rope::attention<Layout>(queries.token_range(t, 1), cache, out.token_range(t, 1), table,
                              attention_options());
      if (10 * (t + 1) / tokens != 10 * t / tokens) {
        std::putchar('.');
        std::fflush(stdout);
      }
    }
  });
  std::printf(" %.2f s, %.2f ms a token\n", decode, decode / static_cast<double>(tokens) * 1e3);

  // A score is a sum of head_dim products, each at most 1 in magnitude times the growth sqrt(2) of each of
  // two rotations, divided by sqrt(head_dim). Its rounding error is below head_dim * 2 sqrt(head_dim) u on
  // each side. A weight changes by that relative amount, and a weighted mean of values by at most twice that
  // times the largest value. An attention factor m multiplies scores and their errors by m^2, and a softmax
  // multiplier by itself.
  const double growth = frequencies.attention_factor() * frequencies.attention_factor() * softmax_multiplier;
  const double bound =
      growth * 8 * std::pow(static_cast<double>(head_dim), 1.5) * unit * largest_magnitude(v);
  const double difference = largest_difference(at_once, one_by_one);
  std::printf("  largest difference %.1e, bound %.1e, largest output %.2f\n", difference, bound,
              largest_magnitude(at_once));
  check(difference <= bound, "prefill and token-by-token decoding agree");
  check(largest_magnitude(at_once) > 100 * bound, "the outputs are far larger than the bound");
}

/// Largest |x| of the vectors that make up `channels`, each head_dim long.
double largest_norm(const std::vector<float>& channels) {
  double largest = 0;
  for (std::size_t first = 0; first < channels.size(); first += static_cast<std::size_t>(head_dim)) {
    double sum = 0;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(head_dim); ++i)
      sum += static_cast<double>(channels[i]) * static_cast<double>(channels[i]);
    largest = (std::max)(largest, std::sqrt(sum));
  }
  return largest;
}

/// Attention over the first tokens of the text in channels of type T, for the recorded length: the largest
/// difference from a recorded output.
template <class T>
double distance_from_recorded(const std::vector<float>& q, const std::vector<float>& k,
                              const std::vector<float>& v, const rope::frequency_table<float>& table) {
  constexpr Index tokens = recorded::text_tokens;
  const auto first_tokens = [](const std::vector<float>& x, Index heads) {
    return std::vector<T>(x.begin(), x.begin() + tokens * heads * head_dim);
  };
  const std::vector<T> queries = first_tokens(q, query_heads), keys = first_tokens(k, key_heads),
                       values = first_tokens(v, key_heads);
  std::vector<T> out(queries.size());
  const auto outputs = rope::thd(out.data(), tokens, query_heads, head_dim);
  rope::attention<rope::half_split>(rope::thd(queries.data(), tokens, query_heads, head_dim),
                                    rope::thd(keys.data(), tokens, key_heads, head_dim),
                                    rope::thd(values.data(), tokens, key_heads, head_dim), outputs, table);
  double largest = 0;
  for (std::size_t t = 0; t < std::size(recorded::tokens); ++t)
    for (Index h = 0; h < query_heads; ++h)
      for (std::size_t c = 0; c < std::size(recorded::channels); ++c)
        largest = (std::max)(
            largest,
            std::abs(static_cast<double>(outputs.at(0, recorded::tokens[t], h)[recorded::channels[c]]) -
                     recorded::outputs[t][h][c]));
  return largest;
}

/// Compares with outputs of LlamaAttention of Hugging Face transformers (see record_attention.py), computed
/// in float64 with float32 angles and a float32 softmax.
void report_recorded(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v) {
  constexpr Index tokens = recorded::text_tokens;
  // The float angles are equal, so an entry of the two tables differs by at most the last digit, 2 u at 1. A
  // rotated vector then differs by 2 sqrt(2) u of its length, and a score by twice that times s = |q| |k| /
  // sqrt(head_dim). The recorded side also rounds the score to float (u s). A weight changes by that relative
  // amount and by the four roundings of its own softmax, an output by at most twice that times the largest
  // value.
  const double score = largest_norm(q) * largest_norm(k) / std::sqrt(static_cast<double>(head_dim));
  const double same_angles = 2 * (2 * 2 * std::sqrt(2.0) * score + score + 4) * unit * largest_magnitude(v);
  const double theirs = distance_from_recorded<double>(
      q, k, v, rope::frequency_table<float>::with_float_angles(frequencies, 0, tokens));
  const double ours =
      distance_from_recorded<float>(q, k, v, rope::frequency_table<float>(frequencies, tokens));
  std::printf("\nBeside LlamaAttention of Hugging Face transformers, %d recorded outputs\n",
              static_cast<int>(sizeof(recorded::outputs) / sizeof(double)));
  std::printf("  with its float32 angles, in double: largest difference %.1e, bound %.1e\n", theirs,
              same_angles);
  std::printf("  with exact angles, in float:        largest difference %.1e\n", ours);
  check(theirs <= same_angles, "the same outputs as transformers");
}

template <class Right, class Wrong>
void report_relative_positions(const std::vector<float>& q, const std::vector<float>& k, Index tokens) {
  constexpr std::int64_t shift = 100000;
  const auto here = last_scores<Right, Right>(q, k, tokens, 0);
  const auto moved = largest_difference(here, last_scores<Right, Right>(q, k, tokens, shift));
  const auto mixed = largest_difference(last_scores<Right, Wrong>(q, k, tokens, 0),
                                        last_scores<Right, Wrong>(q, k, tokens, shift));
  const auto wrong = largest_difference(here, last_scores<Wrong, Wrong>(q, k, tokens, 0));
  // The error of a rotated vector is at most 2.75 u of its length (of a channel, 2.75 u of its pair). q and k
  // are rotated in both scores: 11 u |q| |k| / sqrt(head_dim), and |q|, |k| <= sqrt(head_dim).
  const double growth = frequencies.attention_factor() * frequencies.attention_factor();
  const double bound = growth * 11 * unit * std::sqrt(static_cast<double>(head_dim));
  std::printf("\nScores of the last token with every token, all heads (largest %.2f)\n",
              largest_magnitude(here));
  std::printf("  every position moved by %d: scores change by %.1e, bound %.1e\n", static_cast<int>(shift),
              moved, bound);
  std::printf("  the same with q in one layout and k in the other: by %.2f\n", mixed);
  std::printf("  both in the wrong layout: scores differ from the right ones by %.2f\n", wrong);
  check(moved <= bound, "scores depend on relative positions alone");
  if (frequencies.pairs() > 1) {  // with one pair, both layouts are the same two channels
    check(mixed > 1e3 * bound, "mixing the layouts breaks that");
    check(wrong > 1e3 * bound, "the wrong layout gives other scores");
  }
}

void report_accuracy() {
  std::printf("\nLargest error of cos and sin over the %d pairs, against long double\n",
              static_cast<int>(frequencies.pairs()));
  std::printf("  %12s %22s %22s\n", "position", "rope::frequency_table", "usual float32 angles");
  const auto unit_circle = rope::frequencies::custom(frequencies.inv_freq());  // without an attention factor
  bool exact = true;
  double worst_float = 0, worst_angle = 0;
  // Primes, because at powers of ten the angles of inv_freq 0.1 and 0.01 happen to be exact in float32.
  for (const std::int64_t position : {997, 9973, 99991, 999983, 9999991}) {
    const rope::frequency_table<float> table(unit_circle, position, position + 1);
    double ours = 0, usual = 0;
    for (Index i = 0; i < frequencies.pairs(); ++i) {
      const long double angle =
          static_cast<long double>(position) * static_cast<long double>(frequencies.inv_freq()(i, 0));
      const long double cos = std::cos(angle), sin = std::sin(angle);
      const auto error = [&](float c, float s) {
        return static_cast<double>((std::max)(std::abs(static_cast<long double>(c) - cos),
                                              std::abs(static_cast<long double>(s) - sin)));
      };
      const float float_angle =
          static_cast<float>(position) * static_cast<float>(frequencies.inv_freq()(i, 0));
      ours = (std::max)(ours, error(table.cos(position)[i], table.sin(position)[i]));
      usual = (std::max)(usual, error(std::cos(float_angle), std::sin(float_angle)));
      worst_angle = (std::max)(worst_angle,
                               static_cast<double>(std::abs(static_cast<long double>(float_angle) - angle)));
    }
    std::printf("  %12lld %22.1e %22.1e\n", static_cast<long long>(position), ours, usual);
    exact = exact && ours <= 1.001 * unit / 2;
    worst_float = (std::max)(worst_float, usual);
  }
  check(exact, "every entry is the nearest float: error at most 3.0e-08");
  // An error d of an angle moves cos or sin by at least sqrt(2) sin(d / 2), unless d is near a full turn.
  if (worst_angle > 0.02) {
    check(worst_float > 0.01, "float32 angles lose their digits at long context");
  } else {
    std::printf("  float32 angles of so few pairs are off by at most %.1e rad at these positions\n",
                worst_angle);
  }
}

void report_speed() {
  const Index tokens = 4096;
  std::printf("\nSpeed, one thread, (1, %d, %d, %d) float in place; best of 9 interleaved rounds\n",
              static_cast<int>(tokens), static_cast<int>(query_heads), static_cast<int>(head_dim));
  const rope::frequency_table<float> plain(frequencies, tokens);
  const auto table = plain.at_channel(first_channel);
  std::vector<float> x(static_cast<std::size_t>(tokens * query_heads * head_dim), 1.0f);
  const auto view = rope::thd(x.data(), tokens, query_heads, head_dim);
  Eigen::Map<Eigen::ArrayXf> flat(x.data(), static_cast<Index>(x.size()));
  double scale = 1e9, half = 1e9, pairs = 1e9;
  for (int round = 0; round < 9; ++round) {
    scale = (std::min)(scale, seconds_of([&] { flat *= 1.0000001f; }));
    half = (std::min)(half, seconds_of([&] { rope::rotate<rope::half_split>(view, table); }));
    pairs = (std::min)(pairs, seconds_of([&] { rope::rotate<rope::interleaved>(view, table); }));
  }
  const auto line = [&](const char* name, double seconds, Index channels) {
    const double heads = static_cast<double>(tokens * query_heads),
                 bytes = 2.0 * sizeof(float) * heads * static_cast<double>(channels),
                 all = 2.0 * sizeof(float) * heads * static_cast<double>(head_dim);
    std::printf("  %-22s %6.2f ms %7.1f GB/s  %.2f of the scale\n", name, seconds * 1e3,
                bytes / seconds * 1e-9, bytes / seconds / (all / scale));
  };
  line("x *= a", scale, head_dim);
  line("rotate<half_split>", half, frequencies.rotary_dim());
  line("rotate<interleaved>", pairs, frequencies.rotary_dim());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : ROPE_EXAMPLES_DIR "/alice.txt";
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) {
    std::fprintf(stderr,
                 "rope_demo: cannot read a text from %s\nusage: rope_demo [text file [config.json "
                 "[interleaved|half_split]]]\n",
                 path.c_str());
    return 2;
  }
  if (argc > 2) {
    try {
      read_config(argv[2], argc > 3 ? argv[3] : "");
    } catch (const std::exception& error) {
      const std::string why = error.what();
      // Replaces the names of library options by arguments of the program.
      const bool asks = why.find("the layout in the options") != std::string::npos;
      std::fprintf(stderr, "rope_demo: %s: %s%s\n", argv[2], why.c_str(),
                   asks ? " (interleaved or half_split, after the config.json)" : "");
      return 2;
    }
  }
  const std::size_t length = text.size();
  if (length > static_cast<std::size_t>(max_tokens)) text.resize(static_cast<std::size_t>(max_tokens));
  const auto tokens = static_cast<Index>(text.size());
  std::printf("rope %s: %lld of %lld bytes of %s as tokens\n", ROPE_VERSION_STRING,
              static_cast<long long>(tokens), static_cast<long long>(length), path.c_str());
  std::printf(
      "attention core of one layer of %s, on random vectors, one per byte value:\n  %d query heads, %d key "
      "heads, channels %d to %d of %d rotate, %s\n",
      model_name.c_str(), static_cast<int>(query_heads), static_cast<int>(key_heads),
      static_cast<int>(first_channel), static_cast<int>(first_channel + frequencies.rotary_dim() - 1),
      static_cast<int>(head_dim), rope::name_of(layout));

  const auto q = embed(text, query_heads, 1), k = embed(text, key_heads, 2), v = embed(text, key_heads, 3);
  if (argc == 1) report_recorded(q, k, v);
  if (layout == rope::layout_kind::half_split) {
    report_decoding<rope::half_split>(q, k, v, tokens);
    report_relative_positions<rope::half_split, rope::interleaved>(q, k, tokens);
  } else {
    report_decoding<rope::interleaved>(q, k, v, tokens);
    report_relative_positions<rope::interleaved, rope::half_split>(q, k, tokens);
  }
  report_accuracy();
  report_speed();
  std::printf("\n%s\n", all_true ? "Every claim holds." : "A claim FAILED.");
  return all_true ? 0 : 1;
}
