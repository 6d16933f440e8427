// Attention of floats in shapes in which a program of a few lines is almost as fast: one query next to two
// Eigen products and a softmax, short prefills next to their panel products alone, one query and one key next
// to a plain loop. Names: order of keys/queries x keys x heads + key heads x head_dim. The limit is the
// longer of a read of keys and values and the multiply-adds at peak.

#include "operands.hpp"

#include <cmath>
#include <memory>
#include <stdexcept>

namespace {

using bench::Index;
using bench::operands;
using bench::shape;

/// Throws unless `other` writes the result of attention.
void must_agree(const std::string& name, const operands& x, const auto& ours, const auto& other) {
  ours();
  const auto expected = x.out_;
  other();
  for (Index i = 0; i < expected.size(); ++i)
    if (!(std::abs(expected(i) - x.out_(i)) <= 1e-5f))
      throw std::runtime_error(name + ": rope has " + std::to_string(expected(i)) + " in channel " +
                               std::to_string(i) + ", the other attention " + std::to_string(x.out_(i)));
}

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using view = rope::head_view<float>;

/// One query: two products for all query heads of a key head, with a softmax between them.
void eigen_step(const operands& x, const view& keys, const view& values, matrix& scores) {
  using map = Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
  const shape& s = x.s;
  const Index group = s.heads / s.kv_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  for (Index kv = 0; kv < s.kv_heads; ++kv) {
    const map k(keys.at(0, 0, kv), keys.tokens, s.head_dim, Eigen::OuterStride<>(keys.token_stride)),
        v(values.at(0, 0, kv), keys.tokens, s.head_dim, Eigen::OuterStride<>(values.token_stride)),
        q(x.q.at(0, 0, kv * group), group, s.head_dim, Eigen::OuterStride<>(s.head_dim));
    map out(x.out.at(0, 0, kv * group), group, s.head_dim, Eigen::OuterStride<>(s.head_dim));
    scores.noalias() = q * k.transpose();
    for (Index g = 0; g < group; ++g) {
      auto row = scores.row(g).array();
      row = ((row - row.maxCoeff()) * scale).exp();
      row /= row.sum();
    }
    out.noalias() = scores * v;
  }
}

/// \param from_memory  whether successive calls use different keys and values of 256 MiB, as the layers of a
///                     model
void step(bench::row& of, const shape& s, bool cached, bool from_memory) {
  constexpr Index pool = Index{1} << 25;
  static auto all_keys = bench::channels(pool), all_values = all_keys;
  const operands x({1, 1, s.heads, s.kv_heads, s.head_dim}, cached);  // of which queries and output are used
  const Index size = s.keys * s.kv_heads * s.head_dim, count = from_memory ? pool / size : 1;
  matrix scores(s.heads / s.kv_heads, s.keys);
  Index part = 0;
  const auto next = [&](const auto& call) {
    part = part + 1 < count ? part + 1 : 0;
    const auto in = [&](auto& memory) {
      float* const first = memory.data() + part * size;
      return cached ? rope::bhsd(first, 1, s.kv_heads, s.keys, s.head_dim)
                    : rope::bshd(first, 1, s.keys, s.kv_heads, s.head_dim);
    };
    call(in(all_keys), in(all_values));
  };
  const auto rope = [&] { next([&](const view& k, const view& v) { rope::attention(x.q, k, v, x.out); }); };
  const auto eigen = [&] { next([&](const view& k, const view& v) { eigen_step(x, k, v, scores); }); };
  const auto read = [&] {
    next([&](const view& k, const view& v) {
      bench::read(k.data, size);
      bench::read(v.data, size);
    });
  };
  must_agree(
      of.name, x, [&] { part = -1, rope(); }, [&] { part = -1, eigen(); });
  of.time({rope}, {{"two Eigen products and a softmax", {{eigen}}},
                   {"limit", {{read}, bench::peak(s.flops())}, true}});
}

/// One query of one head to one key, as loops.
void plain_step(const operands& x) {
  const float scale = 1 / std::sqrt(static_cast<float>(x.s.head_dim));
  const float *q = x.q.data, *k = x.k.data, *v = x.v.data;
  float *out = x.out.data, score = 0;
  for (Index d = 0; d < x.s.head_dim; ++d) score += q[d] * k[d];
  const float maximum = score, weight = std::exp((score - maximum) * scale), sum = weight;
  for (Index d = 0; d < x.s.head_dim; ++d) out[d] = weight * v[d] / sum;
  bench::keep(*out);
}

void one_key(bench::row& of, const shape& s) {
  const operands x(s, false);
  must_agree(
      of.name, x, [&] { x.attend(); }, [&] { plain_step(x); });
  of.time({[&] { x.attend(); }}, {{"a plain loop", {{[&] { plain_step(x); }}}}});
}

/// The products of a causal prefill, on packed operands, in the order of the kernel.
class panel_products {
  using panels = rope::detail::panel_shape<float>;
  static constexpr Index block_rows = 512;

