// The cost of options, of one more query head, of one more thread and of hidden keys, next to calls without
// them. Names: what/queries x keys x heads + key heads x head_dim/threads.

#include "operands.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

using bench::add;
using bench::Index;
using bench::operands;
using bench::row;
using bench::shape;

void option_beside_none(row& of, shape s, const std::string& name) {
  const operands x(s, false);
  const auto size = static_cast<std::size_t>(s.queries * s.keys);
  std::vector<float> bias(static_cast<std::size_t>(s.heads) * size);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = -0.001f * static_cast<float>(i * 7919 % 997);
  const std::unique_ptr<bool[]> mask(new bool[size]);
  for (std::size_t i = 0; i < size; ++i) mask[i] = i * 7919 % 97 > 19;
  std::vector<std::int64_t> queries, keys;
  for (Index i = 0; i < s.queries; ++i) queries.push_back(i);
  for (Index j = 0; j < s.keys; ++j) keys.push_back((j + 300) % s.keys);
  rope::attention_options options;
  if (name == "softcap") options.softcap = 30;
  if (name == "bias") options.bias = rope::score_matrix(bias.data(), 1, s.heads, s.queries, s.keys);
  if (name == "shared_bias") options.bias = rope::score_matrix(bias.data(), 1, 1, 1, s.keys);
  if (name == "mask") options.mask = rope::score_matrix(mask.get(), 1, 1, s.queries, s.keys);
  if (name == "dropout") options.dropout = 0.1;
  if (name == "positions") options.query_positions = queries, options.key_positions = keys;
  of.time({[&] { rope::attention(x.q, x.k, x.v, x.out, options); }},
          {{"no option", {{[&] { x.attend(); }}}}});
}

/// Rules written as a mask for every key, next to options with the same meaning: the causal rule, and
/// sequences of 128 tokens laid end to end.
void mask_beside_rule(row& of, shape s, bool causal) {
  const operands x(s, false);
  const Index sequence = causal ? s.keys : 128;
  const std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(s.queries * s.keys)]);
  for (Index i = 0; i < s.queries; ++i)
    for (Index j = 0; j < s.keys; ++j)
      mask[static_cast<std::size_t>(i * s.keys + j)] = j <= i && i / sequence == j / sequence;
  std::vector<std::int64_t> offsets;
  for (Index i = 0; i <= s.queries; i += sequence) offsets.push_back(i);
  const rope::attention_options rule = {.query_offsets = offsets},
                                same = {.causal = false,
                                        .mask = rope::score_matrix(static_cast<const bool*>(mask.get()), 1, 1,
                                                                   s.queries, s.keys)};
  of.time({[&] { rope::attention(x.q, x.k, x.v, x.out, same); }},
          {{"the option", {{[&] { rope::attention(x.q, x.k, x.v, x.out, rule); }}}}});
}

/// Documents of `size` tokens laid end to end, each query with the range of its document, next to the same
/// documents as rows of a batch, which have as many visible keys but none to skip.
void ranges_beside_rows(row& of, shape s, Index size, bool causal) {
  const operands x(s, false);
  std::vector<std::int64_t> offsets;
  for (Index i = 0; i <= s.queries; i += size) offsets.push_back(i);
  const std::vector<rope::key_range> ranges = rope::segment_ranges(offsets, causal);
  const auto as_rows = [&](const rope::head_view<float>& all) {
    return rope::bshd(all.data, s.queries / size, size, all.heads, all.head_dim);
  };
  of.time({[&] { rope::attention(x.q, x.k, x.v, x.out, {.key_ranges = ranges}); }},
          {{"attention to only the visible keys", {{[&] {
              rope::attention(as_rows(x.q), as_rows(x.k), as_rows(x.v), as_rows(x.out), {.causal = causal});
            }}}}});
}

/// A prompt with the ranges of a maker, made in every call, next to a call whose rule has the same keys.
void made_ranges(row& of, shape s, const std::string& name) {
  const operands x(s, false);
  const rope::row_tokens tokens = {.queries = s.queries, .keys = s.keys};
  const Index all = s.keys;
  const auto make = [=] {
    return name == "prefix"   ? rope::prefix_ranges(0, tokens)
           : name == "blocks" ? rope::block_causal_ranges(1, tokens)
                              : rope::chunk_ranges(all, tokens);
  };
  of.time({[&] {
            const std::vector<rope::key_range> ranges = make();
            rope::attention(x.q, x.k, x.v, x.out, {.key_ranges = ranges});
          }},
          {{"causal", {{[&] { x.attend(); }}}}});
}

