// SPDX-License-Identifier: MIT
// Uses every public header of the library once, under the flags and macros of a test, and checks the results
// by laws that need no reference: a rotation keeps lengths, its inverse restores the channels, a cache
// attends as one call does. No name here is a word of macros.hpp.
#ifdef ROPE_TEST_MACROS
#include "macros.hpp"
#endif
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Compilers may compile members whose constraint does not hold.
template struct rope::head_view<float>;
template struct rope::head_view<const float>;
template class rope::kv_cache<Eigen::half>;
template class rope::ring_cache<float>;
template class rope::page_view<float>;
template class rope::frequency_table<double>;

namespace {

using namespace rope;

int failures = 0;

void expect(bool holds, const char* claim) {
  if (holds) return;
  std::printf("FAILED: %s\n", claim);
  ++failures;
}

/// Whether every channel differs by no more than eight roundings of T.
template <class T>
bool agree(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    const double bound = 8 * static_cast<double>(Eigen::NumTraits<T>::epsilon());
    if (!(difference <= bound && difference >= -bound)) return false;
  }
  return a.size() == b.size();
}

constexpr Index batch = 2, tokens = 70, heads = 4, kv_heads = 2, head_dim = 8;

template <class T>
struct operands {
  std::vector<T> q, k, v, out;

  operands() {
    const auto fill = [](std::vector<T>& x, Index count, double scale) {
      for (Index i = 0; i < count; ++i)
        x.push_back(static_cast<T>(scale * (static_cast<double>(i % 13) - 6)));
    };
    fill(q, batch * tokens * heads * head_dim, 0.1);
    fill(k, batch * tokens * kv_heads * head_dim, 0.07);
    fill(v, batch * tokens * kv_heads * head_dim, 0.05);
    out.resize(q.size());
  }
  static head_view<T> many(std::vector<T>& x) { return bshd(x.data(), batch, tokens, heads, head_dim); }
  static head_view<T> few(std::vector<T>& x) { return bshd(x.data(), batch, tokens, kv_heads, head_dim); }
};

template <class T, class Layout>
void use_rotation() {
  operands<T> x;
  const std::vector<T> before = x.q;
  const frequency_table<float> table(
      frequencies(6, 1e4, yarn_scaling{.factor = 4, .original_max_position = 64}), -5, 2 * tokens);
  const auto q = x.many(x.q);
  const auto there_and_back = [&](const auto& positions) {
    rotate<Layout>(q, table, positions);
    unrotate<Layout>(q, table, positions);
    rotate<Layout>(q, table, positions);
    rotate_gradient<Layout>(q, table, positions);
  };
  const frequencies plain(6);
  const frequency_table<float> one(plain, 2 * tokens);
  const row_maker<float> maker(plain);
  std::vector<std::byte> of_table(maker.memory_size(1));
  std::vector<float> cos_sin_of_row(6);
  const Eigen::Array<double, 1, 1> somewhere(2.5);
  maker.write(somewhere, cos_sin_of_row);
  maker.write(2, cos_sin_of_row);
  const auto first_token = thd(x.q.data(), 1, heads, head_dim);
  rotate<Layout>(first_token, maker.table(somewhere, of_table));
  unrotate<Layout>(first_token, maker.table(somewhere, of_table));
  rotate<Layout>(q, one, 3);
  unrotate<Layout>(q, one, 3);
  expect(agree(x.q, before), "unrotate takes rotate back");
  std::vector<int> ids(static_cast<std::size_t>(tokens), 3);
  const std::vector<std::int64_t> starts = {1, 60};
  there_and_back(ids);
  there_and_back(Eigen::ArrayXi::LinSpaced(tokens, 0, tokens - 1) + 1);
  there_and_back(row_starts<std::int64_t>{starts});
  const std::vector<std::int64_t> offsets = {0, 9, tokens};
  rotate<Layout>(thd(x.q.data(), tokens, heads, head_dim), table, segments<std::int64_t>{offsets, starts});
  rotate_heads<Layout>(q, std::vector<frequency_table<float>>(4, table), 2);
  const std::vector<T> ones(static_cast<std::size_t>(head_dim), T(1));
  const head_norm<T> norm = {.weight = ones};
  normalize_and_rotate<Layout>(q, norm, table, ids);
  normalize_heads_gradient(q, norm, x.many(x.out));
  permute_channels<interleaved, half_split>(q, 6);
  std::vector<T> wide(static_cast<std::size_t>(batch * tokens * heads * (head_dim + 3)));
  pope<Layout>(q, bshd(wide.data(), batch, tokens, heads, head_dim + 3), table, 1);
  scale_queries(q, llama4_query_scaling{}, 7);
  angle_gradient<Layout>(q, q, table);
  inv_freq_gradient<Layout>(q, q, table);
  table_gradient<Layout>(q, q, table);
}

