// SPDX-License-Identifier: MIT
// Cross-attention of a block to contexts that it projected: any shapes, norms, tables, layouts and forms of
// positions, compared with the formula with every product written out, and every use of a context that throws
// according to its comment.
#include <rope/block/multi_head_attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <rope/block/projected_context.hpp>

#include "fuzz/support/block_weights.hpp"
#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/position_tables.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/types.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

const position_tables& tables() {
  using table = frequency_table<float>;
  static const position_tables all = {{table(slow_pairs(), -20, 60), table(fast_pairs(1.25), -20, 60)},
                                      2,
                                      table(frequencies(2 * pairs + 8, 50.0), -20, 60)};
  return all;
}

/// The positions of tokens, in one of the forms of a call.
struct places {
  enum form { start, ids, rows, in_segments } in = start;
  std::int64_t first = 0;
  std::vector<std::int64_t> list;   // ids, starts of rows, or offsets
  std::vector<std::int64_t> plain;  // [batch * tokens]
  std::vector<Index> segment;       // of each token of a row

  places(bytes& b, form kind, Index batch, Index tokens, Index segment_count) : in(kind) {
    for (Index i = 0; i < batch * tokens; ++i) segment.push_back(0);
    if (in == start) first = b.between(-9, 30);
    if (in == ids)
      for (Index i = 0; i < batch * tokens; ++i) list.push_back(b.between(-9, 40));
    if (in == rows)
      for (Index r = 0; r < batch; ++r) list.push_back(b.between(-9, 40));
    if (in == in_segments) {
      for (Index s = 1; s < segment_count; ++s) list.push_back(b.up_to(long(tokens)));
      list.push_back(0), list.push_back(tokens);
      std::sort(list.begin(), list.end());
    }
    for (Index r = 0; r < batch; ++r)
      for (Index t = 0; t < tokens; ++t) {
        std::int64_t at = first + t;
        if (in == ids) at = list[static_cast<std::size_t>(r * tokens + t)];
        if (in == rows) at = list[static_cast<std::size_t>(r)] + t;
        if (in == in_segments) {
          std::size_t s = 0;
          while (list[s + 1] <= t) ++s;
          segment[static_cast<std::size_t>(r * tokens + t)] = static_cast<Index>(s);
          at = t - list[s];
        }
        plain.push_back(at);
      }
  }
  template <class Call>
  void with(const Call& f) const {
    switch (in) {
      case start:
        return f(first);
      case ids:
        return f(list);
      case rows:
        return f(row_starts{list});
      default:
        return f(segments{list});
    }
  }
};

/// Contexts that cannot be projected.
template <class T, class Layout, class Table>
void misuse(bytes& b, const multi_head_attention<T, Layout>& block, const token_matrix<T>& context,
            Index batch, Index tokens, const Table& by) {
  switch (b.up_to(15)) {
    case 11: {
      const token_matrix<T> wider = token_matrix<T>::Zero(context.rows(), context.cols() + 1);
      return rejects<std::invalid_argument>("a context has the columns of its weights",
                                            [&] { static_cast<void>(block.project_context(wider, batch)); });
    }
    case 12:
      return rejects<std::invalid_argument>("a batch is not negative",
                                            [&] { static_cast<void>(block.project_context(context, -1)); });
    case 13: {
      if (batch < 2) return;
      const token_matrix<T> longer = token_matrix<T>::Zero(context.rows() + 1, context.cols());
      return rejects<std::invalid_argument>("rows of a batch are equally long",
                                            [&] { static_cast<void>(block.project_context(longer, batch)); });
    }
    case 14:
      if (batch * tokens == 0) return;
      return rejects<std::out_of_range>("a position outside the table throws", [&] {
        static_cast<void>(block.project_context(context, batch, by, b.coin() ? 60 : -21));
      });
    case 15:
      return rejects<std::invalid_argument>("a window beyond the head throws", [&] {
        static_cast<void>(block.project_context(context, batch, tables().of_more_pairs, 0));
      });
    default:
      return;
  }
}

