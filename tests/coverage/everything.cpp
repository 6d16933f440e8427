// SPDX-License-Identifier: MIT
// Every member of every class template, for every type that it accepts: members that no test uses are
// compiled here, so that they count as not reached instead of not at all. Function templates that nothing
// calls are in the column `not compiled` of report.py.
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cstdint>

#define ROPE_TEST_OF_CHANNELS(T)            \
  template struct rope::head_view<T>;       \
  template struct rope::head_view<const T>; \
  template struct rope::attention_tape<T>;  \
  template class rope::kv_cache<T>;         \
  template class rope::ring_cache<T>;       \
  template class rope::latent_cache<T>;     \
  template class rope::page_view<T>;        \
  template class rope::page_view<const T>;

ROPE_TEST_OF_CHANNELS(float)
ROPE_TEST_OF_CHANNELS(double)
ROPE_TEST_OF_CHANNELS(Eigen::half)
ROPE_TEST_OF_CHANNELS(Eigen::bfloat16)

#define ROPE_TEST_OF_BLOCKS(T)                                     \
  template struct rope::projection<T>;                             \
  template struct rope::projection<const T>;                       \
  template struct rope::multi_head_parameters<T>;                  \
  template struct rope::multi_head_gradients<T>;                   \
  template struct rope::multi_head_report<T>;                      \
  template class rope::projected_context<T>;                       \
  template class rope::multi_head_attention<T, rope::interleaved>; \
  template class rope::multi_head_attention<T, rope::half_split>;  \
  template class rope::multi_head_attention<T>;

ROPE_TEST_OF_BLOCKS(float)
ROPE_TEST_OF_BLOCKS(double)

template class rope::kv_cache<std::int8_t>;
template class rope::ring_cache<std::int8_t>;
template class rope::page_view<std::int8_t>;
template struct rope::head_view<std::int8_t>;
template struct rope::head_view<const std::int8_t>;

#define ROPE_TEST_OF_ENTRIES(S)            \
  template class rope::frequency_table<S>; \
  template class rope::placed_table<S>;    \
  template class rope::row_maker<S>;       \
  template class rope::xpos<S>;            \
  template class rope::model_tables<S>;

ROPE_TEST_OF_ENTRIES(float)
ROPE_TEST_OF_ENTRIES(double)

template struct rope::prompt_positions<std::int64_t>;
template struct rope::prompt_positions<double>;
template struct rope::row_starts<int>;
template struct rope::segments<std::int64_t>;
template struct rope::score_view<float>;
template struct rope::score_view<const bool>;

int main() { return 0; }
