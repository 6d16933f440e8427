// Rotation of types, orders, ranges of channels and threads that rotation_shapes.bench.cpp does not have,
// next to an in-place scale of the same bytes, or a copy. Names: what/layout/type/order/batch x tokens x
// heads x head_dim/threads.

#include "../support.hpp"

#include <functional>
#include <string>
#include <vector>

namespace {

using bench::Index;
using rope::number_array;

struct shape {
  Index batch, tokens, heads, head_dim;
  Index rotary_dim = 0, first_channel = 0;
  Index past_line = 0;  // bytes from the beginning of a cache line to the first channel

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
constexpr const char* order_names[] = {"bshd", "bhsd", "sbhd", "thd"};

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

template <class T>
using table_type = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Memory for successive calls, which use different parts of it.
template <class T>
struct parts {
  explicit parts(const shape& s)
      : sequence(s.size() + 128, s.size() * Index(sizeof(T))),
        memory(sequence.size()),  // begins with a cache line
        past(s.past_line / Index(sizeof(T))) {
    for (Index i = 0; i < memory.size(); ++i) memory(i) = T(0.01f * static_cast<float>(i % 97));
  }
  T* next() { return memory.data() + sequence.begin(sequence.next()) + past; }
  bool from_memory() const { return sequence.count() > 1; }

