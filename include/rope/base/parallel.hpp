// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_PARALLEL_HPP
#define ROPE_BASE_PARALLEL_HPP

#include <algorithm>  // std::min
#include <concepts>

#include <rope/config.hpp>

/// Threads of a call. The caller provides them, and the library never creates one.

namespace rope::inline ROPE_ABI {

/// A caller's own threads, with two const member functions. `threads()` returns how many run at a time.
/// `parallel_for(count, body)` calls body(i) once for every i in [0, count), in any order and on any thread,
/// and returns when all are done. While a thread waits in parallel_for, it must not run other work that calls
/// this library, because the scratch memory of the thread is in use. Some work-stealing pools would run such
/// work.
///
///     struct openmp {
///       rope::Index threads() const { return omp_get_max_threads(); }
///       void parallel_for(rope::Index count, const auto& body) const {
///         #pragma omp parallel for
///         for (rope::Index i = 0; i < count; ++i) body(i);
///       }
///     };
template <class X>
concept thread_source = requires(const X& threads, void (&body)(Index)) {
  { threads.threads() } -> std::convertible_to<Index>;
  threads.parallel_for(Index{}, body);
};

/// Eigen::ThreadPoolDevice, or a type with its interface. It is used without an adapter.
template <class X>
concept eigen_thread_pool_device = requires(const X& device, void (&body)(Index, Index)) {
  { device.numThreads() } -> std::convertible_to<Index>;
  device.parallelFor(Index{}, {0.0, 0.0, 0.0}, body);
};

/// The types that a `threads` parameter accepts.
template <class X>
concept parallel_executor = thread_source<X> || eigen_thread_pool_device<X>;

/// Runs everything on the calling thread. This is the default of every `threads` parameter.
///
///     rotate<half_split>(q, table, start, this_thread{});
struct this_thread {
  /// Returns 1.
  Index threads() const { return 1; }
  /// Calls body(0), body(1), ..., body(count - 1), in this order.
  void parallel_for(Index count, const auto& body) const {
    for (Index i = 0; i < count; ++i) body(i);
  }
};

namespace detail {

/// The number of the caller's threads.
template <class Threads>
Index available_threads(const Threads& threads) {
  if constexpr (thread_source<Threads>)
    return threads.threads();
  else
    return threads.numThreads();
}

/// The cost of a call, which is the product of extents. It is a double, because the number of operations may
/// exceed an Index.
template <class... Extent>
constexpr double cost_of(Extent... extents) {
  return (static_cast<double>(extents) * ...);
}

/// The first element of piece i of [0, count): floor(count i / pieces), even if count i exceeds an Index.
///
/// Requires:  i in [0, pieces], and an Index holds pieces^2
constexpr Index begin_of_piece(Index count, Index i, Index pieces) {
  return count / pieces * i + count % pieces * i / pieces;
}

/// Calls run(i) for i in [0, pieces) on the caller's threads. `cost` is the cost of one piece.
template <class Threads, class Run>
void run_pieces(const Threads& threads, Index pieces, double cost, const Run& run) {
  if constexpr (thread_source<Threads>) {
    threads.parallel_for(pieces, run);
  } else {
    threads.parallelFor(pieces, {cost, cost, cost}, [&run](Index first, Index last) {
      for (Index piece = first; piece < last; ++piece) run(piece);
    });
  }
}

/// Calls body(first, last) on pieces that cover [0, count). There is one piece per thread, or fewer if
/// starting a thread for such a small piece would cost more than it saves. Waking a thread takes about as
/// long as streaming 256 KiB.
template <class Threads, class Body>
void parallel_pieces(const Threads& threads, Index count, double bytes, const Body& body) {
  constexpr double smallest_piece = 1 << 18;
  const double most = static_cast<double>((std::min)(available_threads(threads), count));
  const auto pieces = static_cast<Index>((std::min)(most, bytes / smallest_piece));
  if (pieces <= 1) {
    if (count > 0) body(Index{0}, count);
    return;
  }
  run_pieces(threads, pieces, bytes / static_cast<double>(pieces), [&](Index piece) {
    body(begin_of_piece(count, piece, pieces), begin_of_piece(count, piece + 1, pieces));
  });
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_PARALLEL_HPP
