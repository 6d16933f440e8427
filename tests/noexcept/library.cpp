// SPDX-License-Identifier: MIT
// Built with -fno-exceptions -fno-rtti: the library computes as usual, and invalid input aborts with its
// message on stderr.

#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <rope/rope.hpp>

namespace {

int failures = 0;

void check(bool holds, const char* claim) {
  if (holds) return;
  std::printf("FAILED: %s\n", claim);
  ++failures;
}

/// Runs `call` in a child process, which must abort with `message` as the whole of its stderr.
template <class Call>
void check_aborts(std::string_view message, Call call) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return check(false, "pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    call();
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t count; (count = read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);

  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && text == message) return;
  std::printf("FAILED: expected an abort with\n  %.*s\ngot status %d and\n  %s\n",
              static_cast<int>(message.size()), message.data(), status, text.c_str());
  ++failures;
}

/// Within the roundings of eight operations on numbers near 1.
template <class A>
bool near(A a, A b) {
  return std::abs(a - b) <= 8 * std::numeric_limits<A>::epsilon() / 2 * (1 + std::abs(b));
}

/// Whether `pair` is (x, y) rotated by so many quarter turns.
bool rotated(const float* pair, float x, float y, int quarters) {
  const float c[] = {1, 0, -1, 0};
  const float cos = c[quarters % 4], sin = c[(quarters + 3) % 4];
  return near(pair[0], x * cos - y * sin) && near(pair[1], y * cos + x * sin);
}

/// One pair that rotates by a quarter turn per position.
rope::frequencies quarter_turns() {
  return rope::frequencies::custom(Eigen::ArrayXd::Constant(1, std::acos(-1.0) / 2));
}

void check_frequencies() {
  const rope::frequencies f(4);
  check(f.pairs() == 2 && f.rotary_dim() == 4 && f.axes() == 1 && f.attention_factor() == 1,
        "extents of frequencies");
  check(f.inv_freq()(0, 0) == 1 && near(f.inv_freq()(1, 0), 0.01), "10000^(-2 i / 4)");
  check(rope::frequencies::constant(3).inv_freq()(2, 0) == 1, "constant frequencies");
  check(near(rope::frequencies::pixel(4).inv_freq()(1, 0), 5 * std::acos(-1.0)), "pixel frequencies");
}

void check_tables() {
  const rope::frequency_table<float> table(quarter_turns(), -2, 6);
  check(table.rows() == 8 && table.first() == -2 && table.last() == 6 && table.contains(5) &&
            !table.contains(6),
        "the positions of a table");
  check(near(table.cos(4)[0], 1.0f) && near(table.sin(-1)[0], -1.0f) && near(table.sin(5)[0], 1.0f),
        "entries of a table");
  const Eigen::ArrayXd coordinates = Eigen::ArrayXd::LinSpaced(3, 0, 1);
  const rope::frequency_table<double> halves(quarter_turns(), coordinates);
  check(near(halves.cos(1)[0], std::sqrt(0.5)), "a table of real coordinates");
  check(rope::phase_of(0.5) * 6 + -rope::phase_of(0.5) == rope::phase_of(0.5) * 5, "phases add up exactly");
}

void check_rotation() {
  const rope::frequency_table<float> table(quarter_turns(), 8);
  std::vector<float> x = {1, 2, 9, 1, 2, 9, 1, 2, 9, 1, 2, 9}, y(12);
  const auto view = rope::bshd(x.data(), 2, 2, 1, 3), out = rope::bshd(y.data(), 2, 2, 1, 3);
  rope::rotate_to<rope::interleaved>(view, out, table, 1);
  check(rotated(&y[0], 1, 2, 1) && rotated(&y[3], 1, 2, 2) && rotated(&y[6], 1, 2, 1),
        "rotation from a start");
  check(y[2] == 9 && y[11] == 9, "channels outside the rotary window are copied");
  const int ids[] = {3, 0, 2, 5}, starts[] = {4, 6}, offsets[] = {0, 1, 2};
  rope::rotate_to<rope::half_split>(view, out, table, std::span<const int>(ids));
  check(rotated(&y[0], 1, 2, 3) && y[3] == 1 && rotated(&y[6], 1, 2, 2) && rotated(&y[9], 1, 2, 5),
        "rotation by ids");
  rope::rotate_to<rope::half_split>(view, out, table, rope::row_starts<int>{starts});
  check(rotated(&y[3], 1, 2, 5) && rotated(&y[9], 1, 2, 7), "rotation by the starts of rows");
  rope::rotate_to<rope::half_split>(rope::thd(x.data(), 2, 1, 3), rope::thd(y.data(), 2, 1, 3), table,
                                    rope::segments<int>{offsets, starts});
  check(rotated(&y[0], 1, 2, 4) && rotated(&y[3], 1, 2, 6), "rotation by segments");
  rope::rotate<rope::interleaved>(view, table, 3);
  check(rotated(&x[0], 1, 2, 3), "rotation in place");
  rope::unrotate<rope::interleaved>(view, table, 3);
  check(near(x[0], 1.0f) && near(x[1], 2.0f) && near(x[3], 1.0f), "unrotate takes rotation back");
  check(view.channels(1, 2).at(1, 0, 0) == &x[7] &&
            view.token_range(1, 1).head_range(0, 1).at(0, 0, 0) == &x[3],
        "windows of a view");
}