template <class T, class Layout>
void use_attention() {
  operands<T> x;
  const frequency_table<float> table(frequencies(head_dim), 2 * tokens);
  const auto q = x.many(x.q), out = x.many(x.out);
  const auto k = x.few(x.k), v = x.few(x.v);
  std::vector<double> sums(static_cast<std::size_t>(batch * tokens * heads)), other_sums = sums;
  attention<Layout>(q, k, v, out, table, {.log_sum_exp = sums});
  const std::vector<T> whole = x.out;

  kv_cache<T> cache(batch, tokens, kv_heads, head_dim);
  cache.template append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  expect(agree(x.out, whole), "a cache attends as one call does");
  kv_cache<T> back(batch, 1, kv_heads, head_dim), row(batch, tokens, kv_heads, head_dim);
  back.reserve(tokens);
  back.template append_rotated<Layout>(cache.keys(), cache.values(), table);
  expect(back.rotation() == row.template rotation_by<Layout>(table), "a rotation is that of its table");
  for (Index b = 0; b < batch; ++b) row.copy_row(back, b, b);
  attention<Layout>(q, row, out, table, {}, std::vector<Index>(batch, tokens));
  expect(agree(x.out, whole), "keys that come back attend as one call does");
  row.evict(std::vector<int>{0});
  expect(row.next_positions()[0] == tokens, "the next position stays");
  kv_cache<T> at(batch, tokens, kv_heads, head_dim, 0, key_storage::raw);
  at.append_at(k, v, 5);
  at.truncate(7);
  ring_cache<T> ring(batch, {.sinks = 2, .window = tokens, .chunk = tokens}, kv_heads, head_dim);
  ring.template append<Layout>(k, v, table);
  attention<Layout>(q, ring, out, table);

  // Pages of 16 tokens, alternating between rows. Then a part of the head rotates, which one call and a cache
  // of latents support too.
  constexpr Index page_size = 16, blocks = (tokens + page_size - 1) / page_size, pool = 2 * blocks;
  std::vector<T> key_pool(static_cast<std::size_t>(pool * page_size * kv_heads * head_dim)),
      value_pool = key_pool;
  std::vector<int> pages_of_rows;
  for (int b = 0; b < 2; ++b)
    for (int block = 0; block < static_cast<int>(blocks); ++block) pages_of_rows.push_back(2 * block + b);
  const std::vector<std::int64_t> lengths(2, tokens);
  const page_view<T> pages({.keys = bhsd(key_pool.data(), pool, kv_heads, page_size, head_dim),
                            .values = bhsd(value_pool.data(), pool, kv_heads, page_size, head_dim)},
                           pages_of_rows, lengths);
  write_pages<Layout>(k, v, pages, table);
  attention<Layout>(q, pages, out, table);
  expect(agree(x.out, whole), "pages attend as one call does");
  std::vector<detail::arithmetic<T>> weights_of_pages(
      static_cast<std::size_t>(batch * heads * tokens * tokens)),
      received_in_pages(static_cast<std::size_t>(batch * heads * tokens));
  attention_weights<Layout>(q, pages, std::span(weights_of_pages), table);
  attention_weight_sums<Layout>(q, pages, std::span(received_in_pages), table);
  shift_keys<Layout>(pages, {.sequence = 1, .first = 3, .count = 5}, 2, table);
  rebase_keys<Layout>(pages, table, table);
  const frequency_table<float> narrow(frequencies(4), 2 * tokens);
  attention<Layout>(q, k, v, out, narrow.at_channel(4));
  const std::vector<T> placed = x.out;
  kv_cache<T> placed_cache(batch, tokens, kv_heads, head_dim);
  placed_cache.template append<Layout>(k, v, narrow.at_channel(4));
  attention<Layout>(q, placed_cache, out, narrow.at_channel(4));
  expect(agree(x.out, placed), "a cache of a window attends as one call does");
  latent_cache<T> latents(batch, tokens, head_dim - 4, 4);
  const auto one_head = bshd(x.k.data(), batch, tokens, 1, head_dim);
  latents.template append<Layout>(one_head.channels(0, head_dim - 4), one_head.channels(head_dim - 4, 4),
                                  narrow);
  latents.reorder(std::vector<int>{1, 0});
  latents.reorder(std::vector<int>{1, 0});
  std::vector<T> of_latents(static_cast<std::size_t>(batch * tokens * heads * (head_dim - 4)));
  attention<Layout>(q, latents, bshd(of_latents.data(), batch, tokens, heads, head_dim - 4), narrow,
                    {.scale = 0.4});
  std::vector<T> expected = of_latents;
  attention<Layout>(q, one_head, one_head.channels(0, head_dim - 4),
                    bshd(expected.data(), batch, tokens, heads, head_dim - 4),
                    narrow.at_channel(head_dim - 4), {.scale = 0.4});
  expect(agree(of_latents, expected), "latents attend as keys that hold them do");

  const std::vector<float> sinks(static_cast<std::size_t>(heads)), bias(static_cast<std::size_t>(tokens));
  attention_options options = {.window = 9, .softcap = 3, .sinks = 2, .sink_logits = sinks, .dropout = 0.1};
  options.bias = score_matrix(bias.data(), 1, 1, 1, tokens);
  attention(q, k, v, out, options);
  std::vector<T> second = x.out;
  merge_attention(out, std::span<double>(sums), x.many(second), std::span<const double>(other_sums));
  std::vector<detail::arithmetic<T>> weights(static_cast<std::size_t>(batch * heads * tokens * tokens));
  attention_weights<Layout>(q, k, std::span(weights), table);
  std::vector<detail::arithmetic<T>> received(static_cast<std::size_t>(batch * heads * tokens));
  attention_weight_sums<Layout>(q, k, std::span(received), table);
  expect(agree(weights, weights_of_pages), "weights for pages are those of one call");
  expect(agree(received, received_in_pages), "sums of weights for pages are those of one call");

  operands<T> d;
  std::vector<double> d_bias(static_cast<std::size_t>(tokens)), d_sinks(static_cast<std::size_t>(heads));
  attention(q, k, v, out, options);
  attention_gradient(attention_tape<T>{.q = q,
                                       .k = k,
                                       .v = v,
                                       .out = out,
                                       .d_out = out,
                                       .d_q = d.many(d.q),
                                       .d_k = d.few(d.k),
                                       .d_v = d.few(d.v)},
                     options, {.sink_logits = d_sinks, .bias = d_bias});
  attention_gradient<Layout>(attention_tape<T>{.q = q,
                                               .k = k,
                                               .v = v,
                                               .out = out,
                                               .d_out = out,
                                               .d_q = d.many(d.q),
                                               .d_k = d.few(d.k),
                                               .d_v = d.few(d.v)},
                             table);
}

