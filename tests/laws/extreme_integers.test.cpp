// SPDX-License-Identifier: MIT

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <rope/cache/kv_cache.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/positions/omni_positions.hpp>
#include <rope/positions/position_maps.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/fourier.hpp>
#include <rope/tables/xpos.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

// Every 64-bit integer that a caller passes is accepted or throws by a rule, and no intermediate sum
// overflows. A build of this file with -fsanitize=undefined tests the half of this law that results alone
// cannot show.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROPE_TEST_OWN_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ROPE_TEST_OWN_ALLOCATOR 1
#endif
#endif
#if !defined(ROPE_TEST_OWN_ALLOCATOR)
#define ROPE_TEST_OWN_ALLOCATOR 0
#endif

namespace {

/// The address and the thread sanitizer stop the program instead of throwing std::bad_alloc.
constexpr bool own_allocator = ROPE_TEST_OWN_ALLOCATOR == 1;

using namespace rope;
using ids = std::vector<std::int64_t>;
using limits = std::numeric_limits<std::int64_t>;

constexpr std::int64_t most = limits::max(), least = limits::min();
constexpr int samples = 1000;

/// Numbers near which sums, products and conversions overflow.
std::int64_t extreme(testing::random& random) {
  constexpr std::int64_t near[] = {least,
                                   -(std::int64_t{1} << 62),
                                   -(std::int64_t{1} << 53),
                                   -(std::int64_t{1} << 32),
                                   -(std::int64_t{1} << 31),
                                   0,
                                   std::int64_t{1} << 31,
                                   std::int64_t{1} << 32,
                                   std::int64_t{1} << 53,
                                   std::int64_t{1} << 62,
                                   most};
  const std::int64_t base = near[random.integer(0, std::size(near) - 1)], step = random.integer(-3, 3);
  return step > 0 && base > most - step ? most : step < 0 && base < least - step ? least : base + step;
}
std::int64_t small_or_extreme(testing::random& random) {
  return random.integer(0, 2) == 0 ? extreme(random) : random.integer(-2, 9);
}
Index extreme_index(testing::random& random) {
  constexpr Index largest = std::numeric_limits<Index>::max();
  const std::int64_t value = small_or_extreme(random);
  return value > largest ? largest : value < -largest ? -largest : static_cast<Index>(value);
}

/// Whether the call returns. Any of the documented errors is accepted, too.
template <class Call>
bool accepted(const Call& call) {
  try {
    call();
    return true;
  } catch (const std::invalid_argument&) {
  } catch (const std::out_of_range&) {
  } catch (const std::length_error&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

/// One token in a table of 8 rows that begins at `first`.
struct tokens_in_table {
  explicit tokens_in_table(std::int64_t first) : table(frequencies(2), first, first + 8) {}

  template <class P>
  bool rotates(const P& positions) {
    const bool rotated = accepted([&] { rotate<half_split>(bshd(x.data(), 2, 3, 1, 2), table, positions); });
    kv_cache<float> cache(2, 4, 1, 2);
    const auto heads = bshd(x.data(), 2, 3, 1, 2);
    const Index counts[] = {1, 3};
    accepted([&] { cache.append_at(heads, heads, positions); });
    accepted([&] { cache.append_at(heads, heads, positions, counts); });
    accepted([&] {
      scale_queries(
          heads, [](std::int64_t) { return 1.0; }, positions);
    });
    return rotated;
  }
  bool holds(std::int64_t start, std::int64_t count) const {
    return start >= table.first() && start <= table.last() - count;
  }

  frequency_table<float> table;
  std::vector<float> x = std::vector<float>(12, 1);
};

}  // namespace

TEST_CASE("extreme starts, rows and ids rotate exactly if the table contains them", "[library][extreme]") {
  const std::uint64_t seed = 41;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < samples; ++sample) {
    const std::int64_t first =
        std::array{std::int64_t{0}, std::int64_t{-4}, least, most - 8}[random.bits() % 4];
    tokens_in_table tokens(first);
    const auto draw = [&] {
      const std::int64_t step = random.integer(-2, 9);
      return random.integer(0, 1) == 0 ? extreme(random)
             : step >= 0               ? (first > most - step ? most : first + step)
                                       : (first < least - step ? least : first + step);
    };
    const ids list = {draw(), draw(), draw(), draw(), draw(), draw()};
    CAPTURE(sample, first, list);
    REQUIRE(tokens.rotates(list[0]) == tokens.holds(list[0], 3));
    const std::array starts = {list[0], list[1]};
    REQUIRE(tokens.rotates(row_starts<std::int64_t>{starts}) ==
            (tokens.holds(starts[0], 3) && tokens.holds(starts[1], 3)));
    bool all = true;
    for (const std::int64_t id : list) all = all && tokens.holds(id, 1);
    REQUIRE(tokens.rotates(list) == all);

    const auto wide = static_cast<std::uint64_t>(list[0]);
    REQUIRE(tokens.rotates(wide) == (list[0] >= 0 && tokens.holds(list[0], 3)));
    const std::vector<std::uint64_t> wide_list(6, wide);
    REQUIRE(tokens.rotates(wide_list) == (list[0] >= 0 && tokens.holds(list[0], 1)));
  }
}

TEST_CASE("extreme segments rotate exactly if they cover the tokens and the table contains them",
          "[library][extreme]") {
  const std::uint64_t seed = 42;
  CAPTURE(seed);
  testing::random random(seed);
  int rotated = 0;
  for (int sample = 0; sample < samples; ++sample) {
    const std::int64_t first = random.integer(0, 1) == 0 ? 0 : most - 8;
    tokens_in_table tokens(first);
    const auto offset = [&] { return random.integer(0, 3) == 0 ? extreme(random) : random.integer(0, 3); };
    const ids offsets = {random.integer(0, 7) == 0 ? offset() : 0, offset(), offset(),
                         random.integer(0, 7) == 0 ? offset() : 3};
    ids starts;
    for (int s = 0; s < 3; ++s)
      starts.push_back(random.integer(0, 3) == 0 ? extreme(random) : first + random.integer(0, 6));
    bool fits = offsets[0] == 0 && offsets[3] == 3;
    for (std::size_t s = 0; s < 3 && fits; ++s) {
      fits = offsets[s] <= offsets[s + 1] && offsets[s] >= 0;
      if (fits && offsets[s] < offsets[s + 1]) fits = tokens.holds(starts[s], offsets[s + 1] - offsets[s]);
    }
    CAPTURE(sample, first, offsets, starts);
    const bool result = tokens.rotates(segments<std::int64_t>{offsets, starts});
    REQUIRE(result == fits);
    rotated += result ? 1 : 0;
  }
  CHECK(rotated > samples / 50);
}

TEST_CASE("extreme position maps stay between 0 and the position", "[library][extreme]") {
  const std::uint64_t seed = 43;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < samples; ++sample) {
    const std::int64_t p = small_or_extreme(random), k = small_or_extreme(random);
    const std::int64_t a = small_or_extreme(random), b = small_or_extreme(random);
    CAPTURE(sample, p, k, a, b);
    const auto check = [&](const auto& rule) {
      accepted([&] { static_cast<void>(rule.query(p)); });
      accepted([&] { static_cast<void>(rule.key(k)); });
      // A grouped distance may be one longer than the plain one.
      std::int64_t distance = 0;
      if (accepted([&] { distance = rule.distance(p, k); }))
        REQUIRE((distance >= 0 && distance - 1 <= p - k));
      accepted([&] { key_positions(rule, p, k, 2); });
      accepted([&] { mapped_positions(p, 3, [&](std::int64_t x) { return rule.key(x); }); });
    };
    check(self_extend{a, b});
    check(rerope{a});
    check(dual_chunk{a, b});
    const dual_chunk rule{a, b};
    accepted([&] { static_cast<void>(rule.earlier()); });
    accepted([&] { static_cast<void>(rule.successive(p)); });
    accepted([&] { static_cast<void>(rule.successive_critical(p)); });
    accepted([&] { static_cast<void>(rule.earlier_critical(p)); });
    struct {
      std::int64_t value;
      std::int64_t distance(std::int64_t, std::int64_t) const { return value; }
    } const own{a};
    ids at;
    const bool valid = accepted([&] { at = key_positions(own, p, k, 1); });
    REQUIRE(valid == (k >= 0 && k <= p && (a >= 0 ? p >= least + a : p <= most + a)));
    if (valid) REQUIRE(at == ids{p - a});
  }
}