 public:
  explicit panel_products(const shape& of)
      : s(of),
        queries_(
            bench::channels((block_rows / panels::rows + 1) * panels::rows * panels::padded(s.head_dim))),
        keys_(bench::channels(panels::tile * s.head_dim)),
        values_(bench::channels(panels::tile * panels::padded(s.head_dim))),
        sums_(queries_.size()),
        scores_(std::size_t(panels::rows * panels::tile)) {
    // Sums are damped, or they would grow from call to call.
    std::fill(std::begin(shrink_), std::end(shrink_), 0.5f);
  }

  void operator()() {
    const Index group = s.heads / s.kv_heads, block = block_rows / group;
    for (Index kv = 0; kv < s.kv_heads; ++kv)
      for (Index first = 0; first < s.queries; first += block) {
        const Index tokens = std::min(block, s.queries - first), rows = tokens * group;
        for (Index tile = 0; tile < first + tokens; tile += panels::tile)
          for (Index row = 0; row < rows; row += panels::rows) {
            const Index last = first + (std::min(row + panels::rows, rows) - 1) / group;
            multiply(row, std::min(panels::tile, last + 1 - tile));
          }
      }
  }

 private:
  /// A strip of rows, from `row` on, with the first `seen` keys of a tile.
  void multiply(Index row, Index seen) {
    constexpr Index panel_size = panels::rows * panels::width;
    const Index strip = row * panels::padded(s.head_dim);
    for (Index n = 0; n < seen; n += panels::width)
      rope::detail::row_products(queries_.data() + strip, panel_size, keys_.data() + n * s.head_dim,
                                 s.head_dim, scores_.data() + n, panels::tile);
    if (seen > 0)
      rope::detail::add_products<float, panels::tile, 1>(scores_.data(), values_.data(),
                                                         panels::tile * panels::width, seen, s.head_dim,
                                                         shrink_, sums_.data() + strip, panel_size);
  }

  shape s;
  rope::number_array<float> queries_, keys_, values_, sums_, scores_;
  float shrink_[std::size_t(panels::rows)];
};

void prefill(bench::row& of, const shape& s) {
  const operands x(s, false);
  panel_products panels(s);
  of.time({[&] { x.attend(); }}, {{"its panel products alone", {{[&] { panels(); }}}},
                                  {"peak multiply-adds", {bench::peak(s.flops())}}});
}

void rotated_prefill(bench::row& of, const shape& s) {
  const operands x(s, false);
  of.time({[&] { x.rotate_and_attend(); }}, {{"no rotation", {{[&] { x.attend(); }}}}});
}

}  // namespace

int main(int argc, char** argv) {
  for (const Index group : {1, 4, 8, 32})
    for (const Index head_dim : {64, 72, 128})
      for (const Index keys : {16, 64, 128, 1024, 4096})
        for (const bool cached : {true, false})
          for (const bool from_memory : {false, true}) {
            const Index heads = group == 8 ? 8 : 32;
            const shape s = {1, keys, heads, heads / group, head_dim};
            bench::add(std::string("one query, ") + (from_memory ? "keys of many layers, " : "") +
                           std::to_string(group) +
                           (group == 1 ? " head on a key head" : " heads on a key head"),
                       (cached ? "bhsd/" : "bshd/") + s.name() + (from_memory ? ", many layers" : ""),
                       [=](bench::row& of) { step(of, s, cached, from_memory); });
          }
  for (const shape& s : {shape{1024, 1024, 8, 8, 64}, shape{512, 512, 32, 8, 128}}) {
    bench::add("a short prompt", "prefill/" + s.name(), [=](bench::row& of) { prefill(of, s); });
    bench::add("a short prompt, rotation inside", "rotated/" + s.name(),
               [=](bench::row& of) { rotated_prefill(of, s); });
  }
  const shape s = {1, 1, 1, 1, 64};
  bench::add("one query to one key", "one_key/" + s.name(), [=](bench::row& of) { one_key(of, s); });
  return bench::run(argc, argv);
}
