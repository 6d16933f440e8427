// SPDX-License-Identifier: MIT
#include <rope/positions/position_maps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/attention/attention.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using testing::throws_saying;
using ids = std::vector<std::int64_t>;

template <class Map>
ids of(const ids& positions, const Map& map) {
  ids values;
  for (const std::int64_t p : positions) values.push_back(map(p));
  return values;
}

/// q . R(-distance) k of one head in long double, with interleaved pairs.
testing::wide score_at(const double* q, const double* k, std::int64_t distance, const frequencies& schedule) {
  testing::wide sum = 0;
  for (Index i = 0; i < schedule.pairs(); ++i) {
    const testing::wide angle = static_cast<testing::wide>(distance) * schedule.inv_freq()(i, 0);
    const testing::wide a = q[2 * i], b = q[2 * i + 1], c = k[2 * i], d = k[2 * i + 1];
    sum += (a * c + b * d) * testing::cos(angle) - (b * c - a * d) * testing::sin(angle);
  }
  return sum;
}

double dot(const std::vector<double>& q, const std::vector<double>& k) {
  double sum = 0;
  for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * k[i];
  return sum;
}

/// `head` rotated to `position`.
std::vector<double> rotated(std::vector<double> head, const frequency_table<double>& table,
                            std::int64_t position) {
  rotate<interleaved>(thd(head.data(), 1, 1, static_cast<Index>(head.size())), table, position);
  return head;
}

}  // namespace

// Golden vector G15: the position tables of vLLM's DualChunkRotaryEmbedding, computed by hand.
TEST_CASE("dual chunk positions are vLLM's", "[positions][position_maps]") {
  const dual_chunk rule{.chunk_size = 8, .local_size = 2};
  const ids p = {0, 5, 6, 7, 13, 20};
  CHECK(rule.length() == 6);
  CHECK(of(p, [&](auto x) { return rule.query(x); }) == ids{0, 5, 0, 1, 1, 2});
  CHECK(of(p, [&](auto x) { return rule.key(x); }) == ids{0, 5, 0, 1, 1, 2});
  CHECK(of(p, [&](auto x) { return rule.successive(x); }) == ids{6, 8, 6, 7, 7, 8});
  CHECK(of(p, [&](auto x) { return rule.successive_critical(x); }) == ids{6, 11, 6, 7, 7, 8});
  CHECK(of(p, [&](auto x) { return rule.earlier_critical(x); }) == ids{8, 13, 8, 9, 9, 10});
  CHECK(rule.earlier() == rule.successive(5));  // vLLM: the last row of the successive table, for every query
}

