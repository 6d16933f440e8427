// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/operator_rotation.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

/// The 23 tests of ONNX `RotaryEmbedding`, opset 23: the 8 operator tests of onnx (rotaryembedding.py,
/// f7546912, 2026-08-22) and the 15 of ONNX Runtime (test/providers/cpu/llm/rotary_embedding_op_test.cc,
/// 0e6a670b). Shapes, attributes and position_ids are theirs, channels and caches come from a seed, and every
/// value is compared with the operator's formula. All calls are public.

namespace {

using namespace rope;
constexpr Index all_channels = 0;

struct rotary_case {
  const char* name;
  Index batch, tokens, heads, head_size;
  Index rotary_dim = all_channels;  // rotary_embedding_dim
  Index cache_rows = 0;             // 0: caches [batch, tokens, pairs] without position_ids
  bool interleaved = false;
  bool rank_3 =
      false;  // input [batch, tokens, heads * head_size], otherwise [batch, heads, tokens, head_size]
};

/// The inputs of a case, in memory of T: floats or halves.
template <class T>
struct rotary_inputs {
  using matrix = Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  std::vector<T> x, y;
  matrix cos, sin;
  testing::operator_entries entries;
  std::vector<std::int64_t> position_ids;
  Index tokens;

  explicit rotary_inputs(const rotary_case& c) : entries(rows_of(c), pairs_of(c)), tokens(c.tokens) {
    testing::random numbers(7);
    for (Index n = 0; n < c.batch * c.tokens * c.heads * c.head_size; ++n)
      x.push_back(static_cast<T>(numbers.unit()));
    y.assign(x.size(), T(7));
    cos.resize(rows_of(c), pairs_of(c));
    sin.resize(rows_of(c), pairs_of(c));
  }
  static Index pairs_of(const rotary_case& c) {
    return (c.rotary_dim == all_channels ? c.head_size : c.rotary_dim) / 2;
  }
  static Index rows_of(const rotary_case& c) { return c.cache_rows == 0 ? c.batch * c.tokens : c.cache_rows; }

  /// Caches of `entry(row, pair)`, a pair of numbers (cos, sin), rounded to T.
  template <class Entry>
  void set_caches(const Entry& entry) {
    for (Index r = 0; r < cos.rows(); ++r)
      for (Index i = 0; i < cos.cols(); ++i) {
        const auto [c, s] = entry(r, i);
        cos(r, i) = static_cast<T>(c), sin(r, i) = static_cast<T>(s);
        const auto at = static_cast<std::size_t>(r * cos.cols() + i);
        entries.cos[at] = static_cast<double>(cos(r, i)), entries.sin[at] = static_cast<double>(sin(r, i));
      }
  }
  /// The row of the caches of a token.
  Index row_of(Index b, Index t) const {
    const Index token = b * tokens + t;
    return position_ids.empty() ? token : static_cast<Index>(position_ids[static_cast<std::size_t>(token)]);
  }
};

/// The call of a case and its error: rank 3 is bshd, rank 4 is bhsd, and caches without position_ids are
/// stacked.
template <class T>
double error_of(const rotary_case& c, rotary_inputs<T>& in, const frequency_table<float>& table) {
  const auto view = [&](auto* data) {
    return c.rank_3 ? bshd(data, c.batch, c.tokens, c.heads, c.head_size)
                    : bhsd(data, c.batch, c.heads, c.tokens, c.head_size);
  };
  const auto rotated = [&](const auto& positions) {
    if (c.interleaved)
      rotate_to<interleaved>(view(in.x.data()), view(in.y.data()), table, positions);
    else
      rotate_to<half_split>(view(in.x.data()), view(in.y.data()), table, positions);
  };
  if (c.cache_rows > 0) {
    rotated(in.position_ids);
  } else {
    std::vector<Index> first_rows;
    for (Index b = 0; b < c.batch; ++b) first_rows.push_back(b * c.tokens);
    rotated(row_starts{first_rows});
  }
  const testing::operator_call call = {c.interleaved ? testing::pairing::neighbours
                                                     : testing::pairing::halves};
  return testing::operator_error<T, T>(view(in.x.data()), view(in.y.data()), in.entries, call,
                                       [&](Index b, Index t) { return in.row_of(b, t); });
}

/// The 8 of onnx, whose caches are arbitrary numbers in [0, 1), not cos and sin of angles.
constexpr rotary_case of_onnx[] = {
    {"rotary_embedding", 2, 3, 4, 8, all_channels, 50},
    {"3d_input", 2, 3, 4, 8, all_channels, 50, false, true},
    {"interleaved", 2, 3, 4, 8, all_channels, 50, true},
    {"with_rotary_dim", 2, 3, 4, 8, 4, 50},
    {"with_interleaved_rotary_dim", 2, 3, 4, 8, 4, 50, true},
    {"no_position_ids", 2, 3, 4, 8},
    {"no_position_ids_interleaved", 2, 3, 4, 8, all_channels, 0, true},
    {"no_position_ids_rotary_dim", 2, 3, 4, 8, 4},
};

/// The 9 of ONNX Runtime with values, each in float and in half. Their position_ids are 0, 1, 2, ... in each
/// row.
constexpr rotary_case of_onnxruntime[] = {
    {"Interleaved_SmallData_LlamaMSFT", 1, 3, 2, 4, all_channels, 8, true, true},
    {"Interleaved_SmallData_LlamaMSFT_4D_Input", 1, 3, 2, 4, all_channels, 8, true},
    {"Interleaved_LargeData_LlamaMSFT", 2, 8, 4, 6, all_channels, 16, true, true},
    {"NotInterleaved_LargeData_LlamaMSFT", 2, 8, 4, 6, all_channels, 16, false, true},
    {"NotInterleaved_LargeData_LlamaMSFT_4D_Input", 2, 8, 4, 6, all_channels, 16},
    {"NotInterleaved_SmallData_LlamaMSFT", 1, 2, 3, 6, all_channels, 4, false, true},
    {"CustomRotaryDim_SmallData_Phi", 1, 2, 1, 6, 4, 2, false, true},
    {"NotInterleaved_NoPosIds_SmallData_LlamaMSFT", 1, 2, 3, 6, all_channels, 0, false, true},
    {"Interleaved_NoPosIds_SmallData_LlamaMSFT", 1, 3, 2, 4, all_channels, 0, true, true},
};

template <class T>
double error_of_runtime_case(const rotary_case& c) {
  rotary_inputs<T> in(c);
  if (c.cache_rows > 0)
    for (Index n = 0; n < c.batch * c.tokens; ++n) in.position_ids.push_back(n % c.tokens);
  const Index pairs = in.cos.cols();
  in.set_caches([&](Index r, Index i) {
    const Index position = c.cache_rows > 0 ? r : r % c.tokens;
    const testing::wide angle = testing::wide(position) *
                                testing::pow(testing::wide(10000), -testing::wide(i) / testing::wide(pairs));
    return std::pair(static_cast<double>(testing::cos(angle)), static_cast<double>(testing::sin(angle)));
  });
  return error_of(c, in, table_of_cos_sin(in.cos, in.sin, table_form::half_width));
}

/// Rotates heads [batch, tokens, 2, 4] by caches of 8 rows of cos 1 and sin 0, in place. Returns whether it
/// throws std::out_of_range and does not change x.
bool throws_out_of_range(Index batch, Index tokens, const std::vector<std::int64_t>& position_ids) {
  using matrix = Eigen::ArrayXXf;
  const auto table =
      table_of_cos_sin(matrix(matrix::Ones(8, 2)), matrix(matrix::Zero(8, 2)), table_form::half_width);
  std::vector<float> x;
  for (Index n = 0; n < batch * tokens * 8; ++n) x.push_back(static_cast<float>(n + 1));
  const auto before = x;
  try {
    rotate<half_split>(bshd(x.data(), batch, tokens, 2, 4), table, position_ids);
  } catch (const std::out_of_range&) {
    return x == before;
  }
  return false;
}

}  // namespace

