// SPDX-License-Identifier: MIT
// Built with -fno-exceptions -fno-rtti: the library computes as usual, and bad input aborts with its message on stderr.

#include <csignal>
#include <cstdio>
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
  std::printf("FAILED: expected an abort with\n  %.*s\ngot status %d and\n  %s\n", static_cast<int>(message.size()),
              message.data(), status, text.c_str());
  ++failures;
}

}  // namespace

int main() {
  const rope::frequency_table<float> table(rope::frequencies(4), 8);

  std::vector<float> q = {1, 2, 3, 4, 5, 6};
  const auto view = rope::thd(q.data(), 1, 1, 6);
  rope::rotate<rope::interleaved>(view, table, 7);
  const float c = table.cos(7)[0], s = table.sin(7)[0];
  check(std::abs(q[0] - (c - 2 * s)) < 1e-6f && std::abs(q[1] - (2 * c + s)) < 1e-6f, "pair 0 turns by its angle");
  check(q[4] == 5 && q[5] == 6, "channels outside the rotary window are unchanged");

  check_aborts("std::out_of_range: rotate: position 8 is outside the table's [0, 8)\n",
               [&] { rope::rotate<rope::interleaved>(view, table, 8); });
  return failures == 0 ? 0 : 1;
}
