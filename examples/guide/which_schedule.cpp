// The table of which_schedule.md. Each call makes the same bits as the import of a config.json with that
// rope_scaling.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <nlohmann/json.hpp>
#include <string>

#include "guide.hpp"

namespace {

using namespace guide;
using namespace rope;

/// True if the frequencies equal the ones of a Llama with heads of 8 channels, base 500000, 4096 positions
/// and this rope_scaling.
void same_as(const std::string& rope_scaling, const frequencies& call, double length = 0) {
  nlohmann::json config = nlohmann::json::parse(
      R"({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
          "max_position_embeddings": 4096, "rope_theta": 500000.0})");
  config["rope_scaling"] = nlohmann::json::parse(rope_scaling);
  const model_rope model = import_hugging_face(config, {.length = length});
  const frequencies& imported = model.groups()[0].frequencies;
  bool equal = imported.pairs() == call.pairs();
  for (Index i = 0; equal && i < call.pairs(); ++i) equal = imported.inv_freq(i, 0) == call.inv_freq(i, 0);
  check(equal && imported.attention_factor() == call.attention_factor(), rope_scaling.c_str());
}

void schedules() {
  const Index d = 8;
  const double base = 500000.0;
  same_as("null", frequencies(d, base));
  same_as(R"({"rope_type": "linear", "factor": 4.0})", frequencies(d, base, linear_scaling{.factor = 4}));
  const double length = 10000;  // tokens of prompt and answer
  same_as(R"({"rope_type": "dynamic", "factor": 2.0})",
          frequencies(d, base, dynamic_ntk_scaling{.factor = 2, .max_position = 4096, .length = length}),
          length);
  same_as(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024})",
          frequencies(d, base, yarn_scaling{.factor = 4, .original_max_position = 1024}));
  same_as(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192})",
          frequencies(
              d, base,
              llama3_scaling{
                  .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8192}));
  same_as(R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 4, 8],
              "original_max_position_embeddings": 1024})",
          frequencies(d, base,
                      longrope_scaling{.short_factor = {1, 1, 1, 1},
                                       .long_factor = {1, 2, 4, 8},
                                       .original_max_position = 1024,
                                       .max_position = 4096,
                                       .length = length}),
          length);
  const frequencies ntk = frequencies(d, base, ntk_scaling{.factor = 4});  // a larger base: in no config.json
  double off = 0;
  const formula::speeds expected = formula::ntk_speeds(d, base, 4);
  for (Index i = 0; i < d / 2; ++i)
    formula::compare(off, ntk.inv_freq(i) / double(expected[static_cast<std::size_t>(i)]), 1);
  check(off <= 0x1p-51, "NTK is a larger base");
}

void new_schedule_for_a_cache() {
  const tensor k = random_tensor(1, 10, 1, 8, 1), v = random_tensor(1, 10, 1, 8, 2),
               q = random_tensor(1, 1, 1, 8, 3);
  tensor out(1, 1, 1, 8);
  const auto rule = [](double length) {
    return dynamic_ntk_scaling{.factor = 2, .max_position = 8, .length = length};
  };

  const frequency_table short_table(frequencies(8, 10000.0, rule(8)), 64),
      long_table(frequencies(8, 10000.0, rule(32)), 64);
  kv_cache<float> cache(1, 64, 1, 8);
  cache.append<half_split>(bshd(k), bshd(v), short_table);
  cache.rebase<half_split>(short_table, long_table);  // one pass over the keys
  attention<half_split>(bshd(q), cache, bshd(out), long_table);

  const formula::speeds slowed = formula::ntk_speeds(8, 10000, 2 * 32.0L / 8 - 1);
  check(attention_error(q, k, v, out, slowed) <= float_bound, "rebase moves a cache to another schedule");

  kv_cache<float> raw(1, 64, 1, 8, 0, key_storage::raw);  // keys are rotated when they are read
  raw.append(bshd(k), bshd(v));
  attention<half_split>(bshd(q), raw, bshd(out), long_table);

  check(attention_error(q, k, v, out, slowed) <= float_bound, "raw keys take any schedule");
}

}  // namespace

int main() {
  schedules();
  new_schedule_for_a_cache();
  return all_hold ? 0 : 1;
}
