// Speculative decoding with a tree of drafted tokens. A cheap model, which attends to the last 16 tokens in a
// ring, drafts two branches. The full model checks all drafted tokens in one call, in which each token attends
// only to its ancestors. The accepted part of a branch is kept, and both caches are rolled back to its end. The
// text is the same as in plain decoding.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <rope/rope.hpp>
#include <vector>

namespace {

using rope::Index;
using Layout = rope::half_split;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index heads = 4, head_dim = 16, width = heads * head_dim, vocabulary = 40, length = 200;
constexpr Index depth = 4;  // of both branches

/// A model of one layer. Its weights are random, which is enough: each token depends on earlier ones.
struct model {
  matrix embedding, to_q, to_k, to_v, to_logits;
  rope::frequency_table<> table{rope::frequencies(head_dim), length + depth + 1};

  model() {
    std::mt19937 random(3);
    const auto draw = [&random](Index rows, Index columns) {
      return matrix(matrix::NullaryExpr(
          rows, columns, [&random] { return 2 * static_cast<float>(random()) / 4294967296.0f - 1; }));
    };
    embedding = draw(vocabulary, width);
    to_q = draw(width, width) / 2, to_k = draw(width, width) / 2, to_v = draw(width, width);
    to_logits = draw(width, vocabulary);
  }

  matrix embed(const std::vector<int>& ids) const {
    matrix x(static_cast<Index>(ids.size()), width);
    for (Index t = 0; t < x.rows(); ++t) x.row(t) = embedding.row(ids[static_cast<std::size_t>(t)]);
    return x;
  }
};

/// The likeliest tokens of one row of logits, the likeliest first.
std::array<int, 2> best_two(const matrix& logits, Index row) {
  std::array<int, 2> best = {0, 1};
  if (logits(row, 1) > logits(row, 0)) best = {1, 0};
  for (int id = 2; id < vocabulary; ++id)
    if (logits(row, id) > logits(row, best[0]))
      best = {id, best[0]};
    else if (logits(row, id) > logits(row, best[1]))
      best[1] = id;
  return best;
}

/// Reads one token in each of the two rows of the drafting model.
matrix draft_step(const model& of, rope::ring_cache<float>& ring, const std::array<int, 2>& ids) {
  const matrix x = of.embed({ids[0], ids[1]}), q = x * of.to_q, k = x * of.to_k, v = x * of.to_v;
  matrix out(2, width);
  ring.append<Layout>(rope::bshd(k, 2, heads), rope::bshd(v, 2, heads), of.table);
  rope::attention<Layout>(rope::bshd(q, 2, heads), ring, rope::bshd(out, 2, heads), of.table);
  return out * of.to_logits;
}

/// A tree of tokens: the newest token of the text, then branch 0, then branch 1.
struct draft_tree {
  std::vector<int> ids, positions;
  /// Whether `other` is `node` or an ancestor of it.
  static bool is_ancestor(Index other, Index node) {
    return other == 0 || (other <= node && (other - 1) / depth == (node - 1) / depth);
  }
};

/// Appends the tree to the cache. Each of its tokens attends to the text and to its ancestors. Returns the
/// logits of every node.
matrix check_tree(const model& of, rope::kv_cache<float>& cache, const draft_tree& tree) {
  const Index before = cache.size(), nodes = static_cast<Index>(tree.ids.size());
  const matrix x = of.embed(tree.ids), q = x * of.to_q, k = x * of.to_k, v = x * of.to_v;
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> seen(nodes, before + nodes);
  seen.setConstant(true);
  for (Index node = 0; node < nodes; ++node)
    for (Index other = 0; other < nodes; ++other)
      seen(node, before + other) = draft_tree::is_ancestor(other, node);
  matrix out(nodes, width);
  cache.append_at<Layout>(rope::thd(k, heads), rope::thd(v, heads), of.table, tree.positions);
  rope::attention<Layout>(rope::thd(q, heads), cache, rope::thd(out, heads), of.table,
                          {.mask = rope::score_matrix(seen)});
  return out * of.to_logits;
}

std::vector<int> decode_plainly(const model& of) {
  rope::kv_cache<float> cache(1, length, heads, head_dim);
  std::vector<int> text = {7};
  while (text.size() < length) {
    const matrix x = of.embed({text.back()}), q = x * of.to_q, k = x * of.to_k, v = x * of.to_v;
    matrix out(1, width);
    cache.append<Layout>(rope::thd(k, heads), rope::thd(v, heads), of.table);
    rope::attention<Layout>(rope::thd(q, heads), cache, rope::thd(out, heads), of.table);
    text.push_back(best_two(out * of.to_logits, 0)[0]);
  }
  return text;
}

}  // namespace