/// Two keys of scores 0 and -3: the second has a weight of 1 / (1 + e^3).
template <class T>
void weigh_two_keys() {
  const std::vector<T> q = {T(3)}, k = {T(0), T(-1)}, v = {T(0), T(1)};
  std::vector<T> out(1);
  attention(thd(q.data(), 1, 1, 1), thd(k.data(), 2, 1, 1), thd(v.data(), 2, 1, 1), thd(out.data(), 1, 1, 1),
            {.scale = 1});
  const std::vector<T> expected = {static_cast<T>(1 / (1 + std::exp(3.0)))};
  expect(agree(out, expected), "weights are those of the softmax");
}

template <class T>
void use_block() {
  using rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Index dim = heads * head_dim;
  const std::vector<T> weight(static_cast<std::size_t>(dim * dim), T(0.01f));
  const multi_head_attention<T, half_split> block({.q = {weight.data(), dim, dim, weight.data()},
                                                   .k = {weight.data(), kv_heads * head_dim, dim},
                                                   .v = {weight.data(), kv_heads * head_dim, dim},
                                                   .o = {weight.data(), dim, dim},
                                                   .q_norm = {weight.data(), head_dim},
                                                   .k_norm = {weight.data(), head_dim}},
                                                  {.heads = heads, .kv_heads = kv_heads});
  const frequency_table<float> table(frequencies(head_dim), tokens);
  const rows x = rows::Ones(2 * 5, dim);
  rows out(2 * 5, dim), cached(2 * 5, dim), d_x(2 * 5, dim);
  std::vector<T> probabilities(static_cast<std::size_t>(2 * heads * 5 * 5));
  block.reporting({.probabilities = probabilities}).forward(x, 2, out, table);
  block.cross(x, block.project_context(x, 2, table), cached, table);
  kv_cache<T> cache(2, tokens, kv_heads, head_dim);
  block.forward(x, cache, cached, table);
  expect((out - cached).cwiseAbs().maxCoeff() <= T(1e-5f), "a block decodes as it prefills");
  block.cross(x, x, 2, out, table, 0, 3);
  multi_head_gradients<T> gradients;
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = out}, gradients, table);
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = out}, gradients);
}

