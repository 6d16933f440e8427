// SPDX-License-Identifier: MIT
// Several messages of text, images and videos through a cache with axes give the results of one prompt.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/rotation/rotate.hpp>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/heads.hpp"

using namespace rope;

namespace {

constexpr Index heads = 4, kv_heads = 2, head_dim = 40, value_dim = 12, most = 96;
using message = std::vector<prompt_run>;

/// The messages of a user and of a model, image by image and token by token.
const std::vector<message> conversation = {{text_run{3}, vision_run{1, 3, 5}, text_run{4}},
                                           {text_run{1}},
                                           {text_run{1}},
                                           {text_run{2}, vision_run{3, 2, 2, 4}, text_run{1}},
                                           {text_run{1}},
                                           {vision_run{1, 4, 2}},
                                           {text_run{1}},
                                           {text_run{7}}};

/// How the pairs of a model with rotary_dim 32 are assigned to (time, height, width).
struct family {
  const char* name;
  frequencies schedule;
  axis_assignment axes;
};
std::vector<family> families() {
  return {{"Qwen2-VL", frequencies(32, 1e6), contiguous_sections({4, 6, 6})},
          {"Qwen3-VL", frequencies(32, 5e6), interleaved_sections({6, 5, 5})},
          {"Ernie 4.5 VL", frequencies(32, 5e5), height_width_then_time(5, 6)},
          {"with a factor", frequencies(32, 1e4, yarn_scaling{.factor = 4, .original_max_position = 64}),
           contiguous_sections({4, 6, 6})}};
}

message all_of(const std::vector<message>& messages) {
  message all;
  for (const message& t : messages) all.insert(all.end(), t.begin(), t.end());
  return all;
}

/// Channels of a prompt of `batch` rows.
template <class T>
struct channels {
  Index batch;
  std::vector<T> q = random(heads * head_dim, 1), k = random(kv_heads * head_dim, 2),
                 v = random(kv_heads * value_dim, 3);
  std::vector<T> random(Index width, std::uint32_t seed) const {
    return testing::random_channels<T>(batch * most * width, seed);
  }
  head_view<const T> queries() const { return bshd(q.data(), batch, most, heads, head_dim); }
  head_view<const T> keys() const { return bshd(k.data(), batch, most, kv_heads, head_dim); }
  head_view<const T> values() const { return bshd(v.data(), batch, most, kv_heads, value_dim); }
};

template <class T>
struct output {
  std::vector<T> memory;
  Index batch;
  explicit output(Index rows)
      : memory(static_cast<std::size_t>(rows * most * heads * value_dim)), batch(rows) {}
  head_view<T> view() { return bshd(memory.data(), batch, most, heads, value_dim); }
};

/// The bound of the difference of two computed results, each within reference::decoder_bound of the exact
/// one.
template <class T>
double bound_of(const frequencies& f, Index keys, bool rotated) {
  const reference::model m{static_cast<std::size_t>(heads),
                           static_cast<std::size_t>(kv_heads),
                           static_cast<std::size_t>(head_dim),
                           static_cast<std::size_t>(value_dim),
                           {},
                           {},
                           f.attention_factor()};
  return 2 * reference::decoder_bound<T, T>(m, static_cast<std::size_t>(keys), 0, rotated);
}

/// How messages of text are appended: with their own coordinates, with those of the cache, or by positions.
enum class text_form { coordinates, of_the_cache, positions };

}  // namespace

