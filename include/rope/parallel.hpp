// SPDX-License-Identifier: MIT
#ifndef ROPE_PARALLEL_HPP
#define ROPE_PARALLEL_HPP

#include <algorithm>  // std::min
#include <concepts>

#include <rope/config.hpp>

/// How a call uses more than one thread: the caller brings the threads, the library never makes one.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Stands for any body of a parallel loop when a concept asks whether a type can run one.
struct any_body {
  void operator()(Index /*piece*/) const {}
};
struct any_range_body {
  void operator()(Index /*first*/, Index /*last*/) const {}
};

}  // namespace detail

/// A caller's own threads: `threads()` says how many run at a time, and `parallel_for(count, body)` calls
/// body(i) once for every i in [0, count), in any order and on any thread, and returns when all are done.
///
///     struct openmp {
///       rope::Index threads() const { return omp_get_max_threads(); }
///       void parallel_for(rope::Index count, const auto& body) const {
///         #pragma omp parallel for
///         for (rope::Index i = 0; i < count; ++i) body(i);
///       }
///     };
template <class X>
concept thread_source = requires(const X& threads) {
  { threads.threads() } -> std::convertible_to<Index>;
  threads.parallel_for(Index{}, detail::any_body{});
};

/// What Eigen::ThreadPoolDevice looks like; it is used as it is.
template <class X>
concept eigen_thread_pool_device = requires(const X& device) {
  { device.numThreads() } -> std::convertible_to<Index>;
  device.parallelFor(Index{}, {0.0, 0.0, 0.0}, detail::any_range_body{});
};

/// Everything a `threads` parameter takes.
template <class X>
concept parallel_executor = thread_source<X> || eigen_thread_pool_device<X>;

/// The calling thread alone: what every call without a `threads` argument uses.
struct this_thread {
  Index threads() const { return 1; }
  void parallel_for(Index count, const auto& body) const {
    for (Index i = 0; i < count; ++i) body(i);
  }
};

namespace detail {

/// Calls body(first, last) on pieces that cover [0, count): one piece per thread, but none so small that
/// starting a thread costs more than it saves. Waking a thread takes about as long as streaming 256 KiB.
template <class Threads, class Body>
void parallel_pieces(const Threads& threads, Index count, Index bytes, const Body& body) {
  constexpr Index smallest_piece = Index{1} << 18;
  Index available = 1;
  if constexpr (thread_source<Threads>)
    available = threads.threads();
  else
    available = threads.numThreads();
  const Index pieces = (std::min)((std::min)(available, count), bytes / smallest_piece);
  if (pieces <= 1) {
    if (count > 0) body(Index{0}, count);
    return;
  }
  const auto run = [&](Index piece) { body(count * piece / pieces, count * (piece + 1) / pieces); };
  if constexpr (thread_source<Threads>) {
    threads.parallel_for(pieces, run);
  } else {
    const double bytes_per_piece = static_cast<double>(bytes) / static_cast<double>(pieces);
    threads.parallelFor(pieces, {bytes_per_piece, bytes_per_piece, bytes_per_piece},
                        [&run](Index first, Index last) {
                          for (Index piece = first; piece < last; ++piece) run(piece);
                        });
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_PARALLEL_HPP
