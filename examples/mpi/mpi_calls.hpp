#ifndef ROPE_EXAMPLES_MPI_CALLS_HPP
#define ROPE_EXAMPLES_MPI_CALLS_HPP

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The few calls of MPI in the programs of this folder. They count every sent byte. Any failure on one rank
/// ends the job on all ranks with a message.

namespace many {

/// Ends the job on all ranks. If a rank only returned or threw, the others would wait for it.
[[noreturn]] inline void end_job(const char* reason) {
  int initialized = 0, finalized = 0, rank = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  const bool running = initialized != 0 && finalized == 0;
  if (running) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "rank %d ends the job: %s\n", rank, reason);
  std::fflush(stderr);
  if (running) MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

namespace detail {

/// MPI calls this if one of its functions fails.
inline void on_mpi_error(MPI_Comm* /*comm*/, int* code, ...) {
  char text[MPI_MAX_ERROR_STRING] = "an error of MPI";
  int length = 0;
  MPI_Error_string(*code, text, &length);
  end_job(text);
}

[[noreturn]] inline void on_terminate() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      end_job(known.what());
    } catch (...) {
    }
  }
  end_job("std::terminate was called");
}

template <class T>
MPI_Datatype type_of() {
  if constexpr (std::is_same_v<T, float>)
    return MPI_FLOAT;
  else if constexpr (std::is_same_v<T, double>)
    return MPI_DOUBLE;
  else {
    static_assert(std::is_same_v<T, std::int64_t>, "type_of: name the type of MPI that T is");
    return MPI_INT64_T;
  }
}

/// MPI counts in int.
inline int count_of(std::size_t numbers) {
  if (numbers > static_cast<std::size_t>((std::numeric_limits<int>::max)()))
    throw std::length_error("a message has at most 2^31 - 1 numbers, got " + std::to_string(numbers) +
                            "; send it in parts");
  return static_cast<int>(numbers);
}

}  // namespace detail

/// The ranks of one mpirun. One object lives as long as main(). Exceptions leave main(), which ends the job.
class job {
 public:
  job(int* argc, char*** argv) {
    // Threads besides the one that calls MPI, for work while messages are sent.
    int provided = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_create_errhandler(&detail::on_mpi_error, &on_error_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, on_error_);
    std::set_terminate(&detail::on_terminate);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    if (provided < MPI_THREAD_FUNNELED) throw std::runtime_error("this MPI does not allow threads");
  }
  ~job() {
    MPI_Errhandler_free(&on_error_);
    MPI_Finalize();
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int right() const { return (rank_ + 1) % ranks_; }
  int left() const { return (rank_ + ranks_ - 1) % ranks_; }

  /// Bytes that this rank has sent to others since the last call. For a collective call, these are the bytes
  /// of its usual algorithm for long messages: a ring, or one message to every other rank.
  std::int64_t take_bytes_sent() { return std::exchange(bytes_sent_, 0); }
  void count_sent(std::size_t bytes, int receivers) {
    bytes_sent_ += static_cast<std::int64_t>(bytes) * receivers;
  }

  /// Starts both messages and returns at once. The memory belongs to MPI until wait() returns.
  template <class T>
  void start_send(const std::vector<T>& numbers, int to, int tag) {
    count_sent(numbers.size() * sizeof(T), 1);
    MPI_Isend(numbers.data(), detail::count_of(numbers.size()), detail::type_of<T>(), to, tag, MPI_COMM_WORLD,
              &pending_.emplace_back());
  }
  template <class T>
  void start_receive(std::vector<T>& numbers, int from, int tag) {
    MPI_Irecv(numbers.data(), detail::count_of(numbers.size()), detail::type_of<T>(), from, tag,
              MPI_COMM_WORLD, &pending_.emplace_back());
  }
  /// Waits until every started send and receive is complete.
  void wait() {
    MPI_Waitall(detail::count_of(pending_.size()), pending_.data(), MPI_STATUSES_IGNORE);
    pending_.clear();
  }

  /// The numbers of all ranks in the order of ranks. Rank r has counts[r] numbers.
  template <class T>
  std::vector<T> all_gather(std::span<const T> mine, const std::vector<int>& counts) {
    count_sent(mine.size() * sizeof(T), ranks_ - 1);
    const std::vector<int> starts = starts_of(counts);
    std::vector<T> all(static_cast<std::size_t>(starts.back()) + static_cast<std::size_t>(counts.back()));
    MPI_Allgatherv(mine.data(), counts[static_cast<std::size_t>(rank_)], detail::type_of<T>(), all.data(),
                   counts.data(), starts.data(), detail::type_of<T>(), MPI_COMM_WORLD);
    return all;
  }
  /// One number of each rank.
  template <class T>
  std::vector<T> all_gather(T mine) {
    return all_gather<T>(std::span<const T>(&mine, 1), std::vector<int>(static_cast<std::size_t>(ranks_), 1));
  }

  /// The numbers of rank 0.
  template <class T>
  std::vector<T> of_first(std::vector<T> numbers) const {
    MPI_Bcast(numbers.data(), detail::count_of(numbers.size()), detail::type_of<T>(), 0, MPI_COMM_WORLD);
    return numbers;
  }

  /// All ranks have parts for each other. Rank r receives the r-th part, counts[r] numbers, of every rank, in
  /// the order of ranks.
  template <class T>
  std::vector<T> all_to_all(std::span<const T> mine, const std::vector<int>& counts) {
    const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank_)]);
    count_sent((mine.size() - own) * sizeof(T), 1);
    const std::vector<int> starts = starts_of(counts),
                           own_counts(static_cast<std::size_t>(ranks_), static_cast<int>(own));
    std::vector<T> parts(static_cast<std::size_t>(ranks_) * own);
    MPI_Alltoallv(mine.data(), counts.data(), starts.data(), detail::type_of<T>(), parts.data(),
                  own_counts.data(), starts_of(own_counts).data(), detail::type_of<T>(), MPI_COMM_WORLD);
    return parts;
  }

 private:
  static std::vector<int> starts_of(const std::vector<int>& counts) {
    std::vector<int> starts(1, 0);
    for (std::size_t r = 0; r + 1 < counts.size(); ++r)
      starts.push_back(
          detail::count_of(static_cast<std::size_t>(starts[r]) + static_cast<std::size_t>(counts[r])));
    return starts;
  }

  MPI_Errhandler on_error_ = MPI_ERRHANDLER_NULL;
  int rank_ = 0, ranks_ = 1;
  std::int64_t bytes_sent_ = 0;
  std::vector<MPI_Request> pending_;
};

}  // namespace many

#endif  // ROPE_EXAMPLES_MPI_CALLS_HPP
