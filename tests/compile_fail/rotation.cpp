// SPDX-License-Identifier: MIT

#include <cstdint>
#include <span>
#include <vector>

#include <rope/rope.hpp>
#include <rope/rotation_extras.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

using rope::half_split, rope::interleaved;

/// A layout. With BAD_LAYOUT its function `second` has one parameter too few.
struct layout {
  static rope::Index first(rope::Index i, rope::Index /*pairs*/) { return i; }
#ifdef BAD_LAYOUT
  // EXPECT: error: .*rotate: a layout is interleaved, half_split or a type with static first and second
  static rope::Index second(rope::Index i) { return i + 1; }
#else
  static rope::Index second(rope::Index i, rope::Index pairs) { return i + pairs; }
#endif
};
enum class layouts { interleaved, half_split };

void rotated(rope::head_view<float> x, const rope::frequency_table<float>& table) {
  rope::rotate<half_split>(x, table, 3);
  rope::rotate<layout>(x, table);
#ifdef MISSING_LAYOUT
  // EXPECT: error: .*rotate: name the layout
  rope::rotate(x, table);
#endif
#ifdef LAYOUT_OF_AN_ENUM
  // EXPECT: error: .*rotate: a layout is a type, rotate<half_split>
  rope::rotate<layouts::half_split>(x, table);
#endif
#ifdef ROTATED_VALUES
  // EXPECT: error: .*rotate: a table is a frequency_table.*; v is not rotated
  rope::rotate<rope::half_split>(x, x, x, table);
#endif
#ifdef TABLE_BEFORE_OUT
  // EXPECT: error: .*rotate_to: a table is a frequency_table.* after the views
  rope::rotate_to<rope::half_split>(x, table, x);
#endif
#ifdef MISSING_TABLE
  // EXPECT: error: .*rotate: a table is a frequency_table
  rope::rotate<half_split>(x, 3);
#endif
#ifdef FLOAT_START
  // EXPECT: error: .*rotate: positions are integers: .*; threads come after them
  rope::rotate<half_split>(x, table, 7.0f);
#endif
#ifdef CONST_OUTPUT
  // EXPECT: error: .*rotate: x is read-only .or temporary.; give rotate_to an out
  rope::rotate<half_split>(rope::head_view<const float>(x), table);
#endif
#ifdef CONST_KEYS
  // EXPECT: error: .*rotate: both views are rotated in place, and one is read-only
  rope::rotate<half_split>(rope::head_view<const float>(x), x, table);
#endif
  rope::rotate<half_split>(x, x, table);
#ifdef MISSING_LAYOUT_GRADIENT
  // EXPECT: error: .*rotate_gradient: name the layout
  rope::rotate_gradient(x, table);
#endif
  rope::rotate_gradient<interleaved>(x, table);
}

void rotated_to(rope::head_view<float> x, rope::head_view<Eigen::half> narrow,
                const rope::frequency_table<float>& table) {
  rope::rotate_to<half_split>(x, narrow, table);
#ifdef MIXED_CHANNEL_TYPES
  // EXPECT: error: .*rotate_to: x and out have the same channel type
  rope::rotate_to<half_split>(narrow, x, table);
#endif
#ifdef QUANTIZED_ROTATE_TO
  // EXPECT: error: .*rotate_to: x and out have the same channel type, or x is float and out half or bfloat16
  rope::rotate_to<half_split>(x, rope::head_view<std::int8_t>(), table);
#endif
  rope::unrotate_to<interleaved>(x, x, table);
#ifdef MISSING_LAYOUT_UNROTATE
  // EXPECT: error: .*unrotate_to: name the layout
  rope::unrotate_to(x, x, table);
#endif
#ifdef CONST_OUTPUT_OUT_OF_PLACE
  // EXPECT: error: .*unrotate_to: out is read-only
  rope::unrotate_to<interleaved>(x, rope::head_view<const float>(x), table);
#endif
  rope::pope<half_split>(x, x, table);
#ifdef POPE_WITHOUT_LAYOUT
  // EXPECT: error: .*pope: name the order of the output
  rope::pope(x, x, table);
#endif
}

