// SPDX-License-Identifier: MIT
#include <rope/base/number_array.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/rotation/rotate.hpp>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

/// The declarations of OpenMP: this program is compiled without it.
int omp_get_max_threads() { return 2; }

struct openmp {
  rope::Index threads() const { return omp_get_max_threads(); }
  void parallel_for(rope::Index count, const auto& body) const {
#pragma omp parallel for
    for (rope::Index i = 0; i < count; ++i) body(i);
  }
};

/// A pool with one thread per task.
struct tasks {
  std::vector<std::thread> running;
  template <class Task>
  void Schedule(const Task& task) {
    running.emplace_back(task);
  }
  ~tasks() {
    for (std::thread& thread : running) thread.join();
  }
};

}  // namespace

TEST_CASE("the example in the comment of owned_array works", "[base]") {
  const double shift = 3;
  owned_array<double> coordinates = grid_coordinates(evenly_spaced(8), evenly_spaced(8));
  coordinates.col(1) += shift;
  Eigen::ArrayXXd copy = coordinates;
  CHECK(copy.rows() == 64);
  CHECK(copy(0, 1) == copy(0, 0) + shift);
}

TEST_CASE("the example in the comment of wide_real works", "[base]") {
  const wide_real third = wide_real(1) / 3;
  const auto nearest = static_cast<double>(pow(third, 0.5));
  CHECK(nearest == 0x1.279a74590331cp-1);
}

TEST_CASE("the example in the comment of thread_source runs on threads of the user", "[base]") {
  std::vector<float> alone(2 * 300 * 4 * 128, 0.5f), shared = alone;
  const frequency_table table(frequencies(128), 300);
  rotate<half_split>(bshd(alone.data(), 2, 300, 4, 128), table);
  rotate<half_split>(bshd(shared.data(), 2, 300, 4, 128), table, 0, openmp{});
  CHECK(shared == alone);
}

TEST_CASE("the example in the comment of this_thread works", "[base]") {
  std::vector<float> x(3 * 2 * 8, 0.5f), same = x;
  const head_view<float> q = bshd(x.data(), 1, 3, 2, 8);
  const frequency_table table(frequencies(8), 10);
  const int start = 7;
  rotate<half_split>(q, table, start, this_thread{});
  rotate<half_split>(bshd(same.data(), 1, 3, 2, 8), table, start);
  CHECK(x == same);
}

// std::latch of GCC for MinGW may wait forever, also in a program without this library (see gradient_kernel.hpp).
#ifndef __MINGW32__
TEST_CASE("the example in the comment of release_scratch reaches every thread of a pool", "[base]") {
  const int pool_size = 3;
  tasks pool;
  const auto all = std::make_shared<std::latch>(pool_size + 1);
  for (int i = 0; i < pool_size; ++i)
    pool.Schedule([all] {
      rope::release_scratch();
      all->arrive_and_wait();
    });
  all->arrive_and_wait();
  CHECK(all->try_wait());
}
#endif

TEST_CASE("the example in the comment of number_array works", "[base]") {
  schedule axis = {.rotary_dim = 64, .base = 10000, .inv_freq = {}};
  axis.restart(10000);
  axis.inv_freq /= 2;
  axis.inv_freq(0) = 1;
  axis.inv_freq.map().bottomRows(8).setZero();  // any expression of Eigen
  CHECK(axis.inv_freq(0) == 1);
  CHECK(axis.inv_freq(23) > 0);
  CHECK(axis.inv_freq(24) == 0);
}
