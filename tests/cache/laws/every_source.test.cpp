// SPDX-License-Identifier: MIT
// Attention follows its definition for every source and storage of keys, and for every chunking of a
// sequence. One naive reference, in long double and without code of the library, is compared in every
// combination of layout, rotated channels, axes, storage, source and chunking.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <rope/attention/attention.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/reference.hpp"
#include "support/rounding.hpp"
#include "support/tolerance.hpp"

using namespace rope;
using reference::tensor;
using testing::wide;

namespace {

constexpr Index batch = 2, tokens = 37, heads = 4, kv_heads = 2, head_dim = 24, latent_dim = 16,
                page_size = 5;
constexpr double base = 50;

/// The rotated channels: [first, first + 2 * pairs), by positions or by (time, height, width).
struct rotated_channels {
  Index first, pairs;
  bool on_axes;
};

/// Whether the source makes key j visible to query i, in the order of tokens.
struct sight {
  Index window = tokens, sinks = 0;
  bool operator()(Index i, Index j) const { return j <= i && (j > i - window || j < sinks); }
};

/// Queries, keys and values of a sequence for each row of the batch, and the coordinates of its tokens, [row,
/// token, axis].
struct sequences {
  tensor q, k, v;
  std::vector<double> at;

  double coordinate(long b, long t, long axis) const {
    return at[static_cast<std::size_t>((b * tokens + t) * 3 + axis)];
  }
};

/// An image of 3 by 4 patches, or of 2 by 6, within text, with the positions of Qwen2-VL.
std::vector<double> coordinates(bool on_axes) {
  std::vector<double> at;
  for (long b = 0; b < batch; ++b) {
    const long before = b == 0 ? 9 : 2, rows = b == 0 ? 3 : 2, columns = 12 / rows;
    for (long t = 0; t < tokens; ++t) {
      const long patch = t - before;
      const bool shown = on_axes && patch >= 0 && patch < 12;
      const long text = !on_axes || t < before ? t : before + (std::max)(rows, columns) + t - before - 12;
      for (const long place : {before, before + patch / columns, before + patch % columns})
        at.push_back(static_cast<double>(shown ? place : text));
    }
  }
  return at;
}

/// Pairs of the three axes: the first two rotate by time, the next by height, the others by width.
long axis_of(long pair, bool on_axes) { return !on_axes || pair < 2 ? 0 : pair < 3 ? 1 : 2; }

template <class Layout>
tensor rotated_heads(const tensor& x, const sequences& all, const rotated_channels& what) {
  tensor result = x;
  for (long b = 0; b < x.batch; ++b)
    for (long t = 0; t < x.tokens; ++t)
      for (long h = 0; h < x.heads; ++h)
        for (long i = 0; i < what.pairs; ++i) {
          const auto at =
              std::is_same_v<Layout, interleaved>
                  ? reference::interleaved(static_cast<std::size_t>(i), static_cast<std::size_t>(what.pairs))
                  : reference::half_split(static_cast<std::size_t>(i), static_cast<std::size_t>(what.pairs));
          const wide angle =
              all.coordinate(b, t, axis_of(i, what.on_axes)) * reference::inv_freq(base, i, 2 * what.pairs);
          const long one = what.first + static_cast<long>(at[0]), two = what.first + static_cast<long>(at[1]);
          const wide c = testing::cos(angle), s = testing::sin(angle), a = x(b, t, h, one),
                     d = x(b, t, h, two);
          result(b, t, h, one) = static_cast<double>(a * c - d * s);
          result(b, t, h, two) = static_cast<double>(d * c + a * s);
        }
  return result;
}

/// The variance that storing a channel of a head adds, in units of u^2 of float. 16-bit types round it to
/// half a unit in the last place, and integers to half a step, which is 1 / 127 of the largest channel.
template <class C>
double variance_of_storing(double channel, double largest) {
  const auto u = static_cast<double>(tolerance::unit_roundoff<float>());
  double half_step = 0;
  if constexpr (std::is_same_v<C, std::int8_t>)
    half_step = largest / 254;
  else if constexpr (tolerance::is_16_bit<C>)
    half_step = static_cast<double>(tolerance::ulp<C>(channel) / 2);
  (void)channel, (void)largest;
  return half_step * half_step / (u * u) / 3;
}
/// The error of a rotated channel is at most 2.75 u times the length of its pair (tests/README.md). The bound
/// uses the length of the head.
constexpr double variance_of_rotation = 2.75 * 2.75 / 3;

struct answer {
  tensor out;
  std::vector<double> deviation;  // of every output, in units of u of float, or of u of double
};

/// Attention by its definition.
template <class Layout, class T, class C>
answer expected(const sequences& all, const rotated_channels& what, const sight& sees, double scale) {
  const tensor q = rotated_heads<Layout>(all.q, all, what), k = rotated_heads<Layout>(all.k, all, what);
  answer result = {tensor(batch, tokens, heads, all.v.dim), {}};
  const auto magnitude = [](const tensor& x, long b, long t, long h) {
    double largest = 0;
    for (long d = 0; d < x.dim; ++d) largest = (std::max)(largest, std::abs(x(b, t, h, d)));
    return largest;
  };
  reference::query_errors errors(static_cast<std::size_t>(all.v.dim));
  for (long b = 0; b < batch; ++b)
    for (long i = 0; i < tokens; ++i)
      for (long h = 0; h < heads; ++h) {
        const long kv = h / (heads / kv_heads) % all.k.heads;
        std::vector<wide> scores;
        std::vector<double> variances;
        wide largest = -std::numeric_limits<wide>::max();
        for (long j = 0; j < tokens; ++j) {
          wide score = 0;
          reference::exact_score exact;
          double storing = 0, q_squares = 0, k_squares = 0;
          const double largest_key = magnitude(k, b, j, kv);
          for (long d = 0; d < q.dim; ++d) {
            const double x = scale * q(b, i, h, d), y = k(b, j, kv, d);
            score += static_cast<wide>(x) * y;
            exact.squares += x * y * x * y;
            storing += x * x * variance_of_storing<C>(y, largest_key) +
                       scale * scale * y * y * variance_of_storing<T>(q(b, i, h, d), 0);
            q_squares += x * x;
            k_squares += y * y;
          }
          exact.products = exact.capped = static_cast<double>(score);
          scores.push_back(score);
          variances.push_back(reference::variance_of_score(exact, static_cast<double>(q.dim), 0) + storing +
                              2 * variance_of_rotation * q_squares * k_squares / static_cast<double>(q.dim));
          if (sees(i, j)) largest = (std::max)(largest, score);
        }
        wide sum = 0;
        for (long j = 0; j < tokens; ++j) {
          wide& weight = scores[static_cast<std::size_t>(j)];
          weight = sees(i, j) ? testing::exp(weight - largest) : wide(0);
          sum += weight;
        }
        errors.start();
        std::vector<double> stored(static_cast<std::size_t>(all.v.dim));
        for (long d = 0; d < all.v.dim; ++d) {
          wide mean = 0;
          for (long j = 0; j < tokens; ++j) mean += scores[static_cast<std::size_t>(j)] * all.v(b, j, kv, d);
          result.out(b, i, h, d) = static_cast<double>(mean / sum);
        }
        for (long j = 0; j < tokens; ++j) {
          if (!sees(i, j)) continue;
          const auto weight = static_cast<double>(scores[static_cast<std::size_t>(j)] / sum);
          const double distance = -std::log(weight * static_cast<double>(sum));
          errors.add(weight,
                     variances[static_cast<std::size_t>(j)] + reference::variance_of_exp(distance, tokens),
                     [&](std::size_t d) { return all.v(b, j, kv, static_cast<long>(d)); });
          const double largest_value = magnitude(all.v, b, j, kv);
          for (long d = 0; d < all.v.dim; ++d)
            if (std::is_same_v<C, std::int8_t>)  // values of the other types are exactly the stored ones
              stored[static_cast<std::size_t>(d)] +=
                  weight * weight * variance_of_storing<C>(all.v(b, j, kv, d), largest_value);
        }
        for (long d = 0; d < all.v.dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          const double sums = errors.output(at, result.out(b, i, h, d), tokens);
          result.deviation.push_back(std::sqrt(sums * sums + stored[at]));
        }
      }
  return result;
}

/// Heads of T in memory, [batch, tokens, heads, dim].
template <class T>
struct owned {
  std::vector<T> memory;
  Index count, dim;
  owned(const tensor& x) : memory(testing::stored<T>(x)), count(x.heads), dim(x.dim) {}
  head_view<T> view() { return bshd(memory.data(), batch, tokens, count, dim); }
  head_view<T> part(Index first, Index n) { return view().token_range(first, n); }
};

/// Every way in which `library` passes keys to attention.
enum class source {
  views,
  raw_views,
  cache,
  raw_cache,
  ring,
  raw_ring,
  pages,
  raw_pages,
  latents,
  raw_latents
};
/// Latents have heads of other shapes, and their own calls.
constexpr source sources[] = {source::views, source::raw_views, source::cache, source::raw_cache,
                              source::ring,  source::raw_ring,  source::pages, source::raw_pages};

/// The results of the library for the same sequences, given in chunks.
template <class Layout, class T, class C>
class library {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;