TEMPLATE_LIST_TEST_CASE("alternating text and images have the keys and outputs of one prompt", "[cache]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const channels<T> x{2};
  for (const family& model : families())
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      const frequencies f = on_axes(model.schedule, model.axes);
      const frequency_table<S> text(model.schedule, 200);
      const auto prompt = qwen_vl_positions(all_of(conversation));
      const Index size = prompt.coordinates.rows();
      const frequency_table<S> whole(f, prompt.coordinates);
      // One prompt: rotated and attended to without a cache.
      output<T> at_once(2);
      attention<Layout>(x.queries().token_range(0, size), x.keys().token_range(0, size),
                        x.values().token_range(0, size), at_once.view().token_range(0, size), whole);
      std::vector<T> rotated = x.k;
      rotate<Layout>(bshd(rotated.data(), 2, most, kv_heads, head_dim).token_range(0, size), whole);
      const auto rotated_keys = bshd(std::as_const(rotated).data(), 2, most, kv_heads, head_dim);
      for (const text_form form : {text_form::coordinates, text_form::of_the_cache, text_form::positions}) {
        CAPTURE(model.name, testing::name_of<Layout>, static_cast<int>(form));
        kv_cache<T> cache(2, most, kv_heads, head_dim, token_axes{3}, value_dim);
        output<T> out(2), same_keys(2);
        for (const message& runs : conversation) {
          const auto now = qwen_vl_positions(runs, cache.next_positions()[1]);
          const Index first = cache.size(), count = now.coordinates.rows();
          const bool only_text = runs.size() == 1 && !runs[0].is_vision;
          const frequency_table<S> own = only_text && form == text_form::of_the_cache
                                             ? frequency_table<S>(f, cache.next_coordinates(count))
                                             : frequency_table<S>(f, now.coordinates);
          const frequency_table<S>& table = only_text && form == text_form::positions ? text : own;
          cache.template append<Layout>(x.keys().token_range(first, count),
                                        x.values().token_range(first, count), table);
          attention<Layout>(x.queries().token_range(first, count), cache,
                            out.view().token_range(first, count), table);
          // A call with the keys of the prompt.
          const frequency_table<S> queries_of_prompt(f, prompt.coordinates.middleRows(first, count));
          std::vector<T> q = x.q;
          const auto rotated_queries = bshd(q.data(), 2, most, heads, head_dim).token_range(first, count);
          rotate<Layout>(rotated_queries, queries_of_prompt);
          attention(rotated_queries, rotated_keys.token_range(0, first + count),
                    x.values().token_range(0, first + count), same_keys.view().token_range(first, count));
        }
        REQUIRE(cache.size() == size);
        CHECK(cache.next_positions()[0] == prompt.next);
        CHECK((cache.coordinates(1) == prompt.coordinates.template cast<double>()).all());
        CHECK(testing::same_heads(cache.keys(), rotated_keys.token_range(0, size)));
        CHECK(testing::same_heads(cache.values(), x.values().token_range(0, size)));
        CHECK(testing::same_bits(out.memory, same_keys.memory));
        CHECK(testing::largest_difference(out.view().token_range(0, size),
                                          at_once.view().token_range(0, size)) <= bound_of<T>(f, size, true));
        // The whole prompt through a cache in one call.
        kv_cache<T> full(2, size, kv_heads, head_dim, token_axes{3}, value_dim);
        full.template append<Layout>(x.keys().token_range(0, size), x.values().token_range(0, size), whole);
        attention<Layout>(x.queries().token_range(0, size), full, out.view().token_range(0, size), whole);
        CHECK(testing::same_heads(out.view().token_range(0, size), at_once.view().token_range(0, size)));
      }
    });
}

TEST_CASE("raw keys on axes give the results of one prompt", "[cache]") {
  const channels<float> x{2};
  for (const family& model : families()) {
    CAPTURE(model.name);
    const frequencies f = on_axes(model.schedule, model.axes);
    const auto prompt = qwen_vl_positions(all_of(conversation));
    const Index size = prompt.coordinates.rows();
    output<float> at_once(2), out(2);
    attention<half_split>(x.queries().token_range(0, size), x.keys().token_range(0, size),
                          x.values().token_range(0, size), at_once.view().token_range(0, size),
                          frequency_table<>(f, prompt.coordinates));
    kv_cache<float> cache(2, most, kv_heads, head_dim, token_axes{3}, value_dim, key_storage::raw);
    for (const message& runs : conversation) {
      const auto now = qwen_vl_positions(runs, cache.next_positions()[0]);
      const Index first = cache.size(), count = now.coordinates.rows();
      const auto k = x.keys().token_range(first, count), v = x.values().token_range(first, count);
      if (count == 1)
        cache.append(k, v);
      else
        cache.append_at(k, v, token_coordinates(now.coordinates));
      attention<half_split>(x.queries().token_range(first, count), cache,
                            out.view().token_range(first, count), frequency_table<>(f, cache.coordinates()));
    }
    CHECK(cache.size() == size);
    CHECK(testing::largest_difference(out.view().token_range(0, size), at_once.view().token_range(0, size)) <=
          bound_of<float>(f, size, false));
    cache.clear();
    cache.append_at(x.keys().token_range(0, size), x.values().token_range(0, size),
                    token_coordinates(prompt.coordinates));
    attention<half_split>(x.queries().token_range(0, size), cache, out.view().token_range(0, size),
                          frequency_table<>(f, cache.coordinates()));
    CHECK(testing::same_heads(out.view().token_range(0, size), at_once.view().token_range(0, size)));
  }
}

