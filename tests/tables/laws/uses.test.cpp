// SPDX-License-Identifier: MIT
#include <rope/attention/attention.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/frequencies.hpp>
#include <rope/tables.hpp>

#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

/// Heads [1, 4, 2, 128] of ones.
struct ones {
  std::vector<float> memory = std::vector<float>(4 * 2 * 128, 1.0f);
  head_view<float> view = bshd(memory.data(), 1, 4, 2, 128);
};

}  // namespace

TEST_CASE("the examples in the comments of tables work", "[tables]") {
  ones q_memory, k_memory, v_memory, out_memory;
  const head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  const int start = 5;
  {
    const frequency_table table(frequencies(128, 500000.0), 8192);
    rotate<half_split>(q, k, table, start);
    CHECK(q_memory.memory == k_memory.memory);
  }
  {
    const frequency_table query_table(frequencies(128), 0, 10), key_table(frequencies(128), 0, 20);
    attention<half_split>(q, k, v, out, query_key_tables(query_table, key_table));
    CHECK(*out.at(0, 0, 0) == 1);
  }
  {
    const xpos tables(frequencies(128), 4096, {.center = 2048, .scale_base = 256});
    CHECK(tables.queries().rows() == 4096);
  }
  kv_cache<float> cache(1, 8, 2, 128);
  const xpos tables(frequencies(128), 4096, {.center = 2048});
  rotate<half_split>(q, tables.queries(), start);
  cache.append<half_split>(k, v, tables.keys());  // or rotate<half_split>(k, tables.keys(), start)
  attention(q, cache.keys(), cache.values(), out);
  attention<half_split>(q, k, v, out, tables);  // of unrotated queries and keys
  CHECK(*out.at(0, 0, 0) == 1);
}

TEST_CASE("the example in the comment of placed_table works", "[tables]") {
  std::vector<float> memory(2 * 192, 1.0f), by_window = memory;
  const auto q = thd(memory.data(), 1, 1, 192), k = thd(memory.data() + 192, 1, 1, 192);
  const frequency_table<float> table(frequencies(64), 20);
  const int start = 7;
  const placed_table last = table.at_channel(128);  // DeepSeek: 128 channels without position, then 64
  rotate<interleaved>(q, k, last, start);
  rotate<interleaved>(thd(by_window.data(), 1, 2, 192).channels(128, 64), table, start);
  CHECK(memory == by_window);
}

TEST_CASE("the example in the comment of row_maker works", "[tables]") {
  std::vector<float> heads(2 * 128, 1.0f);
  const auto q = thd(heads.data(), 1, 1, 128), k = thd(heads.data() + 128, 1, 1, 128);
  const Eigen::Array<double, 1, 3> coordinates(7, 2.5, 3);
  const row_maker<> maker(on_axes(frequencies(128), contiguous_sections({16, 24, 24})));  // per model
  std::vector<std::byte> memory(maker.memory_size(1));                                    // per thread
  const frequency_table<> table = maker.table(coordinates, memory);                       // per step
  rotate<half_split>(q, k, table);
  CHECK(heads[0] == testing::Approx(table.cos(0)[0] - table.sin(0)[0]));
  CHECK(heads[128] == heads[0]);
}

TEST_CASE("the examples in the comments of phases work", "[tables]") {
  const double inv_freq = 1;
  const std::int64_t position = 1000000;
  const cos_sin turned = cos_sin_of<double>(phase_of(inv_freq) * position);
  const cos_sin eighth = cos_sin_of<double>(phase_of(std::numbers::pi / 4));
  CHECK(turned.cos == 0.93675212753314474);
  CHECK(eighth.cos == testing::Approx(eighth.sin));
}

TEST_CASE("the examples in the comments of given tables work", "[tables]") {
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Random(5, 4), rotations = angles;
  const Eigen::ArrayXd ranges = Eigen::ArrayXd::LinSpaced(3, 1, 2);
  {
    const frequency_table<> table = table_of_angles(angles, table_form::half_width);
    CHECK(table.pairs() == 4);
  }
  {
    const frequency_table<> table = table_of_angles(rotations, ranges);
    CHECK(table.pairs() == 12);
  }
  const Eigen::ArrayXXd cos = angles.cos().replicate(1, 2), sin = angles.sin().replicate(1, 2);
  {
    const frequency_table<> table = table_of_cos_sin(cos, sin, table_form::concatenated);
    CHECK(table.pairs() == 4);
  }
  {
    const frequency_table<> table = table_of_entries(cos, sin);
    CHECK(table.pairs() == 8);
  }
  const frequencies kept = fourier_frequencies(frequencies(64), 8192);
  const Eigen::MatrixXd cos_coef = Eigen::MatrixXd::Identity(kept.pairs(), kept.pairs()), sin_coef = cos_coef;
  const Index head_dim = 64;
  const frequency_table<> table = fourier_table(kept, cos_coef, sin_coef, head_dim / 2, 0, 8192);
  CHECK(table.pairs() == 32);
}