 public:
  library(const sequences& all, const rotated_channels& what, double scale, const std::vector<Index>& chunks)
      : all_(all),
        what_(what),
        chunks_(chunks),
        q_(all.q),
        k_(all.k),
        v_(all.v),
        out_(tensor(batch, tokens, heads, all.v.dim)),
        frequencies_(what.on_axes ? on_axes(frequencies(2 * what.pairs, base),
                                            contiguous_sections({2, 1, static_cast<int>(what.pairs) - 3}))
                                  : frequencies(2 * what.pairs, base)) {
    options_.scale = scale;
  }

  /// Empty if the library documents that it does not support this combination.
  std::optional<tensor> attended(source from, const sight& sees) {
    switch (from) {
      case source::views:
      case source::raw_views:
        options_.window = sees.window;
        options_.sinks = sees.sinks;
        attend_to_views(from == source::raw_views);
        break;
      case source::cache:
      case source::raw_cache:
        options_.window = sees.window;
        options_.sinks = sees.sinks;
        attend_to_cache(from == source::raw_cache);
        break;
      case source::ring:
      case source::raw_ring:
        if (what_.on_axes && from == source::raw_ring) return {};
        attend_to_ring(from == source::raw_ring, sees);
        break;
      case source::pages:
      case source::raw_pages:
        if (what_.on_axes && from == source::raw_pages) return {};
        options_.window = sees.window;
        options_.sinks = sees.sinks;
        attend_to_pages(from == source::raw_pages);
        break;
      case source::latents:
      case source::raw_latents:
        return {};
    }
    return testing::loaded(out_.memory, tensor(batch, tokens, heads, all_.v.dim));
  }

