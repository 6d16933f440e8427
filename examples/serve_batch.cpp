// Continuous batching. Requests come and go while at most eight sequences are served, from a pool of pages
// that the program owns. Every step has a chunk of a new prompt and single tokens of other requests, in one
// call per layer. The pool has the common beginning of all prompts once. Each request must generate the same
// tokens as alone.
#include <rope/rope.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

using rope::Index;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using page_list = std::vector<std::int32_t>;

struct shape {
  static constexpr Index layers = 2, heads = 8, kv_heads = 2, head_dim = 64, width = heads * head_dim;
  static constexpr Index words = 256, page_size = 16, max_pages = 16, all_pages = 6 * max_pages, chunk = 48;
};

/// The pool, and the owners of its pages: the part of an engine that rope does not provide.
struct page_pool : shape {
  static constexpr Index part_size = all_pages * page_size * kv_heads * head_dim;
  std::vector<double> memory = std::vector<double>(layers * 2 * part_size);
  page_list free = page_list(all_pages);
  page_pool() { std::iota(free.begin(), free.end(), 0); }
  rope::page_view<double>::pool of_layer(Index l) {
    double* keys = memory.data() + 2 * l * part_size;
    return {.keys = rope::bhsd(keys, all_pages, kv_heads, page_size, head_dim),
            .values = rope::bhsd(keys + part_size, all_pages, kv_heads, page_size, head_dim)};
  }
  /// The pages of `prefix`, and free ones, for `length` tokens. Empty if too few are free.
  page_list take(page_list prefix, Index length) {
    const auto more = (length + page_size - 1) / page_size - static_cast<Index>(prefix.size());
    if (more > static_cast<Index>(free.size())) return {};
    prefix.insert(prefix.end(), free.end() - more, free.end());
    free.resize(free.size() - static_cast<std::size_t>(more));
    return prefix;
  }
};

Index any(Index below) {
  static std::mt19937 random(7);
  return static_cast<Index>(random() % static_cast<unsigned>(below));
}

struct request {
  std::vector<Index> tokens;  // prompt, then generated tokens
  Index length;               // of prompt and answer together
  Index done = 0;             // tokens whose keys and values are in the pool
  page_list pages = {};
  Index size() const { return static_cast<Index>(tokens.size()); }
  Index next() const { return std::min(shape::chunk, size() - done); }
};

/// Attention layers with random weights. Their words mean nothing, but depend on every earlier token.
struct model : shape {
  matrix embedding = weights(words, width), q[layers], k[layers], v[layers], o[layers];
  rope::frequency_table<double> table{rope::frequencies(head_dim), page_size* max_pages};

  model() {
    for (Index l = 0; l < layers; ++l) {
      q[l] = weights(width, width), o[l] = weights(width, width);
      k[l] = weights(width, kv_heads * head_dim), v[l] = weights(width, kv_heads * head_dim);
    }
  }
  static matrix weights(Index rows, Index cols) {
    return matrix::NullaryExpr(
        rows, cols, [] { return (static_cast<double>(any(2001)) - 1000) * std::sqrt(3e-6 / width); });
  }
  /// One step of all sequences, with their next tokens laid end to end. Returns the number of these tokens.
  Index step(page_pool& pool, const std::vector<request*>& batch) const {
    std::vector<std::int64_t> offsets = {0};
    std::vector<Index> lengths, words_of_step;
    Eigen::Array<std::int32_t, Eigen::Dynamic, max_pages, Eigen::RowMajor> blocks(batch.size(), max_pages);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      const request& r = *batch[s];
      std::copy(r.pages.begin(), r.pages.end(), blocks.row(static_cast<Index>(s)).begin());
      const auto first = r.tokens.begin() + r.done;
      words_of_step.insert(words_of_step.end(), first, first + r.next());
      offsets.push_back(offsets.back() + r.next());
      lengths.push_back(r.done + r.next());
    }
    matrix x = embedding(words_of_step, Eigen::all), attended(x.rows(), width);
    for (Index l = 0; l < layers; ++l) {
      const matrix queries = x * q[l], keys = x * k[l], values = x * v[l];
      const rope::page_view<double> pages(pool.of_layer(l), blocks, lengths);
      rope::write_pages<rope::half_split>(rope::thd(keys, kv_heads), rope::thd(values, kv_heads), pages,
                                          table, offsets);
      rope::attention<rope::half_split>(rope::thd(queries, heads), pages, rope::thd(attended, heads), table,
                                        {.query_offsets = offsets});
      x += attended * o[l];
    }
    for (std::size_t s = 0; s < batch.size(); ++s) {
      batch[s]->done = lengths[s];
      if (lengths[s] < batch[s]->size()) continue;  // the rest of the prompt follows in later steps
      (x.row(offsets[s + 1] - 1) * embedding.transpose()).maxCoeff(&batch[s]->tokens.emplace_back());
    }
    return offsets.back();
  }
};

/// Serves all requests, at most `seats` at a time. Returns the number of tokens in all steps.
Index serve(const model& m, std::vector<request>& all, request system, std::size_t seats) {
  page_pool pool;
  system.pages = pool.take({}, system.size());
  Index tokens = 0, shared = static_cast<Index>(system.pages.size());
  for (const Index prompt = system.size(); system.done < prompt;) tokens += m.step(pool, {&system});
  std::vector<request*> batch;
  for (auto next = all.begin(); next != all.end() || !batch.empty();) {
    for (; next != all.end() && batch.size() < seats; batch.push_back(&*next++)) {
      next->pages = pool.take(system.pages, next->length);
      if (next->pages.empty()) break;  // waits until another request has ended
      next->done = system.done;
    }
    tokens += m.step(pool, batch);
    for (const request* r : batch)
      if (r->size() == r->length)
        pool.free.insert(pool.free.end(), r->pages.begin() + shared, r->pages.end());
    std::erase_if(batch, [](const request* r) { return r->size() == r->length; });
  }
  return tokens;
}

int main() {
  const model m;
  request system = {.tokens = std::vector<Index>(4 * shape::page_size), .length = 0};
  for (Index& token : system.tokens) token = any(shape::words);
  std::vector<request> together(16, system);
  for (request& r : together) {
    for (Index more = 1 + any(100); more > 0; --more) r.tokens.push_back(any(shape::words));
    r.length = r.size() + 10 + any(50);
  }
  std::vector<request> alone = together;
  const auto timed = [&](const char* name, std::vector<request>& all, std::size_t seats) {
    const auto start = std::chrono::steady_clock::now();
    const auto n = static_cast<double>(serve(m, all, system, seats));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    std::printf("%s at a time: %.0f tokens, %.0f per second\n", name, n, n / time.count());
  };
  timed("eight", together, 8);
  timed("one", alone, 1);
  const bool same = std::equal(together.begin(), together.end(), alone.begin(),
                               [](const request& a, const request& b) { return a.tokens == b.tokens; });
  std::printf(same ? "every request ends with the tokens it generates alone\n" : "FAILED: other tokens\n");
  return same ? 0 : 1;
}
