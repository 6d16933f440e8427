// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <rope/tables.hpp>
#include <span>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"

using testing::allocations_in;

TEST_CASE("the counter detects every way to allocate", "[noalloc]") {
  void* volatile data = nullptr;  // volatile: otherwise the compiler removes an allocation that nothing reads
  const auto used = [&](void* allocated) { data = allocated, std::free(data); };
  CHECK(allocations_in([&] { used(std::malloc(1)); }) == 1);
  CHECK(allocations_in([&] { used(std::calloc(1, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::realloc(nullptr, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::aligned_alloc(64, 64)); }) == 1);
  CHECK(allocations_in([&] { data = std::vector<char>(1).data(); }) == 1);
  CHECK(allocations_in([&] { data = Eigen::ArrayXf(7).data(); }) == 1);
}

namespace {

/// All calls with one form of positions, in both directions, in place and out of place.
template <class Layout, class T, class S, class P>
long allocations_of(rope::head_view<T> x, rope::head_view<T> out, const rope::frequency_table<S>& table,
                    const P& positions) {
  const rope::head_view<const T> in = x;
  return allocations_in([&] {
    rope::rotate<Layout>(x, table, positions);
    rope::unrotate<Layout>(x, table, positions);
    rope::rotate_to<Layout>(in, out, table, positions);
    rope::unrotate_to<Layout>(in, out, table, positions);
    rope::rotate<Layout>(x, out, table, positions);
    rope::unrotate<Layout>(x, out, table, positions);
  });
}

struct user_layout {
  static constexpr rope::Index first(rope::Index i, rope::Index pairs) { return pairs + i; }
  static constexpr rope::Index second(rope::Index i, rope::Index /*pairs*/) { return i; }
};

template <class T, class S>
void check_all_forms() {
  const rope::frequency_table<S> table(rope::frequencies(32), 100);
  std::vector<T> memory(2 * 7 * 3 * 40, T(1)), other(memory.size());
  const std::vector<int> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7}, starts = {90, 4};
  const std::vector<std::int64_t> offsets = {0, 2, 2, 7}, segment_starts = {5, 0, 70};
  const std::span<const int> row_ids(ids), shared_ids(ids.data(), 7);
  const Eigen::Map<const Eigen::ArrayXXi> matrix_ids(ids.data(), 2, 7);

  const auto check = [&]<class Layout>(Layout) {
    for (const auto x : {rope::bshd(memory.data(), 2, 7, 3, 40), rope::bhsd(memory.data(), 2, 3, 7, 40),
                         rope::sbhd(memory.data(), 7, 2, 3, 40).channels(3, 35)}) {
      auto out = x;
      out.data = other.data() + (x.data - memory.data());
      CHECK(allocations_of<Layout>(x, out, table, row_ids) == 0);
      if constexpr (std::is_same_v<T, float> && std::is_same_v<S, float> &&
                    !std::is_same_v<Layout, user_layout>) {
        // The code that reads a position depends neither on the channel type nor on that of the table.
        CHECK(allocations_of<Layout>(x, out, table, 11) == 0);
        CHECK(allocations_of<Layout>(x, out, table, shared_ids) == 0);
        CHECK(allocations_of<Layout>(x, out, table, matrix_ids) == 0);
        CHECK(allocations_of<Layout>(x, out, table, rope::row_starts{starts}) == 0);
        CHECK(allocations_of<Layout>(x, out, table, rope::segments<std::int64_t>{offsets, segment_starts}) ==
              0);
      }
    }
  };
  check(rope::interleaved{});
  check(rope::half_split{});
  check(user_layout{});
}

}  // namespace

TEMPLATE_TEST_CASE("rotate and unrotate allocate nothing in any form", "[noalloc]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_all_forms<TestType, float>();
  check_all_forms<TestType, double>();
}

TEMPLATE_TEST_CASE("rotate allocates nothing for data larger than the caches", "[noalloc]", float,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::frequencies(128), 600);
  std::vector<TestType> memory(600 * 4 * 128, TestType(1)), other(memory.size());
  const auto x = rope::bhsd(memory.data(), 1, 4, 600, 128), out = rope::bshd(other.data(), 1, 600, 4, 128);
  CHECK(allocations_of<rope::half_split>(x, out, table, 0) == 0);
  CHECK(allocations_of<rope::interleaved>(x, out, table, 0) == 0);
}

TEST_CASE("views and their parts allocate nothing", "[noalloc]") {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> matrix(3, 80);
  CHECK(allocations_in([&] { rope::thd(matrix, 2).channels(4, 8).head_range(1, 1).token_range(0, 2); }) == 0);
}

TEST_CASE("rotating every head by its own table does not allocate", "[noalloc]") {
  std::vector<rope::frequency_table<float>> tables;
  for (const double angle : {0.1, 0.7, 2.5})
    tables.emplace_back(rope::rope_vit_mixed_frequencies(16, angle), rope::grid_positions({2, 3}));
  std::vector<float> memory(6 * 3 * 20, 1.0f);
  const std::vector<int> ids = {5, 4, 3, 2, 1, 0};
  const auto x = rope::thd(memory.data(), 6, 3, 20);
  CHECK(testing::allocations_in([&] {
          rope::rotate_heads<rope::interleaved>(x, tables);
          rope::unrotate_heads<rope::half_split>(x, tables, ids);
        }) == 0);
}

