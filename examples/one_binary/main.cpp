// One program for many processors. A layer of attention is compiled for several instruction sets, and the
// program takes the fastest one that it can run. rope_add_instruction_sets of CMake compiles them and writes
// <rope_instruction_sets.hpp>. The output shows the cost and the gain of the choice.

#include "attention_layer.hpp"

#include <rope_instruction_sets.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <vector>

#define DECLARE(set, runs)   \
  namespace set {            \
  make_attention_layer make; \
  }
ROPE_FOR_EACH_INSTRUCTION_SET(DECLARE)
#undef DECLARE

namespace {

struct instruction_set {
  const char* name;
  bool runs;
  make_attention_layer* make;
};

#define ENTRY(set, runs) {#set, bool runs, set::make},
const instruction_set instruction_sets[] = {ROPE_FOR_EACH_INSTRUCTION_SET(ENTRY)};
#undef ENTRY

/// The fastest instruction set that this processor and system can run.
const instruction_set& best() {
  static const instruction_set& chosen =
      *std::find_if(std::begin(instruction_sets), std::end(instruction_sets),
                    [](const instruction_set& set) { return set.runs; });
  return chosen;
}

constexpr attention_layer::shape shape = {.heads = 32, .kv_heads = 8, .head_dim = 128, .capacity = 1100};
constexpr std::ptrdiff_t prompt = 1024, steps = 64, queries = shape.heads * shape.head_dim,
                         keys = shape.kv_heads * shape.head_dim;

std::vector<float> numbers(std::ptrdiff_t count, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& number : x) {
    seed = seed * 1664525u + 1013904223u;
    number = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return x;
}

struct run {
  std::vector<float> out;
  double prefill, step;  // milliseconds
};

/// A prompt, and tokens after it, through one layer.
run generate(const instruction_set& set) {
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point start) {
    return std::chrono::duration<double, std::milli>(clock::now() - start).count();
  };
  const std::unique_ptr<attention_layer> layer = set.make(shape);
  std::vector<float> q = numbers((prompt + steps) * queries, 1), out = q;
  const std::vector<float> k = numbers((prompt + steps) * keys, 2), v = numbers((prompt + steps) * keys, 3);
  run result = {};
  const auto attend = [&](std::ptrdiff_t first, std::ptrdiff_t tokens) {
    layer->attend(tokens, q.data() + first * queries, k.data() + first * keys, v.data() + first * keys,
                  out.data() + first * queries);
  };
  const auto start = clock::now();
  attend(0, prompt);
  result.prefill = since(start);
  const auto after_prompt = clock::now();
  for (std::ptrdiff_t t = prompt; t < prompt + steps; ++t) attend(t, 1);
  result.step = since(after_prompt) / steps;
  result.out = out;
  return result;
}

}  // namespace

int main() {
  std::printf("chosen here: %s\n", best().name);
  const run reference = generate(*std::prev(std::end(instruction_sets)));  // the baseline
  bool agree = true;
  for (const instruction_set& set : instruction_sets) {
    if (!set.runs) {
      std::printf("%-12s not run here\n", set.name);
      continue;
    }
    const run result = generate(set);
    float worst = 0;
    for (std::size_t i = 0; i < result.out.size(); ++i)
      if (const auto off = std::abs(result.out[i] - reference.out[i]); !(off <= worst))
        worst = off >= 0 ? off : INFINITY;  // a NaN counts as infinite
    // A mean of values below 1. Both sides have errors of a few roundings of 2^-24.
    agree = agree && worst <= 64 * 0x1p-24f;
    std::printf("%-12s prefill of 1024 tokens %7.1f ms, a token %7.3f ms, at most %.1e from the baseline\n",
                set.name, result.prefill, result.step, static_cast<double>(worst));
  }
  if (!agree) std::printf("the instruction sets do not agree\n");
  return agree ? 0 : 1;
}
