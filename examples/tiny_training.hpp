// Trains a tiny_transformer: a text split into a training part and a held-out part, gradients of a batch on
// several threads, Adam.

#ifndef ROPE_EXAMPLES_TINY_TRAINING_HPP
#define ROPE_EXAMPLES_TINY_TRAINING_HPP

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <random>
#include <rope/rope.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tiny_transformer.hpp"

/// Makes threads for every loop, as the simplest rope::thread_source.
struct standard_threads {
  rope::Index count = 2;

  rope::Index threads() const { return count; }
  void parallel_for(rope::Index tasks, const auto& body) const {
    std::atomic<rope::Index> next{0};
    std::exception_ptr error;
    std::mutex guard;
    const auto work = [&] {
      try {
        for (rope::Index task = next++; task < tasks; task = next++) body(task);
      } catch (...) {
        const std::lock_guard lock(guard);
        error = std::current_exception();
      }
    };
    std::vector<std::thread> others;
    for (rope::Index i = 1; i < std::min(count, tasks); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (error) std::rethrow_exception(error);
  }
};
static_assert(rope::thread_source<standard_threads>);

/// Bytes of a text. Every sixth block is held out.
class divided_text {
 public:
  /// \param longest  sequence that is taken from it, in tokens. A block has twice as many
  ///
  /// Throws:  std::runtime_error if the text has fewer than six blocks
  divided_text(std::string_view text, rope::Index longest) : longest_(longest), block_(2 * longest) {
    for (const char c : text) ids_.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    if (size() < 6 * block_)
      throw std::runtime_error("the text must have 12 times the longest sequence, " +
                               std::to_string(6 * block_) + " bytes, got " + std::to_string(size()));
  }

  rope::Index size() const { return static_cast<rope::Index>(ids_.size()); }
  rope::Index held_out() const { return size() / (6 * block_) * block_; }

  /// Sequences of length + 1 bytes at random places of the training part.
  std::vector<std::span<const int>> batch(rope::Index count, rope::Index length,
                                          std::mt19937_64& generator) const {
    std::vector<std::span<const int>> all;
    while (static_cast<rope::Index>(all.size()) < count) {
      const auto first = static_cast<rope::Index>(generator() % static_cast<std::uint64_t>(size() - length));
      if (!is_held_out(first) && !is_held_out(first + length)) all.push_back(part(first, length + 1));
    }
    return all;
  }

  /// Up to `count` sequences of the held-out part, of `before` bytes and then `scored` bytes. The scored
  /// bytes do not depend on `before`, which is at most the longest sequence less `scored`.
  std::vector<std::span<const int>> spans(rope::Index count, rope::Index before, rope::Index scored) const {
    std::vector<rope::Index> starts;  // of the scored bytes
    for (rope::Index block = 5 * block_; block + block_ <= size(); block += 6 * block_)
      for (rope::Index at = block + longest_; at + scored <= block + block_; at += scored)
        starts.push_back(at);
    count = std::min(count, static_cast<rope::Index>(starts.size()));
    std::vector<std::span<const int>> all;
    for (rope::Index i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i) * starts.size() / static_cast<std::size_t>(count);
      all.push_back(part(starts[at] - before, before + scored));
    }
    return all;
  }

 private:
  bool is_held_out(rope::Index at) const { return at / block_ % 6 == 5; }
  std::span<const int> part(rope::Index first, rope::Index count) const {
    return std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }

  std::vector<int> ids_;
  rope::Index longest_, block_;
};

/// The mean loss of a byte in nats, over bytes [first + 1, ...) of every sequence.
template <class T>
double mean_loss(const tiny_transformer<T>& model, const std::vector<std::span<const int>>& sequences,
                 rope::Index first, const standard_threads& threads) {
  std::vector<double> losses(sequences.size());
  threads.parallel_for(static_cast<rope::Index>(sequences.size()), [&](rope::Index i) {
    const auto at = static_cast<std::size_t>(i);
    losses[at] = model.loss(sequences[at], first) /
                 static_cast<double>(static_cast<rope::Index>(sequences[at].size()) - 1 - first);
  });
  double sum = 0;
  for (const double loss : losses) sum += loss / static_cast<double>(losses.size());
  return sum;
}

/// Kingma and Ba 2014, arXiv:1412.6980, algorithm 1.
template <class T>
class adam {
 public:
  using vector = typename tiny_transformer<T>::vector;

  /// One step on a batch. Returns its mean loss. The gradients of sequences are computed separately and added
  /// in their order, so bits do not depend on the threads.
  double step(tiny_transformer<T>& model, const std::vector<std::span<const int>>& batch, double rate,
              const standard_threads& threads) {
    const rope::Index size = model.parameters().size();
    gradients_.resize(batch.size());
    std::vector<double> losses(batch.size());
    const auto tokens = static_cast<double>(batch.size() * (batch[0].size() - 1));
    threads.parallel_for(static_cast<rope::Index>(batch.size()), [&](rope::Index i) {
      const auto at = static_cast<std::size_t>(i);
      gradients_[at].setZero(size);
      losses[at] = model.add_gradient(batch[at], static_cast<T>(1 / tokens), gradients_[at]);
    });
    vector& gradient = gradients_[0];
    for (std::size_t i = 1; i < batch.size(); ++i) gradient += gradients_[i];
    const T length = gradient.matrix().norm();
    if (length > 1) gradient /= length;  // limits a rare large step

    if (steps_++ == 0) {
      mean_.setZero(size);
      square_.setZero(size);
    }
    mean_ += static_cast<T>(0.1) * (gradient - mean_);
    square_ += static_cast<T>(0.01) * (gradient.square() - square_);
    const auto unbiased = static_cast<T>(rate / (1 - std::pow(0.9, steps_))),
               scale = static_cast<T>(1 / (1 - std::pow(0.99, steps_)));
    model.parameters() -= unbiased * mean_ / ((scale * square_).sqrt() + static_cast<T>(1e-8));
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / tokens;
  }

 private:
  std::vector<vector> gradients_;
  vector mean_, square_;
  int steps_ = 0;
};

#endif  // ROPE_EXAMPLES_TINY_TRAINING_HPP