/// Calls with a context that does not fit them.
template <class T, class Layout>
void misuse(bytes& b, const multi_head_attention<T, Layout>& block, const block_weights<T>& own,
            const projected_context<T>& kept, bool rotated, std::size_t table, Index first_channel,
            Index segment_count, const token_matrix<T>& x, const places& of_queries) {
  const auto rejected = [&](const char* claim, const auto& attention, const token_matrix<T>& asking,
                            const frequency_table<float>* other, Index place, const auto& at) {
    token_matrix<T> out = token_matrix<T>::Constant(asking.rows(), own.shape.out_dim, T(-77));
    const token_matrix<T> before = out;
    rejects<std::invalid_argument>(claim, [&] {
      if (other == nullptr) return attention.cross(asking, kept, out);
      attention.cross(asking, kept, out, other->at_channel(place), at);
    });
    check(out == before, "a call that throws writes nothing");
  };
  const auto* by = rotated ? &tables()[table] : nullptr;
  const std::int64_t start = 0;
  const long kind = b.up_to(15);
  of_queries.with([&](const auto& at) {
    switch (kind) {
      case 8:  // an additional table, or none
        return rejected("both keys and queries rotate, or neither", block, x,
                        rotated ? nullptr : &tables()[0], first_channel, at);
      case 9:
        if (!rotated) return;
        return rejected("keys and queries rotate by one table", block, x, &tables()[1 - table], first_channel,
                        at);
      case 10:
        if (!rotated || own.shape.head_dim == 2 * pairs) return;
        return rejected("keys and queries rotate in the same channels", block, x, by,
                        first_channel == 0 ? 1 : 0, at);
      case 11: {
        if (!rotated) return;
        using other_layout = std::conditional_t<std::is_same_v<Layout, interleaved>, half_split, interleaved>;
        const multi_head_attention<T, other_layout> other(own.weights(), own.options());
        return rejected("keys and queries rotate in one layout", other, x, by, first_channel, at);
      }
      case 12: {  // of a block with other heads
        block_weights<T> more(b, 2 * own.shape.heads, 2 * own.shape.kv_heads, own.shape.head_dim,
                              own.shape.value_dim);
        more.shape.model_dim = own.shape.model_dim,
        more.q = draw_rows<T>(b, more.q.rows(), own.shape.model_dim);
        more.shape.out_dim = own.shape.out_dim, more.o = draw_rows<T>(b, own.shape.out_dim, more.o.cols());
        more.o_bias = draw_rows<T>(b, 1, own.shape.out_dim);
        const multi_head_attention<T, Layout> other(more.weights(), more.options());
        return rejected("a context is of one shape", other, x, by, first_channel, at);
      }
      case 13: {
        const token_matrix<T> wider = token_matrix<T>::Zero(x.rows(), x.cols() + 1);
        return rejected("x has the columns of its weight", block, wider, by, first_channel, at);
      }
      case 14: {
        if (!rotated) return;
        const bool in_segments = of_queries.in == places::in_segments;
        std::vector<std::int64_t> offsets(static_cast<std::size_t>(in_segments ? segment_count + 2 : 2), 0);
        offsets.back() = kept.batch() == 0 ? 0 : x.rows() / kept.batch();
        return rejected("segments of queries and keys are as many", block, x, by, first_channel,
                        segments{offsets});
      }
      case 15:
        if (!rotated || of_queries.in != places::in_segments) return;
        return rejected("segments of keys need those of queries", block, x, by, first_channel, start);
      default:
        return;
    }
  });
}