int main() {
  const model of;
  // The cache needs capacity for the tree after the text, and the ring can roll back at most `chunk` tokens.
  rope::kv_cache<float> cache(1, length + 2 * depth + 1, heads, head_dim);
  rope::ring_cache<float> ring(2, {.window = 16, .chunk = depth + 1}, heads, head_dim);
  std::vector<int> text = {7};
  int calls = 0, from_second = 0, rejected = 0;
  while (text.size() < length) {
    // Both rows of the ring are equal. They read the newest token, and then one branch each.
    const Index before = cache.size();
    std::array<int, 2> next = best_two(draft_step(of, ring, {text.back(), text.back()}), 0);
    draft_tree tree = {std::vector<int>(2 * depth + 1, text.back()), std::vector<int>(2 * depth + 1)};
    for (Index d = 0; d < depth; ++d) {
      for (Index branch = 0; branch < 2; ++branch)
        tree.ids[static_cast<std::size_t>(1 + branch * depth + d)] = next[static_cast<std::size_t>(branch)];
      const matrix logits = draft_step(of, ring, next);
      next = {best_two(logits, 0)[0], best_two(logits, 1)[0]};
    }
    for (Index node = 0; node <= 2 * depth; ++node)
      tree.positions[static_cast<std::size_t>(node)] =
          static_cast<int>(before + (node == 0 ? 0 : 1 + (node - 1) % depth));

    // Starts at the root and stops when no child has the token that the model chooses.
    const matrix logits = check_tree(of, cache, tree);
    ++calls;
    const auto id_of = [&tree](Index node) { return tree.ids[static_cast<std::size_t>(node)]; };
    int chosen = best_two(logits, 0)[0];
    const Index branch = id_of(1) == chosen || id_of(1 + depth) != chosen ? 0 : 1;
    Index accepted = 0;
    while (accepted < depth && id_of(1 + branch * depth + accepted) == chosen) {
      text.push_back(chosen);
      chosen = best_two(logits, 1 + branch * depth + accepted++)[0];
    }
    text.push_back(chosen);  // the caches read it in the next round
    from_second += branch == 1;
    rejected += accepted < depth;

    // Keeps the accepted path in the cache and removes the rest of the tree. Rolls back the ring, and appends
    // the path to both rows.
    const Index first = before + 1, kept = first + branch * depth;
    cache.truncate(kept + accepted);
    cache.remove(first, kept - first);
    ring.truncate(before + 1 + accepted);
    ring.reorder(std::vector<Index>{branch, branch});
    if (cache.size() != before + 1 + accepted || cache.next_positions()[0] != cache.size() ||
        ring.seen(0) != cache.size()) {
      std::printf("the caches were not rolled back to the end of the accepted path\n");
      return 1;
    }
  }
  text.resize(length);
  const bool same = text == decode_plainly(of);
  std::printf(
      "%d tokens in %d calls of the model, %d of them by the second branch, %d with a part rejected\n",
      static_cast<int>(length), calls, from_second, rejected);
  std::printf("the text is %s plain decoding\n", same ? "the same as in" : "NOT the same as in");
  return same && calls < length && from_second > 0 && rejected > 0 ? 0 : 1;
}