TEST_CASE("extreme grids, prompts and orders of tokens are accepted or throw", "[library][extreme]") {
  const std::uint64_t seed = 44;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < samples; ++sample) {
    const Index a = extreme_index(random), b = extreme_index(random), c = extreme_index(random);
    const std::int64_t first = extreme(random), second = extreme(random);
    CAPTURE(sample, a, b, c, first, second);
    // Larger extents depend on the memory of the machine and are not tested.
    const auto modest = [](Index x) { return x < 10; };
    if (modest(a) && modest(b) && modest(c)) {
      integer_coordinates grid(0, 2);
      accepted([&] { grid = grid_positions({a, b}, {first, second}); });
      for (Index r = 0; r < grid.rows(); ++r)
        REQUIRE((grid(r, 0) >= first && grid(r, 1) >= second && grid(r, 1) - second == r % b));
      accepted([&] { grid_ids({a, b}, {b, a}); });
      accepted([&] { patch_centers(a, b, patch_normalisation::separate); });
      accepted([&] { spatial_merge_order(a, b, c, 1); });
    }
    accepted([&] { grid_ids({std::min(a, Index{3}), 2}, {a, b}); });
    accepted([&] { spatial_merge_order(a, b, 0, c); });
    accepted([&] { spatial_merge_order(0, a, b, c); });
    accepted([&] { merged_patches(1, a, b, c); });
    accepted([&] { qwen_vl_positions({text_run{modest(a) ? a : -a}, vision_run{1, 2, 2}}, first); });
    accepted([&] { qwen_vl_positions({vision_run{modest(a) ? a : 0, b, modest(b) ? 2 : 0}}, second); });
    const vision_run no_frames = {0, b, c};
    accepted([&] { qwen2_5_omni_positions({no_frames, sounding_video_run{no_frames, 2}}, first); });
    accepted([&] { qwen3_omni_positions({no_frames, sounding_video_run{no_frames, 2}}); });
    accepted([&] { static_cast<void>(centered_first(a)); });
    const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic> nothing(std::max(a, Index{0}),
                                                                       Index{0});  // rows, but no memory
    accepted([&] { with_unrotated_tokens(nothing, b, c); });
    accepted([&] { stacked_rows(std::vector{nothing, nothing, nothing}); });
    if (modest(a) || modest(b) || modest(c)) accepted([&] { context_parallel_ids(modest(a) ? a : 8, b, c); });
  }
}