TEMPLATE_TEST_CASE("normalising and rotating does not allocate from its second call on", "[noalloc]", float,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::frequencies(16), 20);
  std::vector<TestType> memory(6 * 3 * 20, TestType(1)), other = memory, weight(20, TestType(1));
  const rope::head_norm<TestType> norm = {.weight = weight};
  const auto x = rope::thd(memory.data(), 6, 3, 20), d = rope::thd(other.data(), 6, 3, 20);
  const auto call = [&] {
    rope::normalize_and_rotate<rope::half_split>(x, d, norm, norm, table, 3);
    rope::normalize_heads_gradient(x, norm, d);
  };
  call();
  CHECK(testing::allocations_in(call) == 0);
}

TEMPLATE_TEST_CASE("pope and scale_queries allocate nothing", "[noalloc]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::pope_frequencies(12), 64);
  const rope::pope_bias bias(Eigen::ArrayXXd::Constant(3, 12, -1.0));
  const std::vector<int> ids = {3, 1, 4, 1, 5};
  std::vector<TestType> memory(2 * 5 * 3 * 16, TestType(1)), wide(2 * 5 * 3 * 28);
  const auto x = rope::bshd(memory.data(), 2, 5, 3, 16), out = rope::bhsd(wide.data(), 2, 3, 5, 28);
  CHECK(allocations_in([&] {
          rope::pope<rope::interleaved>(x, out, table, 11);
          rope::pope<rope::half_split>(x, out, table, bias, ids);
          rope::scale_queries(x, rope::llama4_query_scaling{}, 8190);
          rope::scale_queries(x, rope::log_n_query_scaling{2}, ids);
        }) == 0);
}

TEST_CASE("unrotate of given entries allocates in its first call only", "[noalloc]") {
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Constant(64, 20, 0.5);
  const auto table = rope::table_of_angles(angles, rope::table_form::half_width);
  std::vector<float> memory(2 * 5 * 3 * 40, 1.0f);
  const auto x = rope::bshd(memory.data(), 2, 5, 3, 40);
  const auto call = [&] { rope::unrotate<rope::half_split>(x, table, 3); };
  CHECK(allocations_in([&] { rope::rotate<rope::half_split>(x, table, 3); }) == 0);
  call();
  CHECK(allocations_in(call) == 0);
}

TEMPLATE_TEST_CASE("the backward passes allocate nothing after their first call", "[noalloc]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const rope::Index queries = 130, keys = 150, head_dim = GENERATE(64, 128);
  std::vector<T> a(static_cast<std::size_t>(queries * 8 * head_dim), T(1)), b(a), c(a), d(a),
      e(static_cast<std::size_t>(keys * 2 * head_dim), T(1)), f(e), g(e), h(e);
  const auto many = [&](std::vector<T>& x) { return rope::bshd(x.data(), 1, queries, 8, head_dim); };
  const auto few = [&](std::vector<T>& x) { return rope::bshd(x.data(), 1, keys, 2, head_dim); };
  const rope::frequency_table<float> table(rope::frequencies(head_dim), keys);
  const auto plain = [&] {
    rope::attention_gradient(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)),
        {.window = 40, .softcap = 9});
  };
  const auto rotated = [&] {
    rope::attention_gradient<rope::half_split>(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)), table);
  };
  // A bias shared by heads and queries, and the gradients with respect to options.
  std::vector<double> sums(static_cast<std::size_t>(queries * 8), 3), d_bias(static_cast<std::size_t>(keys)),
      d_sink_logits(8);
  const std::vector<float> numbers(static_cast<std::size_t>(keys)), sink_logits(8);
  const auto by_options = [&] {
    rope::attention_options options = {.sink_logits = sink_logits, .dropout = 0.1, .log_sum_exp = sums};
    options.bias = rope::score_matrix(numbers.data(), 1, 1, 1, keys);
    rope::attention_gradient(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)), options,
        {.sink_logits = d_sink_logits, .bias = d_bias});
  };
  plain();
  rotated();
  by_options();
  CHECK(allocations_in(plain) == 0);
  CHECK(allocations_in(rotated) == 0);
  CHECK(allocations_in(by_options) == 0);
  CHECK(allocations_in([&] { rope::rotate_gradient<rope::interleaved>(many(d), table); }) == 0);
}

TEMPLATE_TEST_CASE("a row_maker writes rows and makes tables without an allocation", "[noalloc]", float,
                   double) {
  const Eigen::Array<double, 40, 2> inv_freq = Eigen::Array<double, 40, 2>::Random();
  const rope::row_maker<TestType> one(rope::frequencies(80)), two(rope::frequencies::custom(inv_freq, 0.5));
  const Eigen::Array<double, 3, 2> real = Eigen::Array<double, 3, 2>::Random();
  const Eigen::Array<int, 3, 2> whole = (real * 1000).cast<int>();
  std::vector<TestType> row(80), rows(3 * 80);
  std::vector<std::byte> memory(two.memory_size(3));
  CHECK(testing::allocations_in([&] {
          one.write(7, row);
          two.write(real, rows);
          two.write(whole, rows);
          for (int i = 0; i < 2; ++i) {
            rope::frequency_table<TestType> table = two.table(real, memory);
            table = two.table(whole, memory);
          }
        }) == 0);
}