void use_tables() {
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Ones(5, 4);
  table_of_angles(angles, table_form::half_width);
  table_of_cos_sin(angles.cos().eval(), angles.sin().eval(), table_form::concatenated);
  fourier_table<double>(frequencies(8), Eigen::ArrayXXd::Ones(4, 2), Eigen::ArrayXXd::Ones(4, 2), 4, 0, 9);
  const xpos<float> growing(frequencies(8), 64, {.center = 32});
  expect(growing.queries().rows() == 64, "xPos has the rows it is asked for");
  frequency_table<double>(axial(frequencies::pixel(8), 2),
                          grid_coordinates(evenly_spaced(3), evenly_spaced(4)));
  frequency_table<float>(on_axes(frequencies(16), contiguous_sections({2, 3, 3})), grid_positions({2, 3, 4}));
  const auto prompt = qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
  expect(prompt.next == 7, "a prompt with an image goes on after its longest side");
  const dual_chunk chunks{.chunk_size = 8, .local_size = 2};
  expect(key_positions(chunks, 9, 0, 10).size() == 10, "every key has a position");
  expect(context_parallel_ids(16, 4, 1).back() == 13, "a rank holds its chunk and the mirror image");
  expect(spatial_merge_order(1, 4, 4, 2)[2] == 4, "patches that are merged lie together");
  for (const frequencies& f :
       {frequencies(64, 5e5, llama3_scaling{.factor = 8}), frequencies(64, 1e4, ntk_scaling{.factor = 2}),
        frequencies(64, 1e4, dynamic_ntk_scaling{.factor = 2, .max_position = 64, .length = 128})})
    expect(f.pairs() == 32, "a rule keeps the pairs");
}

/// A JSON value with the members that import_hugging_face requires: an object of values, a number, a boolean
/// or a string.
class json_value {
 public:
  json_value(double number) : type_(type::number), number_(number) {}
  json_value(const char* text) : type_(type::string), text_(text) {}
  json_value(std::map<std::string, json_value> members) : type_(type::object), members_(std::move(members)) {}