TEST_CASE("rows of a padded batch continue at their own coordinates", "[cache]") {
  // Row 0 has an image, row 1 a shorter prompt of text, row 2 a video. Then all rows decode.
  const channels<float> x{3};
  const family model = families()[1];
  const frequencies f = on_axes(model.schedule, model.axes);
  const frequency_table<> text(model.schedule, 200);
  const std::vector<message> prompts = {
      {text_run{2}, vision_run{1, 4, 4}, text_run{3}}, {text_run{9}}, {vision_run{3, 2, 3, 7}, text_run{1}}};
  const Index width = 21, steps = 5;
  Eigen::ArrayXXd coordinates = Eigen::ArrayXXd::Constant(3 * width, 3, 77);  // 77: of padding
  std::vector<int> counts;
  std::vector<std::int64_t> next;
  for (Index b = 0; b < 3; ++b) {
    const auto prompt = qwen_vl_positions(prompts[static_cast<std::size_t>(b)]);
    coordinates.middleRows(b * width, prompt.coordinates.rows()) = prompt.coordinates.cast<double>();
    counts.push_back(static_cast<int>(prompt.coordinates.rows()));
    next.push_back(prompt.next);
  }
  for (const bool by_positions : {false, true}) {
    kv_cache<float> cache(3, most, kv_heads, head_dim, token_axes{3}, value_dim);
    output<float> out(3);
    const frequency_table<> table(f, coordinates);
    cache.append<half_split>(x.keys().token_range(0, width), x.values().token_range(0, width), table, counts);
    attention<half_split>(x.queries().token_range(0, width), cache, out.view().token_range(0, width), table);
    CHECK(std::equal(next.begin(), next.end(), cache.next_positions().begin()));
    for (Index i = 0; i < steps; ++i) {
      const Index at = width + i;
      const frequency_table<> step(f, cache.next_coordinates());
      const auto& of_step = by_positions ? text : step;
      cache.append<half_split>(x.keys().token_range(at, 1), x.values().token_range(at, 1), of_step);
      attention<half_split>(x.queries().token_range(at, 1), cache, out.view().token_range(at, 1), of_step);
    }
    for (Index b = 0; b < 3; ++b) {
      message alone = prompts[static_cast<std::size_t>(b)];
      alone.push_back(text_run{steps});
      const auto prompt = qwen_vl_positions(alone);
      const Index count = counts[static_cast<std::size_t>(b)], size = count + steps;
      REQUIRE(cache.size(b) == size);
      CHECK((cache.coordinates(b) == prompt.coordinates.cast<double>()).all());
      const frequency_table<> whole(f, prompt.coordinates);
      kv_cache<float> one(1, size, kv_heads, head_dim, token_axes{3}, value_dim);
      const auto row_of = [&](const auto& view, Index first, Index tokens) {
        return view.batch_range(b, 1).token_range(first, tokens);
      };
      // The tokens of the row, without padding.
      std::vector<float> k(static_cast<std::size_t>(size * kv_heads * head_dim)),
          v(static_cast<std::size_t>(size * kv_heads * value_dim)),
          q(static_cast<std::size_t>(size * heads * head_dim)),
          o(static_cast<std::size_t>(size * heads * value_dim));
      const auto kk = bshd(k.data(), 1, size, kv_heads, head_dim),
                 vv = bshd(v.data(), 1, size, kv_heads, value_dim),
                 qq = bshd(q.data(), 1, size, heads, head_dim),
                 oo = bshd(o.data(), 1, size, heads, value_dim);
      for (const auto& [from, to, tokens] :
           {std::tuple{Index{0}, Index{0}, count}, std::tuple{width, count, steps}}) {
        testing::copy_heads(row_of(x.keys(), from, tokens), kk.token_range(to, tokens));
        testing::copy_heads(row_of(x.values(), from, tokens), vv.token_range(to, tokens));
        testing::copy_heads(row_of(x.queries(), from, tokens), qq.token_range(to, tokens));
      }
      one.append<half_split>(kk, vv, whole);
      attention<half_split>(qq, one, oo, whole);
      CHECK(testing::same_heads(cache.keys(b), one.keys()));
      CHECK(testing::same_heads(cache.values(b), one.values()));
      const double bound = bound_of<float>(f, size, true);
      CHECK(testing::largest_difference(row_of(out.view(), 0, count), oo.token_range(0, count)) <= bound);
      CHECK(testing::largest_difference(row_of(out.view(), width, steps), oo.token_range(count, steps)) <=
            bound);
      for (Index t = count; t < width; ++t) CHECK(*out.view().at(b, t, 0) == 0);
    }
  }
}

TEST_CASE("axes work with placed channels, real coordinates and one table for all rows", "[cache]") {
  const channels<float> x{2};
  Eigen::MatrixXd directions = Eigen::MatrixXd::Random(8, 2);
  const frequencies f = along_directions(frequencies(16, 100.0), directions);
  const Index size = 20;
  Eigen::ArrayXXd coordinates = 10 * Eigen::ArrayXXd::Random(size, 2);
  const frequency_table<> whole(f, coordinates);
  const auto placed = whole.at_channel(5);
  output<float> at_once(2), out(2);
  attention<interleaved>(x.queries().token_range(0, size), x.keys().token_range(0, size),
                         x.values().token_range(0, size), at_once.view().token_range(0, size), placed);
  kv_cache<float> cache(2, most, kv_heads, head_dim, token_axes{2}, value_dim);
  for (const Index first : {Index{0}, Index{13}}) {
    const Index count = first == 0 ? 13 : 7;
    const frequency_table<> table(f, coordinates.middleRows(first, count));
    cache.append<interleaved>(x.keys().token_range(first, count), x.values().token_range(first, count),
                              table.at_channel(5));
    attention<interleaved>(x.queries().token_range(first, count), cache, out.view().token_range(first, count),
                           table.at_channel(5));
  }
  std::vector<float> rotated = x.k;
  const auto keys = bshd(rotated.data(), 2, most, kv_heads, head_dim).token_range(0, size);
  rotate<interleaved>(keys, placed);
  CHECK(testing::same_heads(cache.keys(), keys));
  CHECK(testing::largest_difference(out.view().token_range(0, size), at_once.view().token_range(0, size)) <=
        bound_of<float>(f, size, true));
  CHECK(cache.next_coordinates(2)(3, 1) == coordinates.maxCoeff() + 2);
}
