// SPDX-License-Identifier: MIT
#include "../../examples/tiny_training.hpp"

#include <atomic>
#include <cmath>
#include <random>
#include <rope/rope.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::Index;

/// 26 blocks of 16 bytes. The bytes of block n are n.
std::string numbered_blocks() {
  std::string text;
  for (char block = 0; block < 26; ++block) text.append(16, block);
  return text;
}

const tiny_shape shape = {
    .vocabulary = 26, .width = 16, .heads = 2, .hidden = 16, .context = 4, .longest = 8};

}  // namespace

TEST_CASE("no batch contains a byte of the held-out part, and held-out spans contain no other",
          "[examples][tiny_training]") {
  const divided_text text(numbered_blocks(), 8);
  CHECK(text.size() == 26 * 16);
  CHECK(text.held_out() == 4 * 16);
  std::mt19937_64 generator(1);
  std::set<int> seen, held;
  for (const Index length : {1, 4, 8})
    for (const auto& sequence : text.batch(500, length, generator)) {
      CHECK(static_cast<Index>(sequence.size()) == length + 1);
      seen.insert(sequence.begin(), sequence.end());
    }
  for (const auto& span : text.spans(100, 5, 4)) held.insert(span.begin(), span.end());
  CHECK(seen.size() == 22);
  CHECK(held == std::set<int>{5, 11, 17, 23});
  for (const int id : held) CHECK_FALSE(seen.contains(id));
}

TEST_CASE("longer sequences end with the same bytes", "[examples][tiny_training]") {
  std::string bytes;
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) bytes += static_cast<char>(random() % 100);
  const divided_text text(bytes, 8);
  const auto few = text.spans(3, 2, 2), many = text.spans(3, 6, 2);
  REQUIRE(few.size() == 3);
  REQUIRE(many.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(few[i].data() == many[i].data() + 4);
  CHECK(few[0].data() != few[1].data());
}

TEST_CASE("a text that is too short for a held-out part throws", "[examples][tiny_training]") {
  CHECK(testing::throws_saying<std::runtime_error>(
      [] { divided_text(std::string(95, 'a'), 8); },
      "the text must have 12 times the longest sequence, 96 bytes, "
      "got 95"));
}

TEST_CASE("every task runs once, and its exceptions arrive", "[examples][tiny_training]") {
  for (const Index count : {1, 2, 5}) {
    std::vector<std::atomic<int>> done(17);
    standard_threads{count}.parallel_for(17, [&](Index i) { ++done[static_cast<std::size_t>(i)]; });
    for (const auto& times : done) CHECK(times == 1);
    CHECK(testing::throws_saying<std::runtime_error>(
        [&] {
          standard_threads{count}.parallel_for(17, [](Index i) {
            if (i == 16) throw std::runtime_error("task 16");
          });
        },
        "task 16"));
  }
}

TEST_CASE("training learns, and gives the same bits on any number of threads", "[examples][tiny_training]") {
  const divided_text text(numbered_blocks(), 8);
  std::vector<tiny_transformer<float>> models;
  for (const Index count : {1, 2, 3}) {
    models.emplace_back(shape, 1);
    adam<float> optimiser;
    std::mt19937_64 generator(1);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      last = optimiser.step(models.back(), text.batch(4, 4, generator), 0.01, standard_threads{count});
      if (step == 0) first = last;
    }
    CHECK(std::abs(first - std::log(26.0)) < 0.5);
    CHECK(last < 0.5 * first);  // a byte equals the one before it, except at the ends of blocks
    CHECK((models.back().parameters() == models.front().parameters()).all());
  }
}

TEST_CASE("the first step of Adam moves every parameter by the rate", "[examples][tiny_training]") {
  const divided_text text(numbered_blocks(), 8);
  tiny_transformer<double> model(shape, 1);
  const auto before = model.parameters();
  std::mt19937_64 generator(1);
  const auto batch = text.batch(4, 4, generator);
  tiny_transformer<double>::vector d = tiny_transformer<double>::vector::Zero(before.size());
  for (const auto& sequence : batch) model.add_gradient(sequence, 1.0 / 16, d);
  adam<double>().step(model, batch, 0.01, standard_threads{1});
  const double length = std::max(1.0, d.matrix().norm());
  for (Index i = 0; i < before.size(); ++i) {
    const double g = d(i) / length;
    CHECK(std::abs(model.parameters()(i) - (before(i) - 0.01 * g / (std::abs(g) + 1e-8))) < 1e-12);
  }
}
