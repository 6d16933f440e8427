// The C functions of rope_c.h. No exception leaves them.

#include "rope_c.h"

#include <rope/rope.hpp>

#include <exception>
#include <stdexcept>
#include <string>

struct rope_c_table {
  rope::frequency_table<float> table;
};

namespace {

thread_local std::string error;

rope::head_view<float> view_of(const rope_c_heads& x) {
  return rope::bshd(x.data, x.batch, x.tokens, x.heads, x.head_dim);
}

const rope::frequency_table<float>& checked(const rope_c_table* table) {
  if (table == nullptr)
    throw std::invalid_argument("rope_c: table must be one of rope_c_table_new, got NULL");
  return table->table;
}

/// Calls body(layout as a type).
template <class Body>
void with_layout(rope_c_layout layout, const Body& body) {
  if (layout != rope_c_half_split && layout != rope_c_interleaved)
    throw std::invalid_argument("rope_c: layout must be rope_c_interleaved or rope_c_half_split, got " +
                                std::to_string(static_cast<int>(layout)));
  layout == rope_c_half_split ? body(rope::half_split{}) : body(rope::interleaved{});
}

/// Runs `body`, and returns 0, or 1 with a message.
template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  return 1;
}

}  // namespace

rope_c_table* rope_c_table_new(int64_t rotary_dim, double base, int64_t first, int64_t last) {
  rope_c_table* made = nullptr;
  guarded([&] { made = new rope_c_table{{rope::frequencies(rotary_dim, base), first, last}}; });
  return made;
}

void rope_c_table_free(rope_c_table* table) { delete table; }

int rope_c_rotate(rope_c_heads x, const rope_c_table* table, int64_t start, rope_c_layout layout) {
  return guarded([&] {
    with_layout(layout,
                [&]<class Layout>(Layout) { rope::rotate<Layout>(view_of(x), checked(table), start); });
  });
}

int rope_c_unrotate(rope_c_heads x, const rope_c_table* table, int64_t start, rope_c_layout layout) {
  return guarded([&] {
    with_layout(layout,
                [&]<class Layout>(Layout) { rope::unrotate<Layout>(view_of(x), checked(table), start); });
  });
}

int rope_c_attention(rope_c_heads q, rope_c_heads k, rope_c_heads v, rope_c_heads out) {
  return guarded([&] { rope::attention(view_of(q), view_of(k), view_of(v), view_of(out)); });
}

const char* rope_c_error(void) { return error.c_str(); }
