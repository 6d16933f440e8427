// SPDX-License-Identifier: MIT

#include <cstdint>
#include <vector>

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

using rope::half_split;
using table = rope::frequency_table<float>;
using view = rope::head_view<float>;
enum class layouts { interleaved, half_split };

void append(rope::kv_cache<float>& cache, rope::ring_cache<float>& ring, view x, const table& rotates) {
  cache.append<half_split>(x, x, rotates);
#ifdef MISSING_LAYOUT_APPEND
  // EXPECT: error: .*append: name the layout
  cache.append(x, x, rotates);
#endif
#ifdef LAYOUT_OF_AN_ENUM_APPEND
  // EXPECT: error: .*append: a layout is a type, append<half_split>
  cache.append<layouts::half_split>(x, x, rotates);
#endif
#ifdef MISSING_TABLE_APPEND
  // EXPECT: error: .*append: a table is a frequency_table
  cache.append<half_split>(x, x, 3);
#endif
  cache.append(x, x, std::vector<int>{3});
#ifdef COUNTS_OF_APPEND
  // EXPECT: error: .*append: after both views pass the table if the cache rotates keys, then counts
  cache.append(x, x, 3);
#endif
  ring.append<half_split>(x, x, rotates, {}, rope::this_thread{});
#ifdef MISSING_LAYOUT_APPEND_RING
  // EXPECT: error: .*append: name the layout
  ring.append(x, x, rotates);
#endif
#ifdef COUNTS_OF_APPEND_TO_A_RING
  // EXPECT: error: .*append: after both views pass the table if the cache rotates keys, then counts
  ring.append<half_split>(x, x, rotates, rope::this_thread{});
#endif
  cache.append_at<half_split>(x, x, rotates, 5);
#ifdef MISSING_LAYOUT_APPEND_AT
  // EXPECT: error: .*append_at: name the layout
  cache.append_at(x, x, rotates, 5);
#endif
  cache.append_at(x, x, std::vector<int>{1});
#ifdef POSITIONS_OF_APPEND_AT
  // EXPECT: error: .*append_at: after both views pass the table if the cache rotates keys, then positions
  cache.append_at(x, x, std::vector<float>{1.5f});
#endif
  cache.append_rotated<half_split>(x, x, rotates, 3);
#ifdef MISSING_LAYOUT_APPEND_ROTATED
  // EXPECT: error: .*append_rotated: name the layout
  cache.append_rotated(x, x, rotates);
#endif
#ifdef LAYOUT_OF_AN_ENUM_APPEND_ROTATED
  // EXPECT: error: .*append_rotated: a layout is a type, append_rotated<half_split>
  cache.append_rotated<layouts::half_split>(x, x, rotates);
#endif
#ifdef TABLE_OF_APPEND_ROTATED
  // EXPECT: error: .*append_rotated: after both views pass the table that rotated the keys, then positions
  cache.append_rotated<half_split>(x, x, 3, rotates);
#endif
}

void append_tensors(rope::kv_cache<float>& cache, rope::ring_cache<float>& ring, Eigen::Tensor<float, 4>& k,
                    Eigen::Tensor<float, 4>& v, const table& rotates) {
  cache.append<half_split>(rope::dhsb(k), rope::dhsb(v), rotates);
#ifdef APPEND_A_TENSOR
  // EXPECT: error: .*append: x must be a head_view; name the order of its axes
  cache.append<half_split>(k, v, rotates);
#endif
  cache.append_at(rope::dhsb(k), rope::dhsb(v), 3);
#ifdef APPEND_A_TENSOR_AT
  // EXPECT: error: .*append_at: x must be a head_view; name the order of its axes
  cache.append_at(rope::dhsb(k), v, 3);
#endif
  cache.append_rotated<half_split>(rope::dhsb(k), rope::dhsb(v), rotates);
#ifdef APPEND_A_ROTATED_TENSOR
  // EXPECT: error: .*append_rotated: x must be a head_view; name the order of its axes
  cache.append_rotated<half_split>(k, v, rotates);
#endif
  ring.append(rope::dhsb(k), rope::dhsb(v));
#ifdef APPEND_A_TENSOR_TO_A_RING
  // EXPECT: error: .*append: x must be a head_view; name the order of its axes
  ring.append(k, v);
#endif
}

