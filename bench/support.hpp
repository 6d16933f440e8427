// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_SUPPORT_HPP
#define ROPE_BENCH_SUPPORT_HPP

#include <rope/rope.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

/// Rows of speed. A row times a call and the code it is compared with. Each runs once in every round, so both
/// see the same clock, caches and other programs. The smallest time of each counts.

namespace bench {

using rope::Index;

/// Makes the compiler compute `x` and write all memory.
inline void keep(const auto& x) { asm volatile("" : : "m"(x) : "memory"); }

/// Two threads. The second one spins for a while when it waits for work, so that the time to wake it is not
/// measured. It sleeps while cases of one thread run, so that it does not slow them.
class two_threads {
 public:
  two_threads() : helper_([this] { help(); }) {}
  ~two_threads() {
    work_ = nullptr;
    ticket_.fetch_add(1, std::memory_order_release);
    ticket_.notify_one();
    helper_.join();
  }
  Index threads() const { return 2; }
  template <class Body>
  void parallel_for(Index count, const Body& body) const {
    work_ = [&] {
      for (Index i = 1; i < count; i += 2) body(i);
    };
    ticket_.fetch_add(1, std::memory_order_release);
    ticket_.notify_one();
    for (Index i = 0; i < count; i += 2) body(i);
    while (done_.load(std::memory_order_acquire) != ticket_.load(std::memory_order_relaxed)) {
    }
  }

 private:
  void help() {
    for (unsigned seen = 0;;) {
      for (int spins = 0; ticket_.load(std::memory_order_acquire) == seen; ++spins)
        if (spins == 1 << 16) ticket_.wait(seen, std::memory_order_acquire);
      ++seen;
      if (!work_) return;
      work_();
      done_.store(seen, std::memory_order_release);
    }
  }
  mutable std::function<void()> work_;
  mutable std::atomic<unsigned> ticket_{0};
  mutable std::atomic<unsigned> done_{0};
  std::thread helper_;
};

inline two_threads& pool() {
  static two_threads threads;
  return threads;
}

/// Processor time of this thread in seconds. Unlike a wall clock it stops while other programs have the
/// processor. Waiting for a thread of `pool` counts, because it spins.
inline double thread_time() {
  std::timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds per call, for this number of calls.
inline double seconds(const auto& work, Index calls) {
  const double start = thread_time();
  for (Index i = 0; i < calls; ++i) work();
  return (thread_time() - start) / static_cast<double>(calls);
}

/// A timed call. Its time is multiplied by `scale` if it does more or less work than a case.
struct way {
  std::function<void()> work;
  double scale = 1;
};

/// The other code of a comparison: the fastest of several variants, or the slowest for a limit that is the
/// larger of two.
struct yardstick {
  std::string name;
  std::vector<way> ways;
  bool is_slowest = false;
};

/// Compares a case with yardsticks.
class row {
 public:
  /// Prints the row as a line of JSON: the nanoseconds of the case, and for each yardstick [ratio, low,
  /// high]. A ratio is yardstick divided by case, for the smallest times in three
  /// passes of rounds. low and high are the range of the three passes. If a range is wider than 10 %, all
  /// passes are repeated once, with four times the rounds.
  void time(const way& work, const std::vector<yardstick>& yardsticks);

  std::string name, group;
  /// Additional numbers of the row.
  std::vector<std::pair<std::string, double>> numbers = {};
};

inline void row::time(const way& work, const std::vector<yardstick>& yardsticks) {
  std::vector<way> ways = {work};
  for (const yardstick& one : yardsticks) ways.insert(ways.end(), one.ways.begin(), one.ways.end());
  // A timed interval lasts at least 50 us, over a hundred times as long as reading the clock.
  std::vector<Index> calls(ways.size(), 1);
  double round = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ways[i].work();
    double interval;
    while ((interval = seconds(ways[i].work, calls[i]) * static_cast<double>(calls[i])) < 50e-6)
      calls[i] *= 2;
    round += interval;
  }
  const int rounds = std::clamp(static_cast<int>(0.03 / round), round < 0.3 ? 3 : 1, 60);

  std::vector<double> smallest(ways.size()), of_pass;
  // Ratios of the smallest times of all variants: yardstick divided by case.
  const auto ratio = [&](const std::vector<double>& times, std::size_t stick) {
    std::size_t first = 1;
    for (std::size_t i = 0; i < stick; ++i) first += yardsticks[i].ways.size();
    const auto begin = times.begin() + static_cast<std::ptrdiff_t>(first),
               end = begin + static_cast<std::ptrdiff_t>(yardsticks[stick].ways.size());
    return (yardsticks[stick].is_slowest ? *std::max_element(begin, end) : *std::min_element(begin, end)) /
           times[0];
  };
  struct range {
    double low = 1e300, high = 0;
  };
  std::vector<range> ranges;
  for (int attempt = 0; attempt < 2; ++attempt) {
    ranges.assign(yardsticks.size(), {});
    smallest.assign(ways.size(), 1e300);
    for (int pass = 0; pass < 3; ++pass) {
      of_pass.assign(ways.size(), 1e300);
      for (int n = 0; n < (attempt == 0 || rounds == 1 ? rounds : 4 * rounds); ++n)
        for (std::size_t i = 0; i < ways.size(); ++i)
          of_pass[i] = std::min(of_pass[i], ways[i].scale * seconds(ways[i].work, calls[i]));
      for (std::size_t i = 0; i < ways.size(); ++i) smallest[i] = std::min(smallest[i], of_pass[i]);
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        ranges[i].low = std::min(ranges[i].low, ratio(of_pass, i));
        ranges[i].high = std::max(ranges[i].high, ratio(of_pass, i));
      }
    }
    if (std::all_of(ranges.begin(), ranges.end(), [](range r) { return r.high <= 1.1 * r.low; })) break;
  }
  std::printf("{\"name\": \"%s\", \"group\": \"%s\", \"ns\": %.5g, \"beside\": {", name.c_str(),
              group.c_str(), smallest[0] * 1e9);
  for (std::size_t i = 0; i < yardsticks.size(); ++i)
    std::printf("%s\"%s\": [%.4g, %.4g, %.4g]", i == 0 ? "" : ", ", yardsticks[i].name.c_str(),
                ratio(smallest, i), ranges[i].low, ranges[i].high);
  std::printf("}");
  for (const auto& [what, number] : numbers) std::printf(", \"%s\": %.5g", what.c_str(), number);
  std::printf("}\n");
  std::fflush(stdout);
}