  bool is_object() const { return type_ == type::object; }
  bool is_array() const { return false; }
  bool is_number() const { return type_ == type::number; }
  bool is_string() const { return type_ == type::string; }
  bool is_boolean() const { return false; }
  bool is_null() const { return false; }
  bool contains(const std::string& key) const { return members_.count(key) > 0; }
  const json_value& at(const std::string& key) const { return members_.at(key); }
  const json_value* begin() const { return this; }  // no value here is an array
  const json_value* end() const { return this; }

  struct entry {
    const std::pair<const std::string, json_value>* member;
    const std::string& key() const { return member->first; }
    const json_value& value() const { return member->second; }
  };
  std::vector<entry> items() const {
    std::vector<entry> entries;
    for (const auto& member : members_) entries.push_back({&member});
    return entries;
  }

  template <class X>
  X get() const {
    if constexpr (std::is_same_v<X, std::string>)
      return text_;
    else if constexpr (std::is_same_v<X, bool>)
      return number_ > 0;
    else
      return static_cast<X>(number_);
  }

 private:
  enum class type { number, string, object } type_;
  double number_ = 0;
  std::string text_;
  std::map<std::string, json_value> members_;
};

/// A GGUF file of a model whose first two layers have different bases.
struct gguf_values {
  std::optional<double> number(const std::string& key) const {
    const std::map<std::string, double> numbers = {{"llama.context_length", 4096.0},
                                                   {"llama.block_count", 2.0},
                                                   {"llama.embedding_length", 32.0},
                                                   {"llama.attention.head_count", 4.0},
                                                   {"llama.rope.dimension_count", 8.0}};
    const auto found = numbers.find(key);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string> text(const std::string& key) const {
    return key == "general.architecture" ? std::optional<std::string>("llama") : std::nullopt;
  }
  std::optional<std::vector<double>> numbers(const std::string& key) const {
    return key == "llama.rope.freq_base_per_layer" ? std::optional(std::vector<double>{1e4, 1e6})
                                                   : std::nullopt;
  }
};

void use_models() {
  const model_rope file = import_gguf(gguf_values{});
  expect(file.groups().size() == 2, "a GGUF file of two bases has two groups");
  const model_rope config = import_hugging_face(json_value(std::map<std::string, json_value>{
      {"model_type", "llama"},
      {"head_dim", 8.0},
      {"num_attention_heads", 4.0},
      {"hidden_size", 32.0},
      {"rope_theta", 1e4},
      {"rope_scaling", std::map<std::string, json_value>{{"rope_type", "linear"}, {"factor", 2.0}}}}));
  expect(config.groups().size() == 1 && config.groups()[0].rotary_dim() == 8,
         "a config has the shape it says");
  expect(!describe(config).empty(), "a model is described");
  expect(!compare_models(config, file).empty(), "two models differ");
  const model_tables<float> tables(config, 16);
}

/// Whether the call throws because the size is too large.
template <class Error = std::logic_error, class Call>
bool too_large(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  return false;
}

/// 64-bit numbers whose low 32 bits are small, and extents whose products are: with a 32-bit Index, none of
/// them may be truncated to these bits.
[[maybe_unused]] void reject_what_no_index_counts() {
  constexpr std::int64_t rows = (std::int64_t{1} << 32) + 8;
  const frequencies f(8);
  const Eigen::ArrayXXd mix = Eigen::ArrayXXd::Ones(4, 2);
  expect(too_large([&] { frequency_table<float>(f, rows); }), "rows of a table");
  expect(too_large([&] { frequency_table<float>(f, -4, rows); }), "the range of a table");
  expect(too_large([&] { frequency_table<float>::with_float_angles(f, 0, rows); }), "rows of float angles");
  expect(too_large([&] { xpos<float>(f, rows, {.center = 0}); }), "rows of xPos");
  expect(too_large([&] { fourier_table<double>(f, mix, mix, 4, 0, rows); }), "rows of a Fourier table");
  constexpr Index half = Index{1} << 16;
  expect(too_large([] { kv_cache<float>(half, half, 1, 8); }), "a cache");
  expect(too_large([] { grid_positions({half, half}); }), "a grid");
  expect(too_large([] { spatial_merge_order(1, half, half, 1); }), "an order");
  expect(too_large([] { qwen_vl_positions({vision_run{1, half, half}}); }), "a prompt");
  expect(too_large([] { frequencies((std::numeric_limits<Index>::max)() - 1); }), "a schedule");
  expect(too_large([] { frequencies((std::int64_t{1} << 32) + 128); }), "a schedule of 2^32 + 128 channels");
  std::vector<Index> sections(64);  // the last pair would be 63 + 64 (2^25 + 1) = 2^31 + 127
  sections.back() = (1 << 25) + 2;
  expect(too_large([&] { interleaved_sections(sections); }), "interleaved sections");
  const std::int8_t one_of_mask = 1;
  const Eigen::Map<const Eigen::Array<std::int8_t, Eigen::Dynamic, Eigen::Dynamic>> mask(&one_of_mask, half,
                                                                                         half);
  expect(too_large([&] { positions_of_mask(mask); }), "a mask");
  expect(too_large<std::length_error>([&] {
           segment_ranges(std::vector<std::int64_t>{0, rows}, true);
         }),
         "the end of the last segment");
  const float number = 0;
  expect(too_large([&] { score_matrix(&number, half, 1, half, 1); }), "a bias");
  std::vector<float> channels(2);
  const head_view<float> one = {channels.data(), 1, half, 1, 1, 0, 0, 0};
  expect(too_large([&] { attention_weights(one, one, std::span<float>{}); }), "weights");
  kv_cache<float> cache(1, half, 1, 1);
  cache.append(one, one);
  head_view<float> query = one.token_range(0, 1);
  query.heads = half;
  expect(too_large([&] { attention_weight_sums(query, cache, std::span<float>{}); }), "sums of a cache");
  query.tokens = half / 64;
  query.heads = 64;
  expect(too_large([&] { attention_weights(query, cache, std::span<float>{}); }), "weights of a cache");

  const std::vector<float> ones(static_cast<std::size_t>(half), 1.0f);
  const multi_head_attention<float> block({.q = {ones.data(), half, 1},
                                           .k = {ones.data(), half, 1},
                                           .v = {ones.data(), half, 1},
                                           .o = {ones.data(), 1, half}},
                                          {.heads = half});
  using tokens_in_memory = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const tokens_in_memory> context(ones.data(), half, 1);
  expect(too_large([&] { static_cast<void>(block.project_context(context, 1)); }), "a projected context");

  std::vector<int> blocks(static_cast<std::size_t>(half / 2), 1);
  blocks[0] = 0;
  const std::vector<int> lengths = {(std::numeric_limits<int>::max)()};
  std::vector<float> pool(static_cast<std::size_t>(4 * half), 1.0f);
  const auto heads_of_pool = bhsd(pool.data(), 2, 1, half, 2);
  const page_view<float> pages({.keys = heads_of_pool, .values = heads_of_pool}, blocks, lengths);
  shift_keys<half_split>(pages, {.sequence = 0, .first = 0, .count = 1}, 1,
                         frequency_table<float>(frequencies(2), 4));
  expect(pool[0] < 0.0f && pool[2] > 0.0f, "a key among blocks that end at the largest Index is shifted");
}

}  // namespace

int main() {
  if constexpr (sizeof(Index) < sizeof(std::int64_t)) reject_what_no_index_counts();
  use_rotation<float, interleaved>();
  use_rotation<Eigen::bfloat16, half_split>();
  use_attention<float, half_split>();
  use_attention<double, interleaved>();
  use_attention<Eigen::half, interleaved>();
  weigh_two_keys<float>();
  weigh_two_keys<double>();
  use_block<float>();
  use_tables();
  use_models();
  return failures == 0 ? 0 : 1;
}