// Golden vector G15, Self-Extend in integers.
TEST_CASE("Self-Extend positions are LongLM's", "[positions][position_maps]") {
  const self_extend rule{.group = 4, .window = 8};
  CHECK(mapped_positions(0, 12, [&](std::int64_t p) { return rule.query(p); }) ==
        ids{6, 6, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8});
  CHECK(mapped_positions(0, 12, [&](std::int64_t k) { return rule.key(k); }) ==
        ids{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  CHECK(mapped_positions(5, 0, [](std::int64_t p) { return p; }).empty());
  CHECK(mapped_positions(5, 2, [](std::int64_t p) { return 2 * p; }) == ids{10, 12});
}

TEST_CASE("near keys keep their distance and distant ones come closer", "[positions][position_maps]") {
  for (const std::int64_t window : {1, 2, 5, 8, 16})
    for (const std::int64_t group : {1, 2, 3, 8}) {
      const self_extend rule{group, window};
      const rerope cut{window};
      bool kept = true, far = true, ordered = true, positive = true, clipped = true;
      for (std::int64_t p = 0; p < 100; ++p)
        for (std::int64_t k = 0; k <= p; ++k) {
          const std::int64_t distance = rule.distance(p, k);
          if (p - k < window)
            kept = kept && distance == p - k;
          else
            far = far && distance == p / group - k / group + window - window / group &&
                  distance == rule.query(p) - rule.key(k) && distance >= window - 1;
          positive = positive && p - distance >= 0;
          ordered = ordered && (k == 0 || p - k < window || distance <= rule.distance(p, k - 1));
          clipped = clipped && cut.distance(p, k) == (p - k < window ? p - k : window) &&
                    (p - k < window || cut.distance(p, k) == cut.query(p) - cut.key(k));
        }
      CAPTURE(window, group);
      CHECK(kept);
      CHECK(far);
      CHECK(ordered);
      CHECK(positive);
      CHECK(clipped);
    }
  // Group 1 changes nothing. With larger groups the largest distance of a long context shrinks by about the
  // group.
  CHECK(self_extend{1, 4}.distance(1000, 3) == 997);
  CHECK(self_extend{8, 1024}.distance(16383, 0) == 16383 / 8 + 1024 - 128);
}

TEST_CASE("dual chunk keeps local distances, and no distance exceeds the chunk",
          "[positions][position_maps]") {
  for (const std::int64_t chunk : {2, 3, 8, 13})
    for (std::int64_t local = 1; local < chunk; ++local) {
      const dual_chunk rule{chunk, local};
      const std::int64_t length = chunk - local;
      bool local_kept = true, bounded = true, chunked = true, positive = true;
      for (std::int64_t p = 0; p < 5 * length + 3; ++p)
        for (std::int64_t k = 0; k <= p; ++k) {
          const std::int64_t distance = rule.distance(p, k), chunks = p / length - k / length;
          if (local <= length && p - k <= local) local_kept = local_kept && distance == p - k;
          if (chunks == 0) chunked = chunked && distance == p - k;
          if (chunks == 1) chunked = chunked && distance == rule.successive(p) - rule.key(k);
          if (chunks > 1) chunked = chunked && distance == rule.earlier() - rule.key(k);
          bounded = bounded && distance >= 0 && distance <= chunk;
          positive = positive && p - distance >= 0;
        }
      CAPTURE(chunk, local);
      CHECK(rule.earlier() == rule.successive(length - 1));
      CHECK(local_kept);
      CHECK(chunked);
      CHECK(bounded);
      CHECK(positive);
    }
}

TEST_CASE("both ways to rotate under a rule give the score of its distance", "[positions][position_maps]") {
  const Index head_dim = 12;
  const frequencies schedule(head_dim, 100.0);
  const frequency_table<double> table(schedule, 300);
  const std::vector<double> q = testing::random_channels<double>(head_dim, testing::seed()),
                            k = testing::random_channels<double>(head_dim, testing::seed() + 1);
  double norms = 0;
  for (std::size_t i = 0; i < q.size(); ++i) norms += q[i] * q[i] + k[i] * k[i];
  const double bound = 16 * 0x1p-53 * norms;
  const self_extend grouped{.group = 4, .window = 16};
  const rerope cut{.window = 16};
  const dual_chunk chunks{.chunk_size = 32, .local_size = 8};
  double worst = 0;
  const auto compare = [&](std::int64_t distance, std::int64_t query, std::int64_t key) {
    const double score = dot(rotated(q, table, query), rotated(k, table, key));
    worst = (std::max)(
        worst, testing::abs(score - static_cast<double>(score_at(q.data(), k.data(), distance, schedule))));
  };
  for (const std::int64_t p : {0, 15, 16, 17, 100, 299})
    for (std::int64_t key = 0; key <= p; key += 3) {
      const auto both = [&](const auto& rule, std::int64_t far_query, std::int64_t far_key, bool far) {
        const std::int64_t distance = rule.distance(p, key);
        compare(distance, p, key_positions(rule, p, key, 1).front());
        if (far) compare(distance, far_query, far_key);
      };
      both(grouped, grouped.query(p), grouped.key(key), p - key >= 16);
      both(cut, cut.query(p), cut.key(key), p - key >= 16);
      const std::int64_t between = p / 24 - key / 24;
      both(chunks,
           between == 0   ? chunks.query(p)
           : between == 1 ? chunks.successive(p)
                          : chunks.earlier(),
           chunks.key(key), true);
    }
  CHECK(worst <= bound);
}

// Decoding: the cache contains unrotated keys, and every step rotates a copy of them at the ids of its query.
TEST_CASE("decoding under a rule attends at its distances", "[positions][position_maps]") {
  const Index tokens = 40, heads = 4, kv_heads = 2, head_dim = 8;
  const frequencies schedule(head_dim, 50.0);
  const frequency_table<double> table(schedule, tokens);
  const std::vector<double> q = testing::random_channels<double>(tokens * heads * head_dim, testing::seed()),
                            k = testing::random_channels<double>(tokens * kv_heads * head_dim,
                                                                 testing::seed() + 1),
                            v = testing::random_channels<double>(tokens * kv_heads * head_dim,
                                                                 testing::seed() + 2);
  const auto check = [&](const auto& rule) {
    double worst = 0;
    for (Index p = 0; p < tokens; ++p) {
      std::vector<double> query(q.begin() + p * heads * head_dim, q.begin() + (p + 1) * heads * head_dim);
      std::vector<double> keys(static_cast<std::size_t>((p + 1) * kv_heads * head_dim)), out(query.size());
      const auto one = thd(query.data(), 1, heads, head_dim);
      rotate<interleaved>(one, table, p);
      rotate_to<interleaved>(thd(k.data(), p + 1, kv_heads, head_dim),
                             thd(keys.data(), p + 1, kv_heads, head_dim), table,
                             key_positions(rule, p, 0, p + 1));
      attention(one, thd(keys.data(), p + 1, kv_heads, head_dim), thd(v.data(), p + 1, kv_heads, head_dim),
                thd(out.data(), 1, heads, head_dim));
      for (Index h = 0; h < heads; ++h) {
        testing::wide sum = 0;
        std::vector<testing::wide> expected(static_cast<std::size_t>(head_dim));
        for (Index j = 0; j <= p; ++j) {
          const Index at = (j * kv_heads + h / 2) * head_dim;
          const testing::wide weight = testing::exp(
              score_at(q.data() + (p * heads + h) * head_dim, k.data() + at, rule.distance(p, j), schedule) /
              testing::sqrt(static_cast<testing::wide>(head_dim)));
          sum += weight;
          for (Index d = 0; d < head_dim; ++d)
            expected[static_cast<std::size_t>(d)] += weight * v[static_cast<std::size_t>(at + d)];
        }
        for (std::size_t d = 0; d < expected.size(); ++d)
          testing::raise_to(worst, testing::abs(out[static_cast<std::size_t>(h * head_dim) + d] -
                                                static_cast<double>(expected[d] / sum)));
      }
    }
    return worst;
  };
  // Channels are below 4, so scores are below 16 sqrt(8) = 46. A rotation adds 10 u of a score to the error.
  reference::tensor extent(1, tokens, heads, head_dim, 4.0);
  const double bound =
      reference::attention_bound<double>(extent, extent, extent, {}) + 4 * 4 * 46 * 10 * 0x1p-53;
  CHECK(check(self_extend{.group = 3, .window = 6}) <= bound);
  CHECK(check(rerope{.window = 5}) <= bound);
  CHECK(check(dual_chunk{.chunk_size = 10, .local_size = 3}) <= bound);
}

TEST_CASE("maps of the last positions are exact or throw", "[positions][position_maps]") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(self_extend{1, most}.query(most) == most);
  CHECK(self_extend{1, most}.distance(most, 0) == most);
  CHECK(key_positions(rerope{most}, most, most - 1, 2) == ids{most - 1, most});
  CHECK(throws_saying<std::out_of_range>([] { mapped_positions(most, 2, [](std::int64_t p) { return p; }); },
                                         "rope::mapped_positions", "got 9223372036854775807 + 1"));
  constexpr std::int64_t longest = std::int64_t{1} << 62;
  CHECK(dual_chunk{longest, 1}.earlier() == longest);
  CHECK(dual_chunk{longest, 1}.earlier_critical(longest - 2) == 2 * (longest - 1));
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        static_cast<void>(dual_chunk{longest + 1, 1}.earlier());
      },
      "chunk_size must be at most 2^62, got 4611686018427387905"));
  struct ahead {
    std::int64_t distance(std::int64_t, std::int64_t) const { return -2; }
  };
  CHECK(throws_saying<std::out_of_range>([] { key_positions(ahead{}, most - 1, 0, 1); },
                                         "rope::key_positions", "got 9223372036854775806 - -2"));
}