TEST_CASE("tables of extreme ranges contain the requested rows or throw", "[library][extreme]") {
  const std::uint64_t seed = 45;
  CAPTURE(seed);
  testing::random random(seed);
  const frequencies schedule(4);
  const Eigen::ArrayXXd mix = Eigen::ArrayXXd::Ones(2, 1);
  const xpos_growth growth{.center = 0, .scale_base = 512, .rates = Eigen::ArrayXd::Zero(2)};
  for (int sample = 0; sample < samples; ++sample) {
    const std::int64_t first = small_or_extreme(random), last = small_or_extreme(random);
    const auto distance = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    const bool narrow = last >= first && distance < 4096;
    const auto largest = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
    // Ranges between these depend on the memory of the machine and are not tested.
    if (last >= first && !narrow && distance <= largest && distance < std::uint64_t{1} << 44) continue;
    if (own_allocator && last >= first && !narrow) continue;
    CAPTURE(sample, first, last);
    const auto made = [&](const auto& make) {
      std::int64_t from = first, to = last;
      const bool returned = accepted([&] {
        const auto table = make();
        from = table.first(), to = table.last();
      });
      return returned && from == first && to == last;
    };
    REQUIRE(made([&] { return frequency_table<float>(schedule, first, last); }) == narrow);
    REQUIRE(made([&] { return frequency_table<float>::with_float_angles(schedule, first, last); }) == narrow);
    REQUIRE(made([&] { return xpos<float>(schedule, first, last, growth).queries(); }) == narrow);
    // Unsigned positions: 2^63 and more do not become the negative positions of a cast.
    const auto unsigned_first = static_cast<std::uint64_t>(first),
               unsigned_last = static_cast<std::uint64_t>(last);
    const bool representable = narrow && first >= 0 && last >= 0;
    if (first < 0 || last < 0 || narrow) {
      REQUIRE(made([&] { return frequency_table<float>(schedule, unsigned_first, unsigned_last); }) ==
              representable);
      REQUIRE(made([&] {
                return fourier_table<double>(schedule, mix, mix, 2, unsigned_first, unsigned_last);
              }) == representable);
      REQUIRE(made([&] { return xpos<float>(schedule, unsigned_first, unsigned_last, growth).queries(); }) ==
              representable);
    }
    REQUIRE(made([&] { return fourier_table<double>(schedule, mix, mix, 2, first, last); }) == narrow);
  }
}

TEST_CASE("tokens, rows, heads and channels are accepted if they exist, or throw", "[library][extreme]") {
  const std::uint64_t seed = 46;
  CAPTURE(seed);
  testing::random random(seed);
  const frequency_table<float> table(frequencies(4), -64, 64);
  std::vector<float> x(4 * 4 * 4 * 4, 1);
  const auto heads = bshd(x.data(), 4, 4, 4, 4);
  kv_cache<float> rotated(4, 8, 4, 4), raw(4, 8, 4, 4, 0, key_storage::raw);
  rotated.append<half_split>(heads, heads, table);
  raw.append(heads, heads);
  int taken = 0;
  for (int sample = 0; sample < samples; ++sample) {
    const Index first = extreme_index(random), count = extreme_index(random);
    const bool exist = first >= 0 && count >= 0 && first <= 4 && count <= 4 - first;
    CAPTURE(sample, first, count);
    taken += exist ? 1 : 0;
    REQUIRE(accepted([&] { heads.batch_range(first, count); }) == exist);
    REQUIRE(accepted([&] { heads.token_range(first, count); }) == exist);
    REQUIRE(accepted([&] { heads.head_range(first, count); }) == exist);
    REQUIRE(accepted([&] { heads.channels(first, count); }) == exist);
    REQUIRE(accepted([&] { rotated.shift<half_split>(first, count, 0, table); }) == exist);
    REQUIRE(accepted([&] { raw.shift(first, count, 0); }) == exist);
    REQUIRE(accepted([&] { kv_cache<float>(raw).remove(first, count); }) == exist);
  }
  CHECK(taken > 0);
  // A view without elements may have no memory, for any strides.
  const head_view<float> none{nullptr, 4, 0, 4, 4, 64, 16, 4};
  CHECK(none.batch_range(1, 2).data == nullptr);
  CHECK(none.head_range(1, 2).data == nullptr);
  CHECK(none.channels(1, 2).data == nullptr);
}
