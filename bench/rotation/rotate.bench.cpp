// Rotation beside an in-place scale of the same bytes (in place) or a copy (out of place), and beside other
// ways to write it. Names: what/layout/type/order/batch x tokens x heads x head_dim/threads.

#include "../support.hpp"
#include "other_rotations.hpp"

#include <functional>
#include <string>
#include <vector>

namespace {

using bench::Index;
using rope::detail::storage;

struct shape {
  Index batch, tokens, heads, head_dim;
  Index rotary_dim = 0, first_channel = 0;
  Index past_line = 0;  // bytes that the first channel is behind the beginning of a line of the cache

  Index rotated() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  Index size() const { return batch * tokens * heads * head_dim; }
  std::string name() const {
    std::string text = std::to_string(batch) + "x" + std::to_string(tokens) + "x" + std::to_string(heads) +
                       "x" + std::to_string(head_dim);
    if (rotary_dim != 0) text += "[" + std::to_string(first_channel) + "+" + std::to_string(rotary_dim) + "]";
    if (past_line != 0) text += "@" + std::to_string(past_line);
    return text;
  }
};

enum class order { bshd, bhsd, sbhd, thd };

template <class T>
rope::head_view<T> view_of(T* data, const shape& s, order o) {
  switch (o) {
    case order::bshd:
      return rope::bshd(data, s.batch, s.tokens, s.heads, s.head_dim);
    case order::bhsd:
      return rope::bhsd(data, s.batch, s.heads, s.tokens, s.head_dim);
    case order::sbhd:
      return rope::sbhd(data, s.tokens, s.batch, s.heads, s.head_dim);
    default:
      return rope::thd(data, s.batch * s.tokens, s.heads, s.head_dim);
  }
}
constexpr const char* order_names[] = {"bshd", "bhsd", "sbhd", "thd"};

template <class T>
storage<T> channels(Index size) {
  storage<T> x(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(0.01f * static_cast<float>(i % 97));
  return x;
}

template <class T>
using table_type = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class Layout, class T>
void in_place(benchmark::State& state, shape s, order o, int threads, bool gathered) {
  const rope::frequency_table<table_type<T>> table(rope::frequencies(s.rotated()), s.batch * s.tokens + 8);
  bench::parts_in_turn parts(s.size() + 128, s.size() * Index(sizeof(T)));
  auto memory = channels<T>(parts.size());  // begins with a line
  std::vector<T*> buffers;
  std::vector<rope::head_view<T>> views;
  for (Index part = 0; part < parts.count(); ++part) {
    buffers.push_back(memory.data() + parts.begin(part) + s.past_line / Index(sizeof(T)));
    views.push_back(view_of(buffers.back(), s, o).channels(s.first_channel, s.head_dim - s.first_channel));
  }
  const auto next = [&] { return buffers[static_cast<std::size_t>(parts.next())]; };
  std::vector<int> ids(static_cast<std::size_t>(s.tokens));
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int>((t * 7919) % (ids.size() + 1));
  // A window moves fewer bytes than the whole, and its limit is the scale of the lines that it touches. One
  // head reads as much of the table as of channels, and its limit reads the table, too.
  const Index moved = s.size() / s.head_dim * s.rotated();
  // No limit: what two threads do to channels that fit a cache; a few KiB rotation leaves to one. And one line
  // of every KiB, which is in one of few sets of a cache: which pages the system gives decides, 1.24 to 0.62 in
  // 24 runs of the same case.
  const bool in_few_sets = s.rotated() <= 16 && s.head_dim % 256 == 0;
  const auto what = (threads == 2 && s.size() * Index(sizeof(T)) < Index{1} << 24) || in_few_sets
                        ? bench::beside::another_call
                        : bench::beside::hardware;
  std::function<void()> limit = [&] { bench::scale_in_place(next(), s.size(), threads); };
  if constexpr (std::is_same_v<T, float>)
    if (moved != s.size()) {
      const Index tokens = s.batch * s.tokens;
      limit = bench::faster_of(
          [&, tokens] {
            bench::scale_lines(next(), tokens * s.heads, s.head_dim, s.first_channel, s.rotated());
          },
          [&, tokens] {
            bench::scale_lines_of_tokens(next(), tokens, s.heads, s.head_dim, s.first_channel, s.rotated());
          });
    }
  if (moved == s.size() && parts.count() > 1)
    limit = bench::faster_of(limit, [&] { bench::scale_in_four_streams(next(), s.size(), threads); });
  if constexpr (std::is_same_v<T, float>)
    if (threads == 1 && s.heads == 1) {
      const auto scale_and_read = [&](Index count) {
        T* const x = next();
        for (Index first = 0; first < s.size(); first += count) {
          bench::scale_in_place(x + first, count, 1);
          bench::read(table.cos(1).data() + first, count);
        }
      };
      limit = bench::faster_of([=] { scale_and_read(s.size()); }, [=] { scale_and_read(8 * s.head_dim); });
    }
  bench::beside_the_limit(
      state, 2.0 * static_cast<double>(moved) * sizeof(T), limit,
      [&] {
        const auto& view = views[static_cast<std::size_t>(parts.next())];
        if (threads == 2)
          rope::rotate<Layout>(view, table, 1, bench::pool());
        else if (gathered)
          rope::rotate<Layout>(view, table, ids);
        else
          rope::rotate<Layout>(view, table, 1);
      },
      what);
}

template <class Layout, class T>
void out_of_place(benchmark::State& state, shape s) {
  const rope::frequency_table<table_type<T>> table(rope::frequencies(s.rotated()), s.tokens + 8);
  bench::parts_in_turn parts(s.size(), s.size() * Index(sizeof(T)));
  const auto x = channels<T>(parts.size());
  auto y = channels<T>(parts.size());
  // Loops, because memcpy may choose other stores than a kernel with arithmetic has. No limit from memory:
  // rotation writes two streams, which some processors do faster than one or four (1.06 times, Zen 3).
  using bits = std::conditional_t<sizeof(T) == 2, short, T>;
  using bit_array = Eigen::Array<bits, Eigen::Dynamic, 1>;
  const auto copy = [&](Index first, Index count) {
    Eigen::Map<bit_array>(reinterpret_cast<bits*>(y.data()) + first, count) =
        Eigen::Map<const bit_array>(reinterpret_cast<const bits*>(x.data()) + first, count);
    benchmark::ClobberMemory();
  };
  const auto next = [&] { return parts.begin(parts.next()); };
  const Index piece = 512, quarter = s.size() / 4;
  const auto limit =
      bench::faster_of([&] { copy(next(), s.size()); },
                       [&] {
                         for (Index begin = next(), first = 0; first < quarter; first += piece)
                           for (Index stream = 0; stream < 4; ++stream)
                             copy(begin + stream * quarter + first, (std::min)(piece, quarter - first));
                       });
  bench::beside_the_limit(
      state, 2.0 * static_cast<double>(s.size()) * sizeof(T), limit,
      [&] {
        const Index begin = next();
        rope::rotate_to<Layout>(view_of(x.data() + begin, s, order::bshd),
                                view_of(y.data() + begin, s, order::bshd), table, 1);
      },
      parts.count() > 1 ? bench::beside::another_call : bench::beside::hardware);
}

/// With a table of doubles, whose rows are rounded while they are read, beside the same with a table of floats.
template <class Layout, class T>
void double_table(benchmark::State& state, shape s) {
  const rope::frequency_table<float> table(rope::frequencies(s.head_dim), s.tokens + 8);
  const rope::frequency_table<double> precise(rope::frequencies(s.head_dim), s.tokens + 8);
  bench::parts_in_turn parts(s.size(), s.size() * Index(sizeof(T)));
  auto memory = channels<T>(parts.size());
  const auto next = [&] { return view_of(memory.data() + parts.begin(parts.next()), s, order::bshd); };
  bench::beside_the_limit(
      state, 2.0 * static_cast<double>(s.size()) * sizeof(T), [&] { rope::rotate<Layout>(next(), table, 1); },
      [&] { rope::rotate<Layout>(next(), precise, 1); }, bench::beside::another_call);
}

void query_and_key(benchmark::State& state, Index tokens) {
  const rope::frequency_table<float> table(rope::frequencies(128), tokens + 8);
  bench::parts_in_turn parts(tokens * 40 * 128, tokens * 32 * 128 * Index(sizeof(float)));
  auto memory = channels<float>(parts.size());
  const auto next = [&] { return memory.data() + parts.begin(parts.next()); };
  bench::beside_the_limit(
      state, 2.0 * sizeof(float) * static_cast<double>(tokens * 40 * 128),
      [&] { bench::scale_in_place(next(), tokens * 40 * 128, 1); },
      [&] {
        float* const q = next();
        rope::rotate<rope::half_split>(rope::thd(q, tokens, 32, 128),
                                       rope::thd(q + tokens * 32 * 128, tokens, 8, 128), table, 1);
      });
}

void another_way(benchmark::State& state, shape s, const bench::rotation_way& way) {
  const rope::frequency_table<float> table(rope::frequencies(s.head_dim), s.tokens);
  bench::parts_in_turn parts(s.size(), s.size() * Index(sizeof(float)));
  auto memory = channels<float>(parts.size());
  std::vector<std::function<void()>> rotations;
  for (Index part = 0; part < parts.count(); ++part)
    rotations.push_back(way.prepare(memory.data() + parts.begin(part), table, s.tokens, s.heads, s.head_dim));
  const auto next = [&] { return memory.data() + parts.begin(parts.next()); };
  std::function<void()> limit = [&] { bench::scale_in_place(next(), s.size(), 1); };
  if (parts.count() > 1)
    limit = bench::faster_of(limit, [&] { bench::scale_in_four_streams(next(), s.size(), 1); });
  bench::beside_the_limit(state, 2.0 * sizeof(float) * static_cast<double>(s.size()), limit,
                          [&] { rotations[static_cast<std::size_t>(parts.next())](); });
}

constexpr shape decode = {1, 1, 32, 128}, tokens64 = {1, 64, 32, 128}, prefill512 = {1, 512, 32, 128},
                prefill4096 = {1, 4096, 32, 128}, bert = {8, 128, 12, 64};

template <class Layout, class T>
void register_in_place(const shape& s, order o = order::bshd, int threads = 1, bool gathered = false) {
  const std::string name = std::string(gathered ? "rotate_ids/" : "rotate/") + bench::layout_name<Layout>() +
                           "/" + bench::type_name<T>() + "/" + order_names[static_cast<int>(o)] + "/" +
                           s.name() + "/" + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    in_place<Layout, T>(state, s, o, threads, gathered);
  })->UseManualTime();
}