/// A range whose elements may be anywhere: it offers neither contiguity nor a stride.
struct every_other {
  const int* first;
  std::size_t count;
  const int* data() const { return first; }
  std::size_t size() const { return count; }
};

void positions(rope::head_view<float> x, const rope::frequency_table<float>& table,
               const std::vector<float>& numbers, const Eigen::ArrayXi& starts) {
  rope::rotate_to<half_split>(x, x, table, std::vector<int>{1});
#ifdef FLOAT_IDS
  // EXPECT: error: .*rotate_to: positions are integers
  rope::rotate_to<half_split>(x, x, table, numbers);
#endif
  rope::unrotate<interleaved>(x, table, std::span<const unsigned char>());
#ifdef BOOL_IDS
  // EXPECT: error: .*unrotate: positions are integers
  rope::unrotate<interleaved>(x, table, std::span<const bool>());
#endif
  rope::rotate<half_split>(x, table, std::span<const int>());
#ifdef STRIDED_IDS
  // EXPECT: error: .*rotate: positions are integers
  rope::rotate<half_split>(x, table, every_other{nullptr, 0});
#endif
  rope::rotate<half_split>(x, table, rope::row_starts(starts));
#ifdef EXPRESSION_OF_ROW_STARTS
  // EXPECT: error: .*row_starts, segments and segment_ranges: the integers must be in memory that outlives the call
  rope::rotate<half_split>(x, table, rope::row_starts(starts - 1));
#endif
}

void tables_of_heads(rope::head_view<float> x, const std::vector<rope::frequency_table<float>>& tables) {
  rope::rotate_heads<half_split>(x, tables, 0);
#ifdef MISSING_LAYOUT_HEADS
  // EXPECT: error: .*rotate_heads: name the layout
  rope::rotate_heads(x, tables);
#endif
#ifdef TABLES_OF_HEADS
  // EXPECT: error: .*rotate: a table is a frequency_table
  rope::rotate<half_split>(x, tables, 0);
#endif
}

void what_is_no_view(Eigen::Tensor<float, 4>& x, float* data, std::vector<float>& list,
                     const rope::frequency_table<float>& table) {
  rope::rotate<half_split>(rope::dhsb(x), table);
#ifdef TENSOR_WITHOUT_AXES
  // EXPECT: error: .*rotate: x must be a head_view; name the order of its axes
  rope::rotate<half_split>(x, table);
#endif
  rope::rotate<half_split>(rope::thd(data, 1, 1, 8), table, 3);
#ifdef POINTER_WITHOUT_AXES
  // EXPECT: error: .*rotate: x must be a head_view; name the order of its axes
  rope::rotate<half_split>(data, table, 3);
#endif
  rope::rotate<half_split>(rope::thd(data, 1, 1, 8), rope::thd(data, 1, 1, 8), table, 3);
#ifdef KEYS_WITHOUT_AXES
  // EXPECT: error: .*rotate: x must be a head_view; name the order of its axes
  rope::rotate<half_split>(rope::thd(data, 1, 1, 8), data, table, 3);
#endif
  rope::unrotate<half_split>(rope::dhsb(x), table);
#ifdef UNROTATE_OF_A_TENSOR
  // EXPECT: error: .*unrotate: x must be a head_view; name the order of its axes
  rope::unrotate<half_split>(x, table);
#endif
  rope::hadamard_transform(rope::dhsb(x));
#ifdef HADAMARD_OF_A_TENSOR
  // EXPECT: error: .*hadamard_transform: x must be a head_view; name the order of its axes
  rope::hadamard_transform(x);
#endif
  const rope::head_view<float> view = rope::thd(list.data(), 1, 1, 8);
  rope::permute_channels<interleaved, half_split>(view);
#ifdef PERMUTE_A_VECTOR
  // EXPECT: error: .*permute_channels: x must be a head_view; name the order of its axes
  rope::permute_channels<interleaved, half_split>(list);
#endif
  rope::scale_queries(view, rope::log_n_query_scaling{512}, 3);
#ifdef QUERIES_OF_A_VECTOR
  // EXPECT: error: .*scale_queries: x must be a head_view; name the order of its axes
  rope::scale_queries(list, rope::log_n_query_scaling{512}, 3);
#endif
  rope::shift_keys<half_split>(view, -3, table);
#ifdef SHIFT_A_VECTOR
  // EXPECT: error: .*shift_keys: x must be a head_view; name the order of its axes
  rope::shift_keys<half_split>(list, -3, table);
#endif
  rope::rebase_keys<half_split>(view, 0, table, table);
#ifdef REBASE_A_POINTER
  // EXPECT: error: .*rebase_keys: x must be a head_view; name the order of its axes
  rope::rebase_keys<half_split>(data, 0, table, table);
#endif
}