void check_attention() {
  // Unrotated, the last query scores both keys equally. Rotated, its score is 1 with the key at its own
  // position and 0 with the one a quarter turn before.
  const rope::frequency_table<float> table(quarter_turns(), 2);
  const std::vector<float> q = {0, 0, 1, 0}, k = {1, 0, 1, 0}, v = {0, 1};
  std::vector<float> out(2, -1);
  const auto queries = rope::bshd(q.data(), 1, 2, 1, 2), keys = rope::bhsd(k.data(), 1, 1, 2, 2);
  const auto values = rope::sbhd(v.data(), 2, 1, 1, 1);
  const auto result = rope::thd(out.data(), 2, 1, 1);
  rope::attention<rope::interleaved>(queries, keys, values, result, table, {.scale = 1});
  check(out[0] == 0 && near(out[1], 1 / (1 + std::exp(-1.0f))), "attention with rotation");
  rope::attention(queries, keys, values, result, {.scale = 1});
  check(near(out[1], 0.5f), "attention without rotation");
  rope::attention(queries, keys, values, result, {.window = 1});
  check(out[0] == 0 && out[1] == 1, "attention in a window");
  rope::attention(queries, keys.token_range(0, 0), values.token_range(0, 0), result);
  check(out[0] == 0 && out[1] == 0, "a query without keys gives zeros");

  rope::attention(queries, keys, values, result, {.scale = 1});
  const std::vector<float> upstream = {0, 1};
  std::vector<float> d_q(4, -1), d_k(4, -1), d_v(2, -1);
  rope::attention_gradient(rope::attention_tape<float>{.q = queries,
                                                       .k = keys,
                                                       .v = values,
                                                       .out = result,
                                                       .d_out = rope::thd(upstream.data(), 2, 1, 1),
                                                       .d_q = rope::bshd(d_q.data(), 1, 2, 1, 2),
                                                       .d_k = rope::bhsd(d_k.data(), 1, 1, 2, 2),
                                                       .d_v = rope::thd(d_v.data(), 2, 1, 1)},
                           {.scale = 1});
  check(near(d_v[0], 0.5f) && near(d_v[1], 0.5f), "the gradient with respect to values");
  check(near(d_k[0], -0.25f) && d_k[1] == 0 && near(d_k[2], 0.25f), "the gradient with respect to keys");
  check(d_q[0] == 0 && std::abs(d_q[2]) < 1e-6f, "the gradient with respect to queries");
}

void check_cache() {
  const std::vector<float> k = {1, 2, 3}, v = {4, 5, 6};
  rope::kv_cache<float> cache(1, 3, 1, 1);
  cache.append(rope::thd(k.data(), 2, 1, 1), rope::thd(v.data(), 2, 1, 1));
  cache.truncate(1);
  cache.append(rope::thd(&k[2], 1, 1, 1), rope::thd(&v[2], 1, 1, 1));
  check(cache.size() == 2 && cache.capacity() == 3, "the size of a cache");
  check(*cache.keys().at(0, 0, 0) == 1 && *cache.keys().at(0, 1, 0) == 3 && *cache.values().at(0, 1, 0) == 6,
        "the tokens of a cache");
  cache.clear();
  check(cache.size() == 0, "a cleared cache is empty");
}

void check_bad_input() {
  const rope::frequency_table<float> table(rope::frequencies(4), 8);
  std::vector<float> memory(64);
  const auto x = rope::thd(memory.data(), 2, 3, 6), y = rope::thd(memory.data(), 2, 2, 6);
  rope::kv_cache<float> cache(1, 1, 3, 6);
  check_aborts(
      "std::out_of_range: rope::rotate: position 8 is outside the table's [0, 8), got positions 7 to 8 "
      "(start 7, 2 tokens); the table has 8 rows, make it with frequency_table(frequencies, 9)\n",
      [&] { rope::rotate<rope::interleaved>(x, table, 7); });
  check_aborts("std::invalid_argument: rope::attention: q.heads must be a multiple of k.heads, got 3 and 2\n",
               [&] { rope::attention(x, y, y, x); });
  check_aborts(
      "std::length_error: rope::kv_cache::append: 2 tokens do not fit into row 0, which holds 0 of 1; call "
      "reserve\n",
      [&] { cache.append(x, x); });
  check_aborts("std::out_of_range: rope::kv_cache::truncate: size must be in [0, 0], got 1\n",
               [&] { cache.truncate(1); });
  check_aborts("std::invalid_argument: rope::frequencies: rotary_dim must be even and positive, got 5\n",
               [] { rope::frequencies(5); });
  check_aborts("std::out_of_range: rope::head_view::channels: first 4 and count 3 must stay inside [0, 6)\n",
               [&] { x.channels(4, 3); });
}

}  // namespace

int main() {
  check_frequencies();
  check_tables();
  check_rotation();
  check_attention();
  check_cache();
  check_bad_input();
  return failures == 0 ? 0 : 1;
}