TEST_CASE("onnx: operator tests of RotaryEmbedding", "[conformance]") {
  int count = 0;
  for (const rotary_case& c : of_onnx) {
    CAPTURE(c.name);
    rotary_inputs<float> in(c);
    testing::random numbers(8);
    if (c.cache_rows > 0)
      for (Index n = 0; n < c.batch * c.tokens; ++n) in.position_ids.push_back(numbers.integer(0, 49));
    in.set_caches([&](Index, Index) {
      const double cos = numbers.unit();
      return std::pair(cos, numbers.unit());
    });
    CHECK(error_of(c, in, table_of_entries(in.cos, in.sin)) <= 1);
    CHECK_THROWS_AS(table_of_cos_sin(in.cos, in.sin, table_form::half_width), std::invalid_argument);
    ++count;
  }
  CHECK(count == 8);
}

TEST_CASE("ONNX Runtime: tests of RotaryEmbedding with values", "[conformance]") {
  int count = 0;
  for (const rotary_case& c : of_onnxruntime) {
    CAPTURE(c.name);
    CHECK(error_of_runtime_case<float>(c) <= 1);
    CHECK(error_of_runtime_case<Eigen::half>(c) <= 1);
    ++count;
  }
  CHECK(count == 9);
}

// ONNX Runtime fails on the CPU. On CUDA it copies a token at such a position. Here it is an error on every
// processor.
TEST_CASE("ONNX Runtime: tests of RotaryEmbedding with positions outside the caches", "[conformance]") {
  CHECK(throws_out_of_range(1, 1, {2048}));          // PositionIds_ExceedsMaxSeqLen, OOB_CUDA_Passthrough
  CHECK(throws_out_of_range(1, 1, {-1}));            // PositionIds_Negative
  CHECK(throws_out_of_range(2, 2, {0, 1, 2, 100}));  // PositionIds_OOB_InBatch
  CHECK_FALSE(throws_out_of_range(2, 2, {0, 1, 2, 7}));
}

TEST_CASE("ONNX Runtime: tests of RotaryEmbedding with extents that overflow", "[conformance]") {
  const frequency_table<> table(frequencies(4), 8);
  constexpr Index most = std::numeric_limits<std::int32_t>::max();
  SECTION("RejectsTotalElementsOverflow: strides of 4 and 8, so that tokens overlap") {
    float x[16] = {};
    const head_view<float> huge = {x, most, most, 3, 4, 8, 8, 4};
    CHECK_THROWS_AS(rotate<half_split>(huge, table), std::length_error);
  }
  SECTION("RejectsHiddenSizeOverflow: an empty batch of 32768 heads of 65536, with nothing to rotate") {
    float* const none = nullptr;
    const auto call = [&] { rotate<half_split>(bhsd(none, 0, 32768, 1, 65536), table); };
    if (sizeof(Index) > 4)
      CHECK_NOTHROW(call());
    else
      CHECK_THROWS_AS(call(), std::length_error);
  }
}