template <class T, class Layout>
void run(bytes& b) {
  const Index kv_heads = b.between(1, 2), heads = kv_heads * b.between(1, 2),
              head_dim = 2 * pairs + b.up_to(2), value_dim = b.between(1, 3),
              batch = b.one_in(12) ? 0 : b.between(1, 3), tokens = batch == 0 ? 0 : b.up_to(6),
              queries = batch == 0 ? 0 : b.up_to(4);
  const block_weights<T> own(b, heads, kv_heads, head_dim, value_dim);
  const multi_head_attention<T, Layout> block(own.weights(), own.options());
  const token_matrix<T> context = draw_rows<T>(b, batch * tokens, own.shape.context_dim),
                        x = draw_rows<T>(b, batch * queries, own.shape.model_dim);
  const bool rotated = b.coin();
  const auto table = static_cast<std::size_t>(b.up_to(1));
  const Index first_channel = b.up_to(long(head_dim) - 2 * pairs), segment_count = b.between(1, 3);
  const auto form = rotated ? static_cast<places::form>(b.up_to(3)) : places::start;
  const auto query_form = form == places::in_segments ? form : static_cast<places::form>(b.up_to(2));
  const places of_keys(b, form, batch, tokens, segment_count),
      of_queries(b, query_form, batch, queries, segment_count);
  const auto by = tables()[table].at_channel(first_channel);

  std::optional<projected_context<T>> kept;
  const auto make = [&] {
    if (!rotated) {
      kept.emplace(block.project_context(context, batch));
      return;
    }
    of_keys.with([&](const auto& at) { kept.emplace(block.project_context(context, batch, by, at)); });
  };
  make();
  misuse(b, block, context, batch, tokens, by);
  if (b.one_in(3)) {  // contexts are values
    projected_context<T> copy = *kept;
    projected_context<T> moved = std::move(*kept);
    check(kept->batch() == 0 && kept->tokens() == 0 && kept->keys().size() == 0,
          "a context is empty once it was moved from");
    kept.emplace(b.coin() ? std::move(moved) : std::move(copy));
  }
  check(kept->batch() == batch && kept->tokens() == tokens && kept->kv_heads() == kv_heads &&
            kept->head_dim() == head_dim && kept->value_dim() == value_dim,
        "a context has the extents of its block and tokens");

  const rotation_rule rule = tables().rule(table, std::is_same_v<Layout, interleaved>, first_channel);
  const auto head_of = [&](fuzz::key k, const token_matrix<T>& norm, std::int64_t position) {
    if (own.norm) normalize(k, head_dim, norm);
    if (rotated) fuzz::rotate_key<T>(k, static_cast<std::size_t>(head_dim), rule, position, true);
    return k;
  };
  std::vector<fuzz::key> keys;
  std::vector<channels> values;
  for (Index i = 0; i < batch * tokens; ++i) {
    keys.push_back(head_of({project(context, i, own.k, own.k_bias, own.bias)}, own.k_norm,
                           of_keys.plain[static_cast<std::size_t>(i)]));
    values.push_back(project(context, i, own.v, own.v_bias, own.bias));
    for (Index h = 0; h < kv_heads; ++h)
      check(
          fuzz::near(kept->keys(), i / tokens, i % tokens, h, keys.back().exact.data() + h * head_dim,
                     keys.back().error) &&
              fuzz::near(kept->values(), i / tokens, i % tokens, h, values.back().data() + h * value_dim, 0),
          "keys and values are those of the context, projected, normalised and rotated");
  }

  token_matrix<T> out = token_matrix<T>::Constant(batch * queries, own.shape.out_dim, T(-77));
  const token_matrix<T> before = out;
  const auto call = [&](token_matrix<T>& to) {
    if (!rotated) return block.cross(x, *kept, to);
    of_queries.with([&](const auto& at) { block.cross(x, *kept, to, by, at); });
  };
  misuse(b, block, own, *kept, rotated, table, first_channel, segment_count, x, of_queries);
  call(out);
  for (Index i = 0; i < batch * queries; ++i) {
    const fuzz::key query = head_of({project(x, i, own.q, own.q_bias, own.bias)}, own.q_norm,
                                    of_queries.plain[static_cast<std::size_t>(i)]);
    std::vector<fuzz::key> seen;
    std::vector<channels> seen_values;
    wide error = query.error;
    for (Index t = 0; t < tokens; ++t) {
      const auto j = static_cast<std::size_t>(i / queries * tokens + t);
      if (form == places::in_segments &&
          of_keys.segment[j] != of_queries.segment[static_cast<std::size_t>(i)])
        continue;
      seen.push_back(keys[j]), seen_values.push_back(values[j]);
      error = std::max(error, keys[j].error);
    }
    const channels attended =
        attend_heads(query, seen, seen_values, heads, kv_heads, static_cast<std::size_t>(value_dim));
    // Channels are below 2.5 and values below 1.5: scores, weights, and the product with at most 12 rows of
    // |o| <= 1/2.
    const wide u = tolerance::unit_roundoff<T>();
    const wide bound = 12 * (12 * error * 2.5L + 400 * u);
    check_output("cross-attention to a projected context is that of the formula", out, i, own, attended,
                 bound);
  }
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  const long kind = b.up_to(3);
  fuzz::with_layout(kind % 2 == 1, [&]<class Layout>(Layout) {
    kind < 2 ? fuzz::run<float, Layout>(b) : fuzz::run<double, Layout>(b);
  });
  return 0;
}