void latents(rope::latent_cache<float>& cache, view x, std::vector<float>& list, const table& rotates,
             const rope::token_coordinates& at) {
  cache.append(rope::thd(list.data(), 1, 1, 8), rope::thd(list.data(), 1, 1, 4));
#ifdef APPEND_A_VECTOR_OF_LATENTS
  // EXPECT: error: .*append: x must be a head_view; name the order of its axes
  cache.append(list, list);
#endif
  cache.append(x, x, std::vector<int>{3});
#ifdef COUNTS_OF_LATENTS
  // EXPECT: error: .*append: after both views pass the table if the cache rotates keys, then counts
  cache.append(x, x, std::vector<float>{3});
#endif
  cache.append_at(x, x, at.rows());
#ifdef COORDINATES_OF_LATENTS
  // EXPECT: error: .*append_at: after both views pass the table if the cache rotates keys, then positions
  cache.append_at(x, x, at);
#endif
  cache.append_rotated<half_split>(x, x, rotates, at.rows());
#ifdef COORDINATES_OF_ROTATED_LATENTS
  // EXPECT: error: .*append_rotated
  cache.append_rotated<half_split>(x, x, rotates, at);
#endif
  cache.shift<half_split>(0, 4, -2, rotates, rope::batch_row{1});
#ifdef SHIFT_LATENTS_WITHOUT_A_TABLE
  // EXPECT: error: .*shift: after delta pass the table of keys that are stored rotated, with their layout
  cache.shift<half_split>(0, 4, -2, rope::batch_row{1});
#endif
  cache.rebase<half_split>(rotates, rotates);
#ifdef MISSING_LAYOUT_REBASE
  // EXPECT: error: .*rebase: name the layout
  cache.rebase(rotates, rotates);
#endif
  rope::latent_cache<Eigen::bfloat16>(1, 8, 16, 4);
#ifdef QUANTIZED_LATENTS
  // EXPECT: error: .*a cache has channels of float, double, Eigen::half, Eigen::bfloat16 or, in kv_cache and
  rope::latent_cache<std::int8_t>(1, 8, 16, 4);
#endif
}

void stored(rope::kv_cache<float>& cache, const rope::ring_cache<float>& ring, const table& rotates,
            const rope::frequencies& schedule) {
  cache.shift<half_split>(0, 4, -2, rotates);
#ifdef MISSING_LAYOUT_SHIFT
  // EXPECT: error: .*shift: name the layout
  cache.shift(0, 4, -2, rotates);
#endif
#ifdef SHIFT_WITHOUT_A_TABLE
  // EXPECT: error: .*shift: after delta pass the table of keys that are stored rotated, with their layout
  cache.shift<half_split>(0, 4, -2);
#endif
  cache.shift(0, 4, -2, rope::batch_row{1});
#ifdef ROW_OF_SHIFT
  // EXPECT: error: .*shift: after delta pass the table of keys that are stored rotated.* then batch_row.b. for
  cache.shift(0, 4, -2, 1);
#endif
  cache.rebase<half_split>(rotates, rotates);
#ifdef MISSING_TABLE_REBASE
  // EXPECT: error: .*rebase: pass the table that rotated the keys
  cache.rebase<half_split>(rotates);
#endif
  cache.check_table<half_split>(table(schedule, 8));
#ifdef CHECK_FREQUENCIES
  // EXPECT: error: .*check_table: a table is a frequency_table
  cache.check_table<half_split>(schedule);
#endif
  ring.check_table<half_split>(rotates);
#ifdef MISSING_LAYOUT_CHECK_TABLE
  // EXPECT: error: .*check_table: name the layout
  ring.check_table(rotates);
#endif
  cache.evict(std::vector<int>{1});
#ifdef INDICES_OF_EVICT
  // EXPECT: error: .*token_indices
  cache.evict(std::vector<float>{1});
#endif
}

void attention_out(view q, const rope::kv_cache<float>& cache, Eigen::Tensor<float, 4>& out) {
  rope::attention(q, cache, rope::dhsb(out));
#ifdef ATTENTION_OUT_OF_A_CACHE_INTO_A_TENSOR
  // EXPECT: error: .*attention: x must be a head_view; name the order of its axes
  rope::attention(q, cache, out);
#endif
}

void pages(rope::page_view<float>& pages, view x, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& v) {
  rope::write_pages(x, x, pages, std::vector<std::uint16_t>{0, 1});
#ifdef OFFSETS_OF_PAGES
  // EXPECT: error: .*write_pages: after k and v pass the pages
  rope::write_pages(x, x, pages, std::vector<double>{0, 1});
#endif
  rope::write_pages(rope::dhsb(k), rope::dhsb(v), pages);
#ifdef WRITE_A_TENSOR_TO_PAGES
  // EXPECT: error: .*write_pages: x must be a head_view; name the order of its axes
  rope::write_pages(k, v, pages);
#endif
}