  /// As in `latent_cache`, the values are the first channels of the keys.
  tensor attended_latents(bool raw) {
    latent_cache<T> cache(batch, tokens, latent_dim, 2 * what_.pairs,
                          raw ? key_storage::raw : key_storage::rotated);
    const frequency_table<S> table(frequencies_, tokens);
    for_each_chunk([&](Index first, Index n) {
      const auto k = k_.part(first, n);
      const auto part = k.channels(latent_dim, 2 * what_.pairs);
      testing::append_tokens<Layout>(cache, v_.part(first, n), part, table);
      attention<Layout>(q_.part(first, n), cache, out_.part(first, n), table, options_);
    });
    return testing::loaded(out_.memory, tensor(batch, tokens, heads, all_.v.dim));
  }

 private:
  static constexpr bool narrow = std::is_same_v<C, std::int8_t>;

  template <class Do>
  void for_each_chunk(const Do& work) {
    Index first = 0;
    for (std::size_t i = 0; first < tokens; ++i) {
      const Index n = (std::min)(chunks_[i % chunks_.size()], tokens - first);
      work(first, n);
      first += n;
    }
  }
  /// Rows for tokens [first, first + n), of all rows of the batch if these differ.
  frequency_table<S> table_of(Index first, Index n) const {
    if (!what_.on_axes) return frequency_table<S>(frequencies_, tokens);
    Eigen::ArrayXXd at(batch * n, 3);
    for (Index b = 0; b < batch; ++b)
      for (Index t = 0; t < n; ++t)
        for (Index a = 0; a < 3; ++a) at(b * n + t, a) = all_.coordinate(b, first + t, a);
    return frequency_table<S>(frequencies_, at);
  }
  /// Row b of the batch alone: a table of coordinates has a row for each of its tokens, in their order.
  void attend_to_views(bool raw) {
    std::vector<std::int64_t> order(tokens);
    std::iota(order.begin(), order.end(), 0);
    for (Index b = 0; b < batch; ++b) {
      const frequency_table<S> table =
          what_.on_axes ? table_of_row(b) : frequency_table<S>(frequencies_, tokens);
      const auto place = table.at_channel(what_.first);
      owned<C> narrow_v(tensor(batch, tokens, kv_heads, all_.v.dim)), narrow_k(all_.k);
      std::vector<float> scales(static_cast<std::size_t>(2 * batch * tokens * kv_heads));
      owned<T> k = k_, q = q_;
      if (!raw) rotate<Layout>(q.view().batch_range(b, 1), k.view().batch_range(b, 1), place, order);
      const auto call = [&](const auto& keys, const auto& values) {
        for_each_chunk([&](Index first, Index n) {
          const auto query = q.part(first, n).batch_range(b, 1);
          const auto out = out_.part(first, n).batch_range(b, 1);
          const auto seen = keys.batch_range(b, 1).token_range(0, first + n);
          const auto summed = values.batch_range(b, 1).token_range(0, first + n);
          if (raw)
            attention<Layout>(query, seen, summed, out, place, options_);
          else
            attention(query, seen, summed, out, options_);
        });
      };
      if constexpr (narrow) {
        const auto keys = bshd(narrow_k.memory.data(), scales.data(), batch, tokens, kv_heads, head_dim);
        const auto values = bshd(narrow_v.memory.data(), scales.data() + batch * tokens * kv_heads, batch,
                                 tokens, kv_heads, Index(all_.v.dim));
        quantize(k.view(), keys);
        quantize(v_.view(), values);
        call(keys, values);
      } else {
        call(k.view(), v_.view());
      }
    }
  }
  frequency_table<S> table_of_row(Index b) const {
    Eigen::ArrayXXd at(tokens, 3);
    for (Index t = 0; t < tokens; ++t)
      for (Index a = 0; a < 3; ++a) at(t, a) = all_.coordinate(b, t, a);
    return frequency_table<S>(frequencies_, at);
  }

