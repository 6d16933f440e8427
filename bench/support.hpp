// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_SUPPORT_HPP
#define ROPE_BENCH_SUPPORT_HPP

#include <benchmark/benchmark.h>

#include <rope/rope.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

/// Every case is timed beside the limit of the hardware, in one loop: the limit, then the case, again and
/// again, so that both see the same clock, caches and neighbours. The counters are of the medians over the
/// loop.

namespace bench {

using rope::Index;

/// Two threads. The second one spins for work for a while, so that waking it is not what is measured, and
/// sleeps through the cases of one thread, so that it does not slow them.
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

inline double seconds(const auto& work, Index calls) {
  const auto start = std::chrono::steady_clock::now();
  for (Index i = 0; i < calls; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(calls);
}

inline double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<Index>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What a case is timed beside: something that the hardware cannot do faster, or another call.
enum class beside { hardware, another_call };

/// Whether a limit was none: a program that measured one returns 1.
inline bool& refused() {
  static bool any = false;
  return any;
}

/// Refuses a limit that the case is more than 5 % faster than.
inline void check_limit(benchmark::State& state, double share, beside what) {
  if (what != beside::hardware || share <= 1.05) return;
  refused() = true;
  state.SkipWithError(("the case is " + std::to_string(share) + " times as fast as its limit").c_str());
}

/// Calls pair(), which returns the seconds of a limit and of a case, until the framework has timed the case for
/// long enough, and the limit has run for 20 ms in all.
inline void time_pairs(benchmark::State& state, const auto& pair) {
  double limit = 0;
  for (auto _ : state) {
    const auto [of_limit, of_case] = pair();
    limit += of_limit;
    state.SetIterationTime(of_case);
  }
  while (limit < 0.02) limit += pair().first;
}

/// Times `work` and `limit`, which both move `bytes`, in turn.
inline void beside_the_limit(benchmark::State& state, double bytes, const auto& limit, const auto& work,
                             beside what = beside::hardware) {
  // A timed interval lasts at least 20 us, a thousand times what reading the clock takes.
  const Index calls = std::max<Index>(1, static_cast<Index>(20e-6 / std::max(seconds(work, 1), 1e-9)));
  std::vector<double> limits, times;
  const auto pair = [&] {
    limits.push_back(seconds(limit, calls));
    times.push_back(seconds(work, calls));
    return std::pair(limits.back() * static_cast<double>(calls), times.back() * static_cast<double>(calls));
  };
  time_pairs(state, pair);
  double limit_time = median(limits), time = median(times);
  // Neighbours on the machine may slow one side down: what is faster than its limit is timed again.
  for (int again = 0; again < 3 && what == beside::hardware && limit_time > 1.05 * time; ++again) {
    limits.clear(), times.clear();
    for (double limit_seconds = 0; limit_seconds < 0.02; limit_seconds += pair().first) {
    }
    limit_time = median(limits), time = median(times);
  }
  check_limit(state, limit_time / time, what);
  state.counters["us"] = time * 1e6;
  state.counters["GB/s"] = bytes / time * 1e-9;
  state.counters["limit_GB/s"] = bytes / limit_time * 1e-9;
  state.counters["share"] = limit_time / time;
}

/// Parts of a buffer that calls take in turn, so that what is larger than a cache comes from memory. Calls that
/// take the same 64 MiB again find half of them in an L3 cache of 32 MiB, in four streams but not in one, and
/// these are then 1.3 times as fast, with two threads 2 times. (From memory 1.07; Zen 3.)
class parts_in_turn {
 public:
  parts_in_turn(Index size, Index bytes)
      : size_(size), count_(bytes < Index{1} << 24 ? 1 : std::max<Index>(1, (Index{1} << 28) / bytes)) {}

  Index count() const { return count_; }
  /// Elements of all parts, and of those before a part.
  Index size() const { return count_ * size_; }
  Index begin(Index part) const { return part * size_; }
  /// The part of a call.
  Index next() { return part_ = part_ + 1 < count_ ? part_ + 1 : 0; }

 private:
  Index size_, count_, part_ = 0;
};

/// x *= a on `count` channels: one read and one write of each, in the widest registers, on the given threads.
/// 16-bit channels are scaled as integers, which costs no conversion.
template <class T>
void scale_in_place(T* x, Index count, int threads) {
  const auto part = [&](Index piece, Index pieces) {
    const Index first = count * piece / pieces, size = count * (piece + 1) / pieces - first;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      // Four packets a step: in a loop of one, its own instructions take longer than an L1 cache does.
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

/// The same in four streams of each thread: some processors read memory faster so (1.07 to 1.25 times, Zen 3).
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

/// x *= a on every line of the cache that the channels [first, first + count) of the heads of each token
/// touch, in heads of whole lines: head after head.
inline void scale_lines(float* x, Index heads, Index head_dim, Index first, Index count) {
  constexpr Index line = 64 / Index(sizeof(float));
  using one_line = Eigen::Array<float, line, 1>;
  for (Index h = 0; h < heads; ++h) {
    const Index begin = (h * head_dim + first) / line * line, end = h * head_dim + first + count;
    for (Index at = begin; at < end; at += line) Eigen::Map<one_line>(x + at) *= 1.0000001f;
  }
}
/// The same, two lines of all heads of a token before the next two.
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

/// The faster one of two ways to do the same.
inline std::function<void()> faster_of(const std::function<void()>& one, const std::function<void()>& other) {
  std::vector<double> of_one, of_other;
  for (int n = 0; n < 7; ++n) {
    const Index calls = std::max<Index>(1, static_cast<Index>(2e-4 / std::max(seconds(one, 1), 1e-9)));
    of_one.push_back(seconds(one, calls));
    of_other.push_back(seconds(other, calls));
  }
  return median(of_one) < median(of_other) ? one : other;
}

/// Channels of either sign below 1/2, the same in every run.
inline rope::detail::storage<float> channels(Index size) {
  rope::detail::storage<float> x(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i * 7919 % 97) - 0.48f;
  return x;
}

/// As many independent chains of multiply-adds as hide their latency.
inline double multiply_adds(Index steps) {
  using P = rope::detail::packet<float>;
  constexpr int chains = 12;
  P sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = rope::detail::fill<P>(static_cast<float>(i));
  P factor = rope::detail::fill<P>(0.999f), term = rope::detail::fill<P>(0.001f);
  for (Index n = 0; n < steps; ++n) [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((sums[i] = rope::detail::in_register(rope::detail::multiply_add(sums[i], factor, term))), ...);
    }
  (std::make_index_sequence<std::size_t(chains)>{});
  P sum = sums[0];
  for (int i = 1; i < chains; ++i) sum = rope::detail::add(sum, sums[i]);
  benchmark::DoNotOptimize(sum);
  return static_cast<double>(steps) * 2 * chains * rope::detail::lanes<P>;
}

/// Reads `count` floats into eight sums: those of Eigen's sum() wait for each other longer than a cache takes (0.9
/// of this speed from a cache that cores share, 0.55 with SSE2; Zen 3).
inline void read(const float* x, Index count) {
  using P = rope::detail::packet<float>;
  constexpr Index lanes = rope::detail::lanes<P>, step = 8 * lanes;
  P sums[8];
  for (P& sum : sums) sum = rope::detail::fill<P>(0.0f);
  Index i = 0;
  for (; i + step <= count; i += step)
    for (Index n = 0; n < 8; ++n)
      sums[n] = rope::detail::add(sums[n], rope::detail::load<P>(x + i + n * lanes));
  for (P& sum : sums) benchmark::DoNotOptimize(sum);
  for (; i < count; ++i) benchmark::DoNotOptimize(x[i]);
}

/// Times `work` of so many flops in turn with multiply-adds on each thread, which take as long as the work, but
/// a millisecond at least and 20 at most: work of a second is then not repeated until the limit has its 20 ms.
inline void beside_peak(benchmark::State& state, double flops, int threads, const auto& work) {
  std::vector<double> peaks, times;
  const double of_step = seconds([] { multiply_adds(100000); }, 3) / 100000;
  const Index steps = static_cast<Index>(std::clamp(seconds(work, 1), 0.001, 0.02) / of_step);
  double peak_flops = 0;
  const auto pair = [&] {
    const auto limit = [&] {
      if (threads == 1)
        peak_flops = multiply_adds(steps);
      else
        pool().parallel_for(2, [&](Index) { multiply_adds(steps); });
    };
    if (threads == 2) peak_flops = 2 * multiply_adds(1) * static_cast<double>(steps);
    peaks.push_back(seconds(limit, 1));
    times.push_back(seconds(work, 1));
    return std::pair(peaks.back(), times.back());
  };
  time_pairs(state, pair);
  double peak = peak_flops / median(peaks), time = median(times);
  for (int again = 0; again < 3 && flops / time > 1.05 * peak; ++again) {  // as in beside_the_limit
    peaks.clear(), times.clear();
    for (int n = 0; n < 5; ++n) pair();
    peak = peak_flops / median(peaks), time = median(times);
  }
  check_limit(state, flops / time / peak, beside::hardware);
  state.counters["ms"] = time * 1e3;
  state.counters["GFLOP/s"] = flops / time * 1e-9;
  state.counters["peak"] = peak * 1e-9;
  state.counters["share"] = flops / time / peak;
}

/// What a reader of the results must know of the build and the machine.
inline void describe_run() {
  benchmark::AddCustomContext("eigen", std::to_string(EIGEN_WORLD_VERSION) + "." +
                                           std::to_string(EIGEN_MAJOR_VERSION) + "." +
                                           std::to_string(EIGEN_MINOR_VERSION));
  benchmark::AddCustomContext("compiler", ROPE_BENCH_COMPILER);
  benchmark::AddCustomContext("flags", ROPE_BENCH_FLAGS);
  benchmark::AddCustomContext("floats_in_a_packet",
                              std::to_string(rope::detail::lanes<rope::detail::packet<float>>));
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);)
    if (line.rfind("model name", 0) == 0) {
      benchmark::AddCustomContext("cpu", line.substr(line.find(':') + 2));
      break;
    }
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