struct entry {
  std::string group, name;
  std::function<void(row&)> body;
};

inline std::vector<entry>& entries() {
  static std::vector<entry> all;
  return all;
}

/// Adds a row to the program. The page shows the worst row of each group.
inline void add(const std::string& group, const std::string& name, const std::function<void(row&)>& body) {
  entries().push_back({group, name, body});
}

/// Runs the rows whose names match the regular expression argv[1], or all. Prints a line of JSON about the
/// build and the machine, and one for each row.
inline int run(int argc, char** argv) {
  std::string cpu = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
#ifdef __clang__
  const std::string compiler = "clang " + std::to_string(__clang_major__);
#else
  const std::string compiler = "g++ " + std::to_string(__GNUC__);
#endif
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof(date), "%F", std::gmtime(&now));
  std::printf(
      "{\"cpu\": \"%s\", \"cores\": %u, \"compiler\": \"%s\", \"flags\": \"%s\", \"eigen\": \"%d.%d.%d\", "
      "\"floats_in_a_packet\": %d, \"date\": \"%s\"}\n",
      cpu.c_str(), std::thread::hardware_concurrency(), compiler.c_str(), ROPE_BENCH_FLAGS,
      EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION,
      static_cast<int>(rope::detail::lanes<rope::detail::packet<float>>), date);
  const std::regex wanted(argc > 1 ? argv[1] : "");
  for (const entry& one : entries())
    if (std::regex_search(one.name, wanted)) {
      row of{one.name, one.group};
      one.body(of);
    }
  return 0;
}