  void attend_to_cache(bool raw) {
    const key_storage storage = raw ? key_storage::raw : key_storage::rotated;
    kv_cache<C> cache =
        what_.on_axes ? kv_cache<C>(batch, tokens, kv_heads, head_dim, token_axes{3}, all_.v.dim, storage)
                      : kv_cache<C>(batch, tokens, kv_heads, head_dim, all_.v.dim, storage);
    for_each_chunk([&](Index first, Index n) {
      const frequency_table<S> newest = table_of(first, n);
      if (!raw)
        cache.template append<Layout>(k_.part(first, n), v_.part(first, n), newest.at_channel(what_.first));
      else if (what_.on_axes)
        cache.append_at(k_.part(first, n), v_.part(first, n), token_coordinates(newest.coordinates()));
      else
        cache.append(k_.part(first, n), v_.part(first, n));
      if (!raw || !what_.on_axes)
        return attention<Layout>(q_.part(first, n), cache, out_.part(first, n),
                                 newest.at_channel(what_.first), options_);
      Eigen::ArrayXXd at(batch * (first + n), 3);
      for (Index b = 0; b < batch; ++b) at.middleRows(b * (first + n), first + n) = cache.coordinates(b);
      const frequency_table<S> everyone(frequencies_, at);
      attention<Layout>(q_.part(first, n), cache, out_.part(first, n), everyone.at_channel(what_.first),
                        options_);
    });
  }