void staged(Eigen::Tensor<float, 4>& x, const rope::frequency_table<float>& table) {
  auto s = rope::staged<"bshd">(x);
  rope::rotate<half_split>(s.view(), table);
  s.store(x);
#ifdef STAGED_WITHOUT_LETTERS
  // EXPECT: ^In file included from .*staged: name the indices of the tensor in its own order, staged<
  auto t = rope::staged(x);
  rope::rotate<half_split>(t.view(), table);  // not the first error
#endif
#ifdef ROTATE_A_TEMPORARY_COPY
  // EXPECT: rotate: x is read-only
  rope::rotate<half_split>(rope::staged<"bshd">(x).view(), table);  // nothing keeps the copy
#endif
}

void permuted(Eigen::MatrixXf& rows) {
  rope::permute_rows<interleaved, half_split>(rows, 2);
#ifdef LAYOUT_OF_PERMUTE
  // EXPECT: error: .*permute_rows: a layout is interleaved, half_split
  rope::permute_rows<rope::frequencies, half_split>(rows, 2);
#endif
#ifdef THREADS_OF_PERMUTE
  // EXPECT: error: .*permute_rows: threads are an Eigen::ThreadPoolDevice or a type with threads
  rope::permute_rows<interleaved, half_split>(rows, 2, 0, 0, 5);
#endif
}

void scaled(rope::head_view<float> q) {
  const auto rule = [](std::int64_t) { return 3; };
  rope::scale_queries(q, rule, 0);
#ifdef RULE_OF_SCALE_QUERIES
  // EXPECT: error: .*scale_queries: a rule is
  rope::scale_queries(q, 3, 0);
#endif
}

void quantized(Eigen::Tensor<float, 4>& x, rope::quantized_view<std::int8_t> out,
               const rope::frequency_table<float>& table) {
  rope::quantize(rope::dhsb(x), out);
#ifdef QUANTIZE_A_TENSOR
  // EXPECT: error: .*quantize: x must be a head_view; name the order of its axes
  rope::quantize(x, out);
#endif
#ifdef QUANTIZED_DOUBLE_KEYS
  // EXPECT: error: .*quantize: channels are float, Eigen::half or Eigen::bfloat16
  rope::quantize(rope::head_view<const double>(), out);
#endif
  rope::dequantize(out, rope::dhsb(x));
#ifdef DEQUANTIZE_INTO_A_TENSOR
  // EXPECT: error: .*dequantize: x must be a head_view; name the order of its axes
  rope::dequantize(out, x);
#endif
#ifdef QUANTIZED_ROTATE
  // EXPECT: error: .*head_view: channels are float, double, half or bfloat16 here; dequantize
  rope::rotate<half_split>(rope::head_view<std::int8_t>(), table);
#endif
}