/// Parts of a buffer for successive calls, so that data larger than the caches is read from memory. Calls
/// that use the same 64 MiB again find half of them in an L3 cache of 32 MiB, in four streams but not in one.
/// These are then 1.3 times as fast, or 2 times on two threads. (From memory 1.07; Zen 3.)
class successive_parts {
 public:
  successive_parts(Index size, Index bytes)
      : size_(size), count_(bytes < Index{1} << 24 ? 1 : std::max<Index>(1, (Index{1} << 28) / bytes)) {}

  Index count() const { return count_; }
  /// The number of elements in all parts, and in those before a part.
  Index size() const { return count_ * size_; }
  Index begin(Index part) const { return part * size_; }
  /// The part for a call.
  Index next() { return part_ = part_ + 1 < count_ ? part_ + 1 : 0; }

 private:
  Index size_, count_, part_ = 0;
};

/// x *= a on `count` channels, on the given threads: reads and writes each once, in the widest registers.
/// 16-bit channels are scaled as integers, which needs no conversion.
template <class T>
void scale_in_place(T* x, Index count, int threads) {
  const auto part = [&](Index piece, Index pieces) {
    const Index first = count * piece / pieces, size = count * (piece + 1) / pieces - first;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      // Four packets per step: in a loop over single packets, loop instructions take longer than an L1 cache.
      using P = rope::detail::packet<T>;
      constexpr Index lanes = rope::detail::lanes<P>;
      const P factor = rope::detail::fill<P>(T(1.0000001));
      Index i = first;
      for (; i + 4 * lanes <= first + size; i += 4 * lanes)
        for (Index n = 0; n < 4 * lanes; n += lanes)
          rope::detail::store(x + i + n, rope::detail::multiply(rope::detail::load<P>(x + i + n), factor));
      for (; i < first + size; ++i) x[i] *= T(1.0000001);
    } else {
      auto* bits = reinterpret_cast<unsigned short*>(x) + first;
      for (Index i = 0; i < size; ++i) bits[i] = static_cast<unsigned short>(bits[i] ^ 1u);
    }
  };
  if (threads == 1)
    part(0, 1);
  else
    pool().parallel_for(2, [&](Index piece) { part(piece, 2); });
}

/// An in-place scale in four streams of each thread, because some processors then read memory faster (1.07 to
/// 1.25 times, Zen 3).
template <class T>
void scale_in_four_streams(T* x, Index count, int threads) {
  if (threads == 2) {
    const Index half = count / 2;
    return pool().parallel_for(
        2, [&](Index part) { scale_in_four_streams(x + part * half, part == 0 ? half : count - half, 1); });
  }
  constexpr Index line = 64 / Index(sizeof(T));
  using one_line = Eigen::Array<std::conditional_t<sizeof(T) == 2, unsigned short, T>, line, 1>;
  const Index quarter = count / 4 / line * line;
  for (Index i = 0; i < quarter; i += line)
    for (Index stream = 0; stream < 4; ++stream) {
      Eigen::Map<one_line> part(reinterpret_cast<typename one_line::Scalar*>(x + stream * quarter + i));
      if constexpr (sizeof(T) == 2)
        part += static_cast<unsigned short>(1);
      else
        part *= T(1.0000001f);
    }
  scale_in_place(x + 4 * quarter, count - 4 * quarter, 1);
}

/// x *= a on every cache line with channels [first, first + count) of the heads of each token, one head after
/// another. Heads begin with a cache line.
inline void scale_lines(float* x, Index heads, Index head_dim, Index first, Index count) {
  constexpr Index line = 64 / Index(sizeof(float));
  using one_line = Eigen::Array<float, line, 1>;
  for (Index h = 0; h < heads; ++h) {
    const Index begin = (h * head_dim + first) / line * line, end = h * head_dim + first + count;
    for (Index at = begin; at < end; at += line) Eigen::Map<one_line>(x + at) *= 1.0000001f;
  }
}
/// Scales two cache lines of all heads of a token before the next two.
inline void scale_lines_of_tokens(float* x, Index tokens, Index heads, Index head_dim, Index first,
                                  Index count) {
  constexpr Index line = 64 / Index(sizeof(float));
  const auto scale = [=](Index at, auto lines) {
    using P = rope::detail::packet<float>;
    const P factor = rope::detail::fill<P>(1.0000001f);
    for (Index h = 0; h < heads; ++h) {
      float* part = x + at + h * head_dim;
      for (Index i = 0; i < lines() * line; i += rope::detail::lanes<P>)
        rope::detail::store(part + i, rope::detail::multiply(rope::detail::load<P>(part + i), factor));
    }
  };
  const Index begin = first / line * line, end = first + count;
  for (Index t = 0; t < tokens; ++t)
    for (Index at = begin; at < end; at += 2 * line)
      if (const Index place = t * heads * head_dim + at; at + line < end)
        scale(place, std::integral_constant<Index, 2>());
      else
        scale(place, std::integral_constant<Index, 1>());
}