/// A step with a range of `size` keys among many, next to a step with so many keys.
void step_in_range(row& of, shape s, Index size) {
  const operands x(s, true);
  const rope::key_range range[] = {{s.keys / 2 + 77, size}};
  const auto keys = x.k.token_range(range[0].first, size), values = x.v.token_range(range[0].first, size);
  of.time({[&] { rope::attention(x.q, x.k, x.v, x.out, {.key_ranges = range}); }},
          {{"attention to only the visible keys", {{[&] { rope::attention(x.q, keys, values, x.out); }}}}});
}

/// Steps whose `size` keys are selected amid many, each for its own key head and other ones in every step,
/// next to steps with so many contiguous keys. Neither reads a key again before all others that it reads.
void step_of_selected(row& of, shape s, Index size) {
  const operands x(s, true);
  constexpr Index steps = 16;
  std::vector<std::int32_t> lists;
  for (Index n = 0; n < steps * s.kv_heads; ++n)
    for (Index i = 0; i < size; ++i) {  // a permutation of all keys: each list takes the next ones
      const auto key = static_cast<std::uint64_t>(i + n * size) * 40503 % static_cast<std::uint64_t>(s.keys);
      lists.push_back(static_cast<std::int32_t>(key));
    }
  Index list = 0, range = 0;
  of.time({[&] {
            const std::int32_t* first = lists.data() + list++ % steps * s.kv_heads * size;
            rope::attention(x.q, x.k, x.v, x.out,
                            {.selected = {first, {.queries = 1, .key_heads = s.kv_heads, .keys = size}}});
          }},
          {{"contiguous keys", {{[&] {
              const Index first = range++ % steps * size % s.keys;
              rope::attention(x.q, x.k.token_range(first, size), x.v.token_range(first, size), x.out);
            }}}}});
}

/// A step with this number of query heads, next to a step with one head less, over the same keys.
void one_more_head(row& of, shape s) {
  const operands x(s, true);
  const Index fewer = s.heads - 1;
  const auto attend_fewer = [&] {
    rope::attention(x.q.head_range(0, fewer), x.k, x.v, x.out.head_range(0, fewer));
  };
  of.time({[&] { x.attend(); }}, {{"one query head less", {{attend_fewer}}}});
}

/// Steps on two threads next to the same steps on one, both for at least ten milliseconds: the second thread
/// sleeps while the first one works alone.
void on_two_threads(row& of, const auto& step) {
  const auto calls =
      static_cast<Index>(1e-2 / std::max(bench::seconds([&] { step(rope::this_thread()); }, 3), 1e-9));
  const auto repeated = [&](const auto& threads) {
    for (Index i = 0; i <= calls; ++i) step(threads);
  };
  of.time({[&] { repeated(bench::pool()); }}, {{"one thread", {{[&] { repeated(rope::this_thread()); }}}}});
}

void two_threads(row& of, shape s) {
  const operands x(s, true);
  on_two_threads(of, [&](const auto& threads) { x.attend(threads); });
}

/// A step of 16 sequences in one cache. One of them has a token less than the others.
void two_threads_uneven(row& of, shape s) {
  const Index batch = 16;
  auto k_ = bench::channels(batch * s.keys * s.kv_heads * s.head_dim),
       q_ = bench::channels(batch * s.heads * s.head_dim), out_ = q_;
  rope::kv_cache<float> cache(batch, s.keys, s.kv_heads, s.head_dim);
  const auto k = rope::bshd(k_.data(), batch, s.keys, s.kv_heads, s.head_dim);
  std::vector<Index> tokens(static_cast<std::size_t>(batch), s.keys);
  tokens.back() = s.keys - 1;
  cache.append(k, k, tokens);
  const std::vector<Index> one_query(static_cast<std::size_t>(batch), 1);
  const auto q = rope::bshd(q_.data(), batch, 1, s.heads, s.head_dim),
             out = rope::bshd(out_.data(), batch, 1, s.heads, s.head_dim);
  on_two_threads(of, [&](const auto& threads) { rope::attention(q, cache, out, {}, one_query, threads); });
}

enum class window_of { all_before, sinks, gap, gap_in_the_callers_list };