template <class Layout, class T>
void register_out_of_place(const shape& s) {
  const std::string name = std::string("rotate_out_of_place/") + bench::layout_name<Layout>() + "/" +
                           bench::type_name<T>() + "/bshd/" + s.name() + "/1 thread";
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    out_of_place<Layout, T>(state, s);
  })->UseManualTime();
}

template <class Layout, class T>
void register_double_table(const shape& s) {
  const std::string name = std::string("rotate_double_table/") + bench::layout_name<Layout>() + "/" +
                           bench::type_name<T>() + "/bshd/" + s.name() + "/1 thread";
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    double_table<Layout, T>(state, s);
  })->UseManualTime();
}

/// The shapes of the plot of time against tokens.
constexpr Index token_counts[] = {1, 4, 16, 64, 256, 1024, 4096, 16384};

template <class Layout>
void register_layout() {
  for (const shape& s : {decode, tokens64, prefill512, prefill4096, bert}) {
    register_in_place<Layout, float>(s);
    register_in_place<Layout, double>(s);
    register_in_place<Layout, Eigen::bfloat16>(s);
    register_in_place<Layout, Eigen::half>(s);
  }
  for (const Index tokens : token_counts)
    if (tokens != decode.tokens && tokens != tokens64.tokens && tokens != prefill4096.tokens)
      register_in_place<Layout, float>({1, tokens, 32, 128});
  for (const order o : {order::bhsd, order::sbhd, order::thd}) {
    register_in_place<Layout, float>(bert, o);
    register_in_place<Layout, float>(prefill4096, o);
  }
  for (const Index head_dim : {64, 72, 80, 96, 100, 256}) {
    register_in_place<Layout, float>({1, 1, 32, head_dim});
    register_in_place<Layout, float>({1, 512, 32, head_dim});
    register_in_place<Layout, float>({1, 4096, 32, head_dim});
  }
  for (const shape& partial :
       {shape{1, 4096, 32, 128, 32, 0}, shape{1, 4096, 16, 192, 64, 128}, shape{1, 8, 32, 256, 16, 0},
        shape{1, 16, 32, 192, 64, 128}, shape{1, 16, 32, 80, 32, 0}})
    register_in_place<Layout, float>(partial);
  // Memory as a large std::vector has it, 16 bytes behind a line, and at an odd element.
  for (const Index past : {16, 4})
    for (shape s : {decode, prefill512, prefill4096}) {
      s.past_line = past;
      register_in_place<Layout, float>(s);
    }
  // In L2: heads that are few packets, or no whole number of them.
  for (const Index head_dim : {64, 72, 80, 96, 100, 112, 128}) {
    register_in_place<Layout, float>({1, 16, 32, head_dim});
    register_in_place<Layout, float>({1, 16, 32, head_dim, 0, 0, 16});
  }
  // Heads one after the other, and one head alone, whose table is as large as it is.
  register_in_place<Layout, float>({1, 2048, 32, 128}, order::bhsd);
  register_in_place<Layout, float>({1, 4096, 1, 128});
  register_in_place<Layout, float>(prefill4096, order::bshd, 1, true);
  for (const shape& s : {decode, prefill512, prefill4096}) {
    register_in_place<Layout, float>(s, order::bshd, 2);
    register_in_place<Layout, Eigen::bfloat16>(s, order::bshd, 2);
  }
  for (const shape& s : {prefill512, prefill4096}) {
    register_double_table<Layout, float>(s);
    register_double_table<Layout, Eigen::bfloat16>(s);
    register_double_table<Layout, Eigen::half>(s);
  }
  for (const shape& s : {decode, prefill512, prefill4096}) {
    register_out_of_place<Layout, float>(s);
    register_out_of_place<Layout, Eigen::bfloat16>(s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_layout<rope::half_split>();
  register_layout<rope::interleaved>();
  for (const Index tokens : {1, 4096})
    benchmark::RegisterBenchmark(
        ("rotate_q_and_k/half_split/float/thd/" + std::to_string(tokens) + "x(32+8)x128/1 thread").c_str(),
        [=](benchmark::State& state) { query_and_key(state, tokens); })
        ->UseManualTime();

  std::vector<bench::rotation_way> ways = bench::plain_ways();
#if ROPE_BENCH_TORCH
  for (const bench::rotation_way& way : bench::torch_ways()) ways.push_back(way);
#endif
  for (const bench::rotation_way& way : ways)
    for (const Index tokens : token_counts) {
      const shape s = {1, tokens, 32, 128};
      benchmark::RegisterBenchmark((way.name + "/float/bshd/" + s.name() + "/1 thread").c_str(),
                                   [=](benchmark::State& state) { another_way(state, s, way); })
          ->UseManualTime();
    }
  benchmark::Initialize(&argc, argv);
  bench::describe_run();
  benchmark::RunSpecifiedBenchmarks();
  return bench::refused() ? 1 : 0;
}