  void attend_to_ring(bool raw, const sight& sees) {
    const Index most = *std::max_element(chunks_.begin(), chunks_.end());
    const ring_policy policy = {
        .sinks = sees.sinks, .window = sees.window, .chunk = (std::min)(most, tokens)};
    ring_cache<C> cache = what_.on_axes
                              ? ring_cache<C>(batch, policy, kv_heads, head_dim, token_axes{3}, all_.v.dim)
                              : ring_cache<C>(batch, policy, kv_heads, head_dim, all_.v.dim,
                                              raw ? key_storage::raw : key_storage::rotated);
    for_each_chunk([&](Index first, Index n) {
      const frequency_table<S> newest = table_of(first, n);
      const auto table = newest.at_channel(what_.first);
      testing::append_tokens<Layout>(cache, k_.part(first, n), v_.part(first, n), table);
      attention<Layout>(q_.part(first, n), cache, out_.part(first, n), table, options_);
    });
  }

  /// Each sequence has every second page of the pool, and the second sequence takes them from the end.
  void attend_to_pages(bool raw) {
    constexpr Index blocks = (tokens + page_size - 1) / page_size, pages = batch * blocks;
    std::vector<int> table_of_blocks;
    for (Index block = 0; block < blocks; ++block) table_of_blocks.push_back(static_cast<int>(2 * block));
    for (Index block = 0; block < blocks; ++block)
      table_of_blocks.push_back(static_cast<int>(pages - 1 - 2 * block));
    std::vector<C> keys(static_cast<std::size_t>(pages * page_size * kv_heads * head_dim)),
        values(static_cast<std::size_t>(pages * page_size * kv_heads * all_.v.dim));
    std::vector<float> key_scales(static_cast<std::size_t>(pages * page_size * kv_heads)),
        value_scales(key_scales);
    const auto pool = [&](std::vector<C>& memory, std::vector<float>& scales, Index dim) {
      if constexpr (narrow)
        return bshd(memory.data(), scales.data(), pages, page_size, kv_heads, dim);
      else
        return (void)scales, bshd(memory.data(), pages, page_size, kv_heads, dim);
    };
    for_each_chunk([&](Index first, Index n) {
      const int length = static_cast<int>(first + n);
      const std::vector<int> lengths(batch, length);
      const page_view<C> view(
          {.keys = pool(keys, key_scales, head_dim), .values = pool(values, value_scales, all_.v.dim)},
          table_of_blocks, lengths, raw ? key_storage::raw : key_storage::rotated);
      const frequency_table<S> newest = table_of(first, n);
      const auto table = newest.at_channel(what_.first);
      const auto k = k_.part(first, n), v = v_.part(first, n), q = q_.part(first, n),
                 out = out_.part(first, n);
      if (what_.on_axes) {  // pages have no coordinates: q and k are given rotated
        owned<T> rotated_k = k_, rotated_q = q_;
        std::vector<std::int64_t> rows(static_cast<std::size_t>(batch * n));
        std::iota(rows.begin(), rows.end(), 0);
        rotate<Layout>(rotated_k.part(first, n), table, rows);
        rotate<Layout>(rotated_q.part(first, n), table, rows);
        write_pages(rotated_k.part(first, n), v, view);
        return attention(rotated_q.part(first, n), view, out, options_);
      }
      if (raw)
        write_pages(k, v, view);
      else
        write_pages<Layout>(k, v, view, table);
      attention<Layout>(q, view, out, table, options_);
    });
  }