  bench::successive_parts sequence;
  number_array<T> memory;
  Index past;
};

template <class Layout, class T>
void in_place(bench::row& of, const shape& s, order o, int threads, bool gathered) {
  const rope::frequency_table<table_type<T>> table(rope::frequencies(s.rotated()), s.batch * s.tokens + 8);
  parts<T> x(s);
  std::vector<int> ids(static_cast<std::size_t>(s.tokens));
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int>((t * 7919) % (ids.size() + 1));
  bench::yardstick limit = {"an in-place scale", {}};
  if (s.rotated() == s.head_dim) {
    limit.ways.push_back({[&] { bench::scale_in_place(x.next(), s.size(), threads); }});
    if (x.from_memory())
      limit.ways.push_back({[&] { bench::scale_in_four_streams(x.next(), s.size(), threads); }});
  } else if constexpr (std::is_same_v<T, float>) {  // the cache lines of the rotated channels
    const Index tokens = s.batch * s.tokens;
    limit.ways.push_back({[&, tokens] {
      bench::scale_lines(x.next(), tokens * s.heads, s.head_dim, s.first_channel, s.rotated());
    }});
    limit.ways.push_back({[&, tokens] {
      bench::scale_lines_of_tokens(x.next(), tokens, s.heads, s.head_dim, s.first_channel, s.rotated());
    }});
  }
  const auto rotate = [&] {
    const auto view = view_of(x.next(), s, o).channels(s.first_channel, s.head_dim - s.first_channel);
    if (threads == 2)
      rope::rotate<Layout>(view, table, 1, bench::pool());
    else if (gathered)
      rope::rotate<Layout>(view, table, ids);
    else
      rope::rotate<Layout>(view, table, 1);
  };
  of.time({rotate}, {limit});
}

template <class Layout, class T>
void out_of_place(bench::row& of, const shape& s) {
  const rope::frequency_table<table_type<T>> table(rope::frequencies(s.head_dim), s.tokens + 8);
  parts<T> x(s), y(s);
  // A loop, because memcpy may use other stores than a kernel with arithmetic.
  using bits = std::conditional_t<sizeof(T) == 2, short, T>;
  using bit_array = Eigen::Array<bits, Eigen::Dynamic, 1>;
  const auto copy = [&] {
    Eigen::Map<bit_array>(reinterpret_cast<bits*>(y.next()), s.size()) =
        Eigen::Map<const bit_array>(reinterpret_cast<const bits*>(x.next()), s.size());
    bench::keep(y);
  };
  const auto rotate = [&] {
    rope::rotate_to<Layout>(rope::head_view<const T>(view_of(x.next(), s, order::bshd)),
                            view_of(y.next(), s, order::bshd), table, 1);
  };
  of.time({rotate}, {{"a copy", {{copy}}}});
}

/// With a double table, whose rows are rounded while they are read.
template <class Layout, class T>
void double_table(bench::row& of, const shape& s) {
  const rope::frequency_table<float> table(rope::frequencies(s.head_dim), s.tokens + 8);
  const rope::frequency_table<double> precise(rope::frequencies(s.head_dim), s.tokens + 8);
  parts<T> x(s);
  const auto next = [&] { return view_of(x.next(), s, order::bshd); };
  of.time({[&] { rope::rotate<Layout>(next(), precise, 1); }},
          {{"a table of floats", {{[&] { rope::rotate<Layout>(next(), table, 1); }}}}});
}

template <class Layout>
void query_and_key(bench::row& of, Index tokens) {
  const rope::frequency_table<float> table(rope::frequencies(128), tokens + 8);
  const shape both = {1, tokens, 40, 128};
  parts<float> x(both);
  const auto rotate = [&] {
    float* const q = x.next();
    rope::rotate<Layout>(rope::thd(q, tokens, 32, 128), rope::thd(q + tokens * 32 * 128, tokens, 8, 128),
                         table, 1);
  };
  of.time({rotate}, {{"an in-place scale", {{[&] { bench::scale_in_place(x.next(), both.size(), 1); }}}}});
}

/// From floats to channels of type T, next to a rotation of the floats in place.
template <class Layout, class T>
void narrowing(bench::row& of, const shape& s) {
  const rope::frequency_table<float> table(rope::frequencies(s.head_dim), s.tokens + 8);
  parts<float> x(s);
  parts<T> y(s);
  const auto next = [&] { return view_of(x.next(), s, order::bshd); };
  of.time({[&] {
            rope::rotate_to<Layout>(rope::head_view<const float>(next()), view_of(y.next(), s, order::bshd),
                                    table, 1);
          }},
          {{"floats in place", {{[&] { rope::rotate<Layout>(next(), table, 1); }}}}});
}

/// Queries of float and keys of type T in one call, next to two calls.
template <class Layout, class T>
void two_types(bench::row& of, Index tokens) {
  const rope::frequency_table<float> table(rope::frequencies(128), tokens + 8);
  const shape of_q = {1, tokens, 32, 128}, of_k = {1, tokens, 8, 128};
  parts<float> q(of_q);
  parts<T> k(of_k);
  const auto queries = [&] { return view_of(q.next(), of_q, order::bshd); };
  const auto keys = [&] { return view_of(k.next(), of_k, order::bshd); };
  of.time({[&] { rope::rotate<Layout>(queries(), keys(), table, 1); }},
          {{"two calls", {{[&] {
              rope::rotate<Layout>(queries(), table, 1);
              rope::rotate<Layout>(keys(), table, 1);
            }}}}});
}

/// The Hadamard transform, next to an in-place scale.
void hadamard(bench::row& of, const shape& s) {
  parts<float> x(s);
  of.time({[&] { rope::hadamard_transform(view_of(x.next(), s, order::bshd)); }},
          {{"an in-place scale", {{[&] { bench::scale_in_place(x.next(), s.size(), 1); }}}}});
}

template <class Layout>
void add_layout() {
  const std::string layout = bench::layout_name<Layout>();
  const auto in_order = [&]<class T>(const std::string& group, const shape& s, T, order o = order::bshd,
                                     int threads = 1, bool gathered = false) {
    bench::add(group,
               std::string(gathered ? "rotate_ids/" : "rotate/") + layout + "/" + bench::type_name<T>() +
                   "/" + order_names[static_cast<int>(o)] + "/" + s.name() + "/" + std::to_string(threads) +
                   (threads == 1 ? " thread" : " threads"),
               [=](bench::row& of) { in_place<Layout, T>(of, s, o, threads, gathered); });
  };
  const shape decode = {1, 1, 32, 128}, small = {1, 16, 32, 128}, prefill512 = {1, 512, 32, 128},
              prefill4096 = {1, 4096, 32, 128}, bert = {8, 128, 12, 64};
  for (const shape& s : {decode, small, prefill512, prefill4096, bert}) {
    in_order("rotation of double", s, double());
    in_order("rotation of bfloat16", s, Eigen::bfloat16());
    in_order("rotation of half", s, Eigen::half());
  }
  in_order("rotation of float", prefill4096, float());  // for the build without -march
  for (const order o : {order::bshd, order::bhsd, order::sbhd})
    in_order("rotation of several sequences, in any order", bert, float(), o);
  in_order("rotation of heads, each of contiguous tokens", {1, 2048, 32, 128}, float(), order::bhsd);
  in_order("rotation of heads, each of contiguous tokens", prefill4096, float(), order::bhsd);
  for (const shape& s : {shape{1, 4096, 32, 128, 32, 0}, shape{1, 4096, 16, 192, 64, 128},
                         shape{1, 16, 32, 192, 64, 128}, shape{1, 16, 32, 80, 32, 0}})
    in_order("rotation of some channels, next to the lines that they touch", s, float());
  for (shape s : {decode, prefill512, prefill4096}) {
    s.past_line = 4;
    in_order("rotation of floats 4 bytes after the beginning of a line", s, float());
  }
  in_order("rotation at listed positions", prefill4096, float(), order::bshd, 1, true);
  for (const shape& s : {decode, prefill512, prefill4096}) {
    in_order("rotation on two threads", s, float(), order::bshd, 2);
    in_order("rotation on two threads", s, Eigen::bfloat16(), order::bshd, 2);
  }
  const auto of_shape = [&]<class T>(const shape& s, T) {
    const std::string rest = layout + "/" + bench::type_name<T>() + "/bshd/" + s.name() + "/1 thread";
    bench::add("rotation by a table of doubles", "rotate_double_table/" + rest,
               [=](bench::row& of) { double_table<Layout, T>(of, s); });
    if constexpr (!std::is_same_v<T, Eigen::half>)
      bench::add("rotation out of place", "rotate_out_of_place/" + rest,
                 [=](bench::row& of) { out_of_place<Layout, T>(of, s); });
  };
  for (const shape& s : {decode, prefill512, prefill4096}) {
    of_shape(s, float());
    of_shape(s, Eigen::bfloat16());
    of_shape(s, Eigen::half());
    const auto narrowed = [&]<class T>(T) {
      bench::add(
          "rotation from float to 16 bits",
          "rotate_to_narrow/" + layout + "/" + bench::type_name<T>() + "/bshd/" + s.name() + "/1 thread",
          [=](bench::row& of) { narrowing<Layout, T>(of, s); });
    };
    narrowed(Eigen::bfloat16());
    narrowed(Eigen::half());
  }
  for (const Index tokens : {1, 4096})
    bench::add("rotation of queries and keys of two types",
               "rotate_two_types/" + layout + "/float+bfloat16/bshd/" + std::to_string(tokens) +
                   "x(32+8)x128/1 thread",
               [=](bench::row& of) { two_types<Layout, Eigen::bfloat16>(of, tokens); });
  for (const Index tokens : {1, 4096})
    bench::add("rotation of queries and keys in one call",
               "rotate_q_and_k/" + layout + "/float/thd/" + std::to_string(tokens) + "x(32+8)x128/1 thread",
               [=](bench::row& of) { query_and_key<Layout>(of, tokens); });
}

}  // namespace

int main(int argc, char** argv) {
  add_layout<rope::half_split>();
  add_layout<rope::interleaved>();
  for (const shape& s : {shape{1, 1, 32, 128}, shape{1, 4096, 32, 128}})
    bench::add("a Hadamard transform", "hadamard/float/bshd/" + s.name() + "/1 thread",
               [=](bench::row& of) { hadamard(of, s); });
  return bench::run(argc, argv);
}
