// The programs of port_a_model.md: a Llama with the schedule of Llama 3.1, from its config.json and weights
// to logits, which are compared with logits of transformers, and the imports of three other models.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/tiny_model.hpp"
#include "guide.hpp"

namespace {

using guide::check;
using nlohmann::json;
using rope::Index;

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Weights [out, in] by their names in the checkpoint. These are of a tiny model. Yours come from a
/// safetensors file.
struct checkpoint {
  const json& shapes;
  matrix operator()(const std::string& name) const {
    const auto shape = shapes.at(name).get<std::vector<Index>>();
    const testing::tiny_weight weight(name, shape.size(), false);
    matrix m(shape.size() == 2 ? shape[0] : 1, shape.back());
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = weight(static_cast<std::uint64_t>(i));
    return m;
  }
};

matrix rms_norm(const matrix& x, const matrix& weight, double epsilon) {
  matrix y = x;
  for (Index t = 0; t < x.rows(); ++t)
    y.row(t) = x.row(t).cwiseProduct(weight) / std::sqrt(x.row(t).squaredNorm() / double(x.cols()) + epsilon);
  return y;
}

matrix logits_of(const json& config, const checkpoint& weight, const std::vector<int>& ids) {
  const rope::model_rope model = rope::import_hugging_face(config);
  const rope::model_tables<double> tables(model, 512);  // cos and sin of every layer, for 512 positions
  const Index layers = config.at("num_hidden_layers").get<Index>();
  const double epsilon = config.at("rms_norm_eps").get<double>();
  const matrix embedding = weight("model.embed_tokens.weight");

  matrix x(ids.size(), embedding.cols());
  for (std::size_t t = 0; t < ids.size(); ++t) x.row(Index(t)) = embedding.row(ids[t]);
  for (Index layer = 0; layer < layers; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const matrix h = rms_norm(x, weight(name + "input_layernorm.weight"), epsilon);
    matrix q = h * weight(name + "self_attn.q_proj.weight").transpose();  // [tokens, heads * head_dim]
    matrix k = h * weight(name + "self_attn.k_proj.weight").transpose();
    const matrix v = h * weight(name + "self_attn.v_proj.weight").transpose();
    matrix attended(q.rows(), q.cols());

    const auto queries = rope::thd(q, model.query_heads), keys = rope::thd(k, model.key_heads);
    const auto options =
        rope::rotate_layer(tables, layer, queries, keys, 0);  // the tokens start at position 0
    rope::attention(queries, keys, rope::thd(v, model.key_heads), rope::thd(attended, model.query_heads),
                    options);

    x += attended * weight(name + "self_attn.o_proj.weight").transpose();
    const matrix g = rms_norm(x, weight(name + "post_attention_layernorm.weight"), epsilon);
    const matrix gate = g * weight(name + "mlp.gate_proj.weight").transpose();
    const matrix up = g * weight(name + "mlp.up_proj.weight").transpose();
    const matrix silu = gate.array() / (1 + (-gate.array()).exp());
    x += silu.cwiseProduct(up) * weight(name + "mlp.down_proj.weight").transpose();
  }
  return rms_norm(x, weight("model.norm.weight"), epsilon) * embedding.transpose();
}

/// The recorded logits of transformers have 12 digits.
double error_of(const matrix& logits, const json& record) {
  double worst = 0, largest = 0;
  for (std::size_t row = 0; row < record.at("positions").size(); ++row)
    for (std::size_t id = 0; id < 96; ++id) {
      const double expected = record.at("logits")[row][id].get<double>();
      const double got = logits(record.at("positions")[row].get<Index>(), Index(id));
      if (const double off = std::abs(got - expected); !(off <= worst)) worst = off >= 0 ? off : INFINITY;
      largest = std::max(largest, std::abs(expected));
    }
  return worst / largest;
}

void llama() {
  const json record = testing::recorded_logits("llama_3");
  std::vector<int> ids;
  for (int i = 0; i < 400; ++i) ids.push_back((7919 * i + 31 * i * i) % 96);
  const double off = error_of(logits_of(record.at("config"), {record.at("tensors")}, ids), record);
  std::printf("        largest difference of the logits, over the largest logit: %.1e\n", off);
  check(off < 6e-12, "a Llama with the schedule of Llama 3.1 has the logits of transformers");
}

json config_of(const std::string& name) {
  std::ifstream file(std::string(ROPE_TEST_CONFIGS) + "/" + name + ".json");
  return json::parse(file);
}

void gemma() {
  const rope::model_rope model = rope::import_hugging_face(config_of("gemma_3_4b"));
  bool holds = model.groups().size() == 2;
  for (Index layer = 0; layer < model.layer_count(); ++layer) {
    const rope::layer_group& group = *model.group_of_layer(layer);
    const rope::attention_options options = model.attention_of_layer(layer);
    const bool slides = layer % 6 != 5;  // five layers with a window, then one without
    holds = holds && options.window == (slides ? 1024 : 0);
    holds = holds && std::abs(group.frequencies.inv_freq(1, 0) -
                              (slides ? std::pow(1e4, -2.0 / 256) : std::pow(1e6, -2.0 / 256) / 8)) < 1e-15;
  }
  check(holds, "Gemma 3: two schedules and windows");
}

void qwen_vl() {
  const json config = json::parse(
      R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 4096, "head_dim": 128,
          "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36, "max_position_embeddings": 262144,
          "rope_theta": 5000000.0, "rope_scaling": {"rope_type": "default", "mrope_interleaved": true,
          "mrope_section": [24, 20, 20]}}})");
  const rope::model_rope model = rope::import_hugging_face(config);
  const auto prompt =
      rope::qwen_vl_positions({rope::text_run{3}, rope::merged_patches(1, 4, 4, 2), rope::text_run{2}});
  const rope::frequency_table table(rope::frequencies_on_axes(model.groups()[0]), prompt.coordinates);
  check(table.rows() == 3 + 4 + 2 && model.groups()[0].section_order == rope::mrope_order::alternating,
        "Qwen3-VL: three axes, 4 merged patches of an image between 3 and 2 tokens of text");
}

void deepseek() {
  const rope::model_rope model = rope::import_hugging_face(config_of("deepseek_v3"));
  const rope::layer_group& group = model.groups()[0];
  const double m = 0.1 * std::log(40.0) + 1;  // YaRN with mscale_all_dim = 1
  check(group.layout == rope::layout_kind::interleaved && group.first_channel == 128 && group.head_dim == 192,
        "DeepSeek V3: the last 64 of 192 channels rotate, interleaved");
  check(std::abs(group.scale - m * m / std::sqrt(192.0)) < 1e-15 && group.frequencies.attention_factor() == 1,
        "DeepSeek V3: m^2 is in the scale of the scores, not in the table");
}

}  // namespace

int main() {
  llama();
  gemma();
  qwen_vl();
  deepseek();
  return guide::all_hold ? 0 : 1;
}