/// Channels between -1/2 and 1/2, the same in every run.
inline rope::number_array<float> channels(Index size) {
  rope::number_array<float> x(size);
  for (Index i = 0; i < size; ++i) x(i) = 0.01f * static_cast<float>(i * 7919 % 97) - 0.48f;
  return x;
}

/// Enough independent chains of multiply-adds to hide their latency. Returns their flops.
inline double multiply_adds(Index steps) {
  using P = rope::detail::packet<float>;
  constexpr int chains = 12;
  P sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = rope::detail::fill<P>(static_cast<float>(i));
  const P factor = rope::detail::fill<P>(0.999f), term = rope::detail::fill<P>(0.001f);
  // Always inlined: with -O2 g++ would call it, and keep the sums in memory.
  const auto step = [&]<std::size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    ((sums[i] = rope::detail::in_register(rope::detail::multiply_add(sums[i], factor, term))), ...);
  };
  for (Index n = 0; n < steps; ++n) step(std::make_index_sequence<std::size_t(chains)>{});
  P sum = sums[0];
  for (int i = 1; i < chains; ++i) sum = rope::detail::add(sum, sums[i]);
  keep(sum);
  return static_cast<double>(steps) * 2 * chains * rope::detail::lanes<P>;
}

/// Reads `count` floats into eight sums. Eigen's sum() has fewer, which wait for each other longer than a
/// cache takes (0.9 of this speed from a shared cache, 0.55 with SSE2; Zen 3).
inline void read(const float* x, Index count) {
  using P = rope::detail::packet<float>;
  constexpr Index lanes = rope::detail::lanes<P>, step = 8 * lanes;
  P sums[8];
  for (P& sum : sums) sum = rope::detail::fill<P>(0.0f);
  const auto add = [&]<std::size_t... n>(const float* from, std::index_sequence<n...>)
      __attribute__((always_inline)) {
    ((sums[n] = rope::detail::add(sums[n], rope::detail::load<P>(from + Index(n) * lanes))), ...);
  };
  Index i = 0;
  for (; i + step <= count; i += step) add(x + i, std::make_index_sequence<8>{});
  for (int n = 1; n < 8; ++n) sums[0] = rope::detail::add(sums[0], sums[n]);
  keep(sums[0]);
  for (; i < count; ++i) keep(x[i]);
}

/// Multiply-adds at peak, the share of `flops` of each of `threads` threads. They run for at most a
/// millisecond, scaled to all. One thread runs them, and the others are assumed to be as fast.
inline way peak(double flops, int threads = 1) {
  static const double of_step = [] {
    multiply_adds(100000);
    return seconds([] { multiply_adds(100000); }, 3) / 100000;
  }();
  const double of_thread = flops / threads / multiply_adds(1);
  const Index steps = static_cast<Index>(std::clamp(of_thread, 1.0, 0.001 / of_step));
  return {[=] { multiply_adds(steps); }, of_thread / static_cast<double>(steps)};
}

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, float>)
    return "float";
  else if constexpr (std::is_same_v<T, double>)
    return "double";
  else if constexpr (std::is_same_v<T, Eigen::half>)
    return "half";
  else
    return "bfloat16";
}

template <class Layout>
constexpr const char* layout_name() {
  return std::is_same_v<Layout, rope::interleaved> ? "interleaved" : "half_split";
}

}  // namespace bench

#endif  // ROPE_BENCH_SUPPORT_HPP