/// A step with a window of 1024 in a cache of many tokens, next to a step in a cache of 4096. With sinks,
/// with a gap of 100 in the positions of tokens (which leaves 924 keys in the window), or with such a list of
/// positions from the caller.
void windowed_step(row& of, shape s, window_of what) {
  using C = Eigen::bfloat16;
  const Index piece = 4096, gap = s.keys - 512;
  rope::number_array<C> k_(piece * s.kv_heads * s.head_dim);
  for (Index i = 0; i < k_.size(); ++i) k_(i) = C(0.01f * static_cast<float>(i * 7919 % 97) - 0.48f);
  const auto k = rope::bshd(static_cast<const C*>(k_.data()), 1, piece, s.kv_heads, s.head_dim);
  auto q_ = bench::channels(s.heads * s.head_dim), out_ = q_;
  const auto q = rope::bshd(q_.data(), 1, 1, s.heads, s.head_dim),
             out = rope::bshd(out_.data(), 1, 1, s.heads, s.head_dim);
  rope::kv_cache<C> few(1, piece, s.kv_heads, s.head_dim), many(1, s.keys, s.kv_heads, s.head_dim);
  few.append(k, k);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(s.keys));
  for (Index t = 0; t < s.keys; ++t) positions[static_cast<std::size_t>(t)] = t < gap ? t : t + 100;
  for (Index t = 0; t < s.keys; t += piece)
    if (what == window_of::gap)
      many.append_at(k, k, std::span(positions).subspan(static_cast<std::size_t>(t), piece));
    else
      many.append(k, k);
  rope::attention_options options = {.window = 1024};
  const rope::attention_options plain = options;
  if (what == window_of::sinks) options.sinks = 4;
  if (what == window_of::gap_in_the_callers_list) {
    options.query_positions = std::span(positions).last(1);
    options.key_positions = positions;
  }
  const auto attend = [&] {
    if (what == window_of::gap_in_the_callers_list)
      rope::attention(q, many.keys(), many.values(), out, options);
    else
      rope::attention(q, many, out, options);
  };
  of.time({attend}, {{"4096 cached tokens", {{[&] { rope::attention(q, few, out, plain); }}}}});
}

}  // namespace

int main(int argc, char** argv) {
  for (const char* option : {"softcap", "bias", "shared_bias", "mask", "dropout", "positions"}) {
    const shape s = {1024, 1024, 8, 2, 128};
    add("an option of prefill", std::string("option/") + option, s, 1,
        [=](row& of) { option_beside_none(of, s, option); });
  }
  const shape prompt = {1024, 1024, 8, 2, 128};
  add("a mask that equals an option", "mask/causal", prompt, 1,
      [=](row& of) { mask_beside_rule(of, prompt, true); });
  add("a mask that equals an option", "mask/block_diagonal", prompt, 1,
      [=](row& of) { mask_beside_rule(of, prompt, false); });
  const shape documents = {4096, 4096, 8, 2, 128}, long_step = {1, 65536, 32, 8, 128};
  for (const Index size : {Index{512}, Index{2048}}) {
    add("ranges of keys", "ranges/causal_of_" + std::to_string(size), documents, 1,
        [=](row& of) { ranges_beside_rows(of, documents, size, true); });
    add("ranges of keys", "ranges/both_ways_of_" + std::to_string(size), documents, 1,
        [=](row& of) { ranges_beside_rows(of, documents, size, false); });
    add("ranges of keys", "ranges/step_of_" + std::to_string(size), long_step, 1,
        [=](row& of) { step_in_range(of, long_step, size); });
  }
  for (const char* maker : {"prefix", "blocks", "chunks"})
    add("ranges of a maker", std::string("made_ranges/") + maker, prompt, 1,
        [=](row& of) { made_ranges(of, prompt, maker); });
  // 16, 64 and 512 MiB of keys and values.
  for (const shape& s : {shape{1, 16384, 4, 1, 128}, shape{1, 65536, 4, 1, 128}, shape{1, 65536, 32, 8, 128}})
    add("selected keys", "selected/step_of_2048", s, 1, [=](row& of) { step_of_selected(of, s, 2048); });
  for (Index heads = 2; heads <= 20; ++heads) {
    const shape s = {1, 4096, heads, 1, 128};
    add("one more query head on a key head", "one_more_head", s, 1, [=](row& of) { one_more_head(of, s); });
  }
  for (const shape& s : {shape{1, 32768, 16, 1, 128}, shape{1, 4096, 128, 1, 128},
                         shape{16, 4096, 32, 8, 128}, shape{1, 1000, 32, 8, 128}})
    add("attention on two threads", "two_threads", s, 2, [=](row& of) { two_threads(of, s); });
  const shape uneven = {1, 1000, 32, 8, 128};
  add("attention on two threads", "two_threads_uneven", uneven, 2,
      [=](row& of) { two_threads_uneven(of, uneven); });
  for (const Index keys : {Index{1} << 16, Index{1} << 20}) {
    const shape s = {1, keys, 8, 2, 64};
    const auto window = [&](const char* name, window_of what) {
      add("a window of 1024 keys in more tokens", std::string("window_of_1024/") + name, s, 1,
          [=](row& of) { windowed_step(of, s, what); });
    };
    window("plain", window_of::all_before);
    window("sinks", window_of::sinks);
    window("gap", window_of::gap);
    window("gap_in_the_callers_list", window_of::gap_in_the_callers_list);
  }
  return bench::run(argc, argv);
}