TEST_CASE("invalid rules and ranges throw", "[positions][position_maps]") {
  for (const auto& [group, window] :
       {std::pair<std::int64_t, std::int64_t>{0, 4}, {-1, 4}, {4, 0}, {4, -3}}) {
    const self_extend rule{group, window};
    for (const auto& call :
         {+[](const self_extend& r) { return r.query(9); }, +[](const self_extend& r) { return r.key(9); },
          +[](const self_extend& r) { return r.distance(9, 8); }})
      CHECK(throws_saying<std::invalid_argument>([&] { call(rule); },
                                                 "self_extend: group and window must be positive"));
  }
  CHECK(throws_saying<std::invalid_argument>([] { rerope{0}.distance(3, 2); }, "rerope: window", "got 0"));
  for (const auto& [chunk, local] :
       {std::pair<std::int64_t, std::int64_t>{8, 8}, {8, 0}, {8, 9}, {0, 0}, {-4, 2}})
    CHECK(throws_saying<std::invalid_argument>([rule = dual_chunk{chunk, local}] { rule.distance(9, 1); },
                                               "dual_chunk: local_size must be in (0, chunk_size)"));
  CHECK(throws_saying<std::invalid_argument>([] { self_extend{2, 4}.distance(3, 4); }, "p = 3 and k = 4"));
  CHECK(throws_saying<std::invalid_argument>([] { rerope{4}.distance(3, -1); }, "k = -1"));
  CHECK(throws_saying<std::invalid_argument>([] { dual_chunk{8, 2}.key(-1); }, "k = -1"));
  const self_extend rule{2, 4};
  CHECK(throws_saying<std::invalid_argument>([&] { key_positions(rule, 3, 0, 5); }, "[0, 3]", "5 from 0 on"));
  CHECK(throws_saying<std::invalid_argument>([&] { key_positions(rule, 3, -1, 2); }, "2 from -1 on"));
  CHECK(throws_saying<std::invalid_argument>([&] { key_positions(rule, 3, 0, -1); }, "key_positions"));
  CHECK(key_positions(rule, 3, 4, 0).empty());
  CHECK(throws_saying<std::invalid_argument>(
      [] { mapped_positions(0, -1, [](std::int64_t p) { return p; }); }, "mapped_positions: count"));
}
