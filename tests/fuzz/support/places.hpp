// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_PLACES_HPP
#define ROPE_TESTS_FUZZ_PLACES_HPP

/// Positions in every form that a call accepts, and possible errors in a list of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <Eigen/Core>
#include <rope/positions/positions.hpp>

#include "fuzz/support/bytes.hpp"

namespace fuzz {

using rope::Index;

/// Positions in one of the forms of a call, and as a plain list [batch, tokens].
struct places {
  enum form { start, ids, short_ids, rows, ragged } in = start;
  std::int64_t first = 0;
  std::vector<std::int64_t> list, starts;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> offsets, offset_starts;
  Index list_rows = 1, list_columns = 0, row_stride = 0, column_stride = 1;
  bool matrix = false;
  std::vector<std::int64_t> plain;
};

using strided_ids = Eigen::Map<const Eigen::Array<std::int64_t, Eigen::Dynamic, 1>, 0, Eigen::InnerStride<>>;
using matrix_of_ids =
    Eigen::Map<const Eigen::Array<std::int64_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
               Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// Calls `f` with the positions as a caller gives them.
template <class Call>
void with_positions(const places& p, const Call& f) {
  switch (p.in) {
    case places::start:
      return f(p.first);
    case places::ids:
      if (p.matrix)
        return f(matrix_of_ids(p.list.data(), p.list_rows, p.list_columns, {p.row_stride, p.column_stride}));
      return f(strided_ids(p.list.data(), p.list_columns, Eigen::InnerStride<>(p.column_stride)));
    case places::short_ids:
      return f(p.bytes);
    case places::rows:
      return f(rope::row_starts{p.starts});
    case places::ragged:
      if (p.offset_starts.empty()) return f(rope::segments{p.offsets});
      return f(rope::segments{p.offsets, p.offset_starts});
  }
}

/// Positions in [first, last), which contains at least `tokens`, and at least one.
inline places draw_places(bytes& b, Index batch, Index tokens, std::int64_t first, std::int64_t last) {
  places p;
  const long room = static_cast<long>(last - first) - 1;
  const auto any = [&] { return first + b.up_to(room); };
  const auto any_start = [&](Index count) { return first + b.up_to(room + 1 - std::max(long(count), 1L)); };
  p.in = static_cast<places::form>(b.up_to(4));
  if (p.in == places::short_ids && (first < 0 || last > 256)) p.in = places::ids;
  p.plain.resize(static_cast<std::size_t>(batch * tokens));
  const auto at = [&](Index row, Index t) -> std::int64_t& {
    return p.plain[static_cast<std::size_t>(row * tokens + t)];
  };
  const auto fill = [&](auto of) {
    for (Index r = 0; r < batch; ++r)
      for (Index t = 0; t < tokens; ++t) at(r, t) = of(r, t);
  };
  switch (p.in) {
    case places::start:
      p.first = any_start(tokens);
      fill([&](Index, Index t) { return p.first + t; });
      break;
    case places::ids: {
      const bool shared = b.coin();
      p.matrix = !shared && b.coin();
      p.list_rows = p.matrix ? batch : 1;
      p.list_columns = p.matrix || shared ? tokens : batch * tokens;
      p.column_stride = b.between(1, 3);
      p.row_stride = p.column_stride * p.list_columns + b.up_to(2);
      if (p.matrix && b.coin()) {  // one column after another
        p.row_stride = b.between(1, 2);
        p.column_stride = p.row_stride * p.list_rows + b.up_to(1);
      }
      p.list.assign(
          static_cast<std::size_t>(p.list_rows * p.row_stride + p.list_columns * p.column_stride + 1),
          std::numeric_limits<std::int64_t>::min());
      for (Index r = 0; r < p.list_rows; ++r)
        for (Index c = 0; c < p.list_columns; ++c)
          p.list[static_cast<std::size_t>(r * p.row_stride + c * p.column_stride)] = any();
      fill([&](Index r, Index t) {
        const Index offset = p.matrix ? r * p.row_stride + t * p.column_stride
                             : shared ? t * p.column_stride
                                      : (r * tokens + t) * p.column_stride;
        return p.list[static_cast<std::size_t>(offset)];
      });
      break;
    }
    case places::short_ids: {
      const bool shared = b.coin();
      for (Index i = 0; i < (shared ? tokens : batch * tokens); ++i)
        p.bytes.push_back(static_cast<std::uint8_t>(any()));
      fill([&](Index r, Index t) { return p.bytes[static_cast<std::size_t>(shared ? t : r * tokens + t)]; });
      break;
    }
    case places::rows:
      for (Index r = 0; r < batch; ++r) p.starts.push_back(any_start(tokens));
      fill([&](Index r, Index t) { return p.starts[static_cast<std::size_t>(r)] + t; });
      break;
    case places::ragged: {
      const bool starts = first != 0 || last < tokens || b.coin();
      p.offsets.push_back(0);
      for (long parts = b.up_to(3); parts > 0; --parts)
        p.offsets.push_back(static_cast<std::int32_t>(b.between(p.offsets.back(), long(tokens))));
      p.offsets.push_back(static_cast<std::int32_t>(tokens));
      if (starts && (first < -1000000 || last > 1000000)) {  // beyond the integers of this list
        p.in = places::start;
        p.first = first;
        fill([&](Index, Index t) { return first + t; });
        break;
      }
      for (std::size_t s = 0; s + 1 < p.offsets.size(); ++s) {
        const Index length = p.offsets[s + 1] - p.offsets[s];
        if (starts) p.offset_starts.push_back(static_cast<std::int32_t>(any_start(length)));
        for (Index t = 0; t < length; ++t)
          for (Index r = 0; r < batch; ++r)
            at(r, p.offsets[s] + t) = (starts ? p.offset_starts.back() : 0) + t;
      }
      break;
    }
  }
  return p;
}

/// Makes the length of a list invalid.
inline bool spoil_list(bytes& b, places& p, Index batch, Index tokens) {
  switch (p.in) {
    case places::ids: {
      if (p.matrix) return false;
      const Index wrong_length = p.list_columns == 0 ? 1 : p.list_columns - 1;
      if (wrong_length == tokens || wrong_length == batch * tokens) return false;
      p.list_columns = wrong_length;
      return true;
    }
    case places::short_ids:
      p.bytes.resize(static_cast<std::size_t>(batch * tokens + tokens + 1));
      return true;
    case places::rows:
      b.coin() || p.starts.empty() ? p.starts.push_back(0) : p.starts.pop_back();
      return true;
    case places::ragged:
      switch (b.up_to(3)) {
        case 0:
          p.offsets.front() = -1;
          return true;
        case 1:
          p.offsets.back() += 1;
          return true;
        case 2:
          p.offsets.insert(p.offsets.begin() + 1, static_cast<std::int32_t>(tokens) + 1);
          return true;
        default:
          p.offset_starts.resize(p.offsets.size() + static_cast<std::size_t>(b.up_to(1)));
          return true;
      }
    default:
      return false;
  }
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_PLACES_HPP