  const sequences& all_;
  rotated_channels what_;
  std::vector<Index> chunks_;
  owned<T> q_, k_, v_, out_;
  frequencies frequencies_;
  attention_options options_;
};

template <class T>
sequences drawn(testing::random& numbers, Index key_heads, Index value_dim, bool on_axes) {
  const auto draw = [&](long count, long dim) {
    tensor x(batch, tokens, count, dim);
    for (double& value : x.values)
      value = static_cast<double>(static_cast<float>(static_cast<T>(2 * numbers.unit() - 1)));
    return x;
  };
  return {draw(heads, head_dim), draw(key_heads, head_dim), draw(key_heads, value_dim), coordinates(on_axes)};
}

template <class T, class C>
double off_by(const tensor& got, const answer& exact) {
  if constexpr (std::is_same_v<T, double>)
    return reference::worst_deviation<double, double>(got.values, exact.out.values, exact.deviation, tokens);
  else
    return reference::worst_deviation<T, float>(got.values, exact.out.values, exact.deviation, tokens);
}

/// The largest error of each source, as a multiple of the allowed error.
using worst_errors = std::map<source, double>;

void note(worst_errors& worst, source from, double off) { worst[from] = (std::max)(worst[from], off); }

const std::vector<std::vector<Index>> chunkings = {{tokens}, {16, 1, 1, 5}, {1}};

/// Queries of T to keys stored as C: every source, placement, kind of positions, window of keys and chunking.
template <class Layout, class T, class C>
void check_every_source(std::uint64_t seed, worst_errors& worst) {
  testing::random numbers(seed);
  const double scale = 1.5 / std::sqrt(static_cast<double>(head_dim));
  for (const rotated_channels& what :
       {rotated_channels{0, head_dim / 2, false}, rotated_channels{8, 6, false}, rotated_channels{0, 4, true},
        rotated_channels{8, 8, true}, rotated_channels{0, 12, true}}) {
    const sequences all = drawn<T>(numbers, kv_heads, 20, what.on_axes);
    for (const sight& sees : {sight{}, sight{11, 3}}) {
      const answer exact = expected<Layout, T, C>(all, what, sees, scale);
      for (const auto& chunks : chunkings)
        for (const source from : sources) {
          CAPTURE(seed, testing::name_of<Layout>, what.first, what.pairs, what.on_axes, sees.window,
                  chunks.front(), static_cast<int>(from));
          const auto got = library<Layout, T, C>(all, what, scale, chunks).attended(from, sees);
          if (!got) continue;
          const double off = off_by<T, C>(*got, exact);
          note(worst, from, off);
          CHECK(off <= 1);
        }
    }
  }
}

/// Repeats this for latents, whose last channels rotate and whose first channels are also the values.
template <class Layout, class T>
void check_latents(std::uint64_t seed, worst_errors& worst) {
  testing::random numbers(seed);
  const double scale = 1.5 / std::sqrt(static_cast<double>(head_dim));
  const rotated_channels what = {latent_dim, (head_dim - latent_dim) / 2, false};
  sequences all = drawn<T>(numbers, 1, latent_dim, false);
  testing::for_each_element(all.v,
                            [&](long b, long t, long h, long d) { all.v(b, t, h, d) = all.k(b, t, h, d); });
  const answer exact = expected<Layout, T, T>(all, what, sight{}, scale);
  for (const auto& chunks : chunkings)
    for (const bool raw : {false, true}) {
      CAPTURE(seed, testing::name_of<Layout>, chunks.front(), raw);
      const double off =
          off_by<T, T>(library<Layout, T, T>(all, what, scale, chunks).attended_latents(raw), exact);
      note(worst, raw ? source::raw_latents : source::latents, off);
      CHECK(off <= 1);
    }
}

}  // namespace

TEMPLATE_TEST_CASE("attention follows its definition for every source of keys", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16, std::int8_t) {
  using T = std::conditional_t<std::is_same_v<TestType, std::int8_t>, float, TestType>;
  constexpr bool narrow = std::is_same_v<TestType, std::int8_t>;
  worst_errors worst;
  testing::for_each_layout([&](auto layout) {
    check_every_source<decltype(layout), T, TestType>(9100, worst);
    if constexpr (!narrow) check_latents<decltype(layout), T>(9200, worst);
  });
  CHECK(worst.size() == (narrow ? 8 : 10));
  for (const auto& [from, error] : worst) {
    CAPTURE(static_cast<int>(from));
    CHECK(error > 0.05);  // the bound is at most twenty times the largest error
  }
}
