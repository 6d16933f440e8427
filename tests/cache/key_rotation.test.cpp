// SPDX-License-Identifier: MIT
#include <rope/cache/key_rotation.hpp>

#include <cstdint>
#include <cstring>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

/// Heads [1, 2, 1, 8] of ones.
struct two_tokens {
  std::vector<float> memory = std::vector<float>(16, 1.0f);
  head_view<const float> view = bshd(static_cast<const float*>(memory.data()), 1, 2, 1, 8);
};

template <class Layout, class Table>
key_rotation stored_by(const Table& table) {
  const two_tokens x;
  kv_cache<float> cache(1, 4, 1, 8);
  cache.append<Layout>(x.view, x.view, table);
  CHECK(cache.rotation() == cache.template rotation_by<Layout>(table));
  CHECK(cache.rotation().known());
  return cache.rotation();
}

/// The first channel with the last, the second with the last but one, ...: a layout that a user could write.
struct mirrored {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return 2 * pairs - 1 - i; }
};

const frequency_table<> keys_table(frequencies(8, 100.0), 90);

}  // namespace

TEST_CASE("a rotation consists of frequencies, factor, layout and first channel", "[cache]") {
  const key_rotation one = stored_by<half_split>(keys_table);
  CHECK(one == stored_by<half_split>(frequency_table<>(frequencies(8, 100.0), -9, 500)));
  CHECK(one == stored_by<half_split>(frequency_table<double>(frequencies(8, 100.0), 40)));
  CHECK(one != stored_by<interleaved>(keys_table));
  CHECK(one != stored_by<half_split>(frequency_table<>(frequencies(8, 101.0), 40)));
  CHECK(one != stored_by<half_split>(frequency_table<>(frequencies(6, 100.0), 40)));
  CHECK(one != stored_by<half_split>(frequency_table<>::with_float_angles(frequencies(8, 100.0), 0, 40)));
  const frequencies f(8, 100.0);
  CHECK(one != stored_by<half_split>(frequency_table<>(frequencies::custom(f.inv_freq(), 1.25), 40)));
  const frequency_table<> narrow(frequencies(4, 100.0), 40);
  CHECK(stored_by<half_split>(narrow.at_channel(0)) != stored_by<half_split>(narrow.at_channel(2)));
  CHECK(stored_by<half_split>(narrow) == stored_by<half_split>(narrow.at_channel(0)));
}

TEST_CASE("a rotation is four integers that are equal in every build", "[cache]") {
  static_assert(std::is_trivially_copyable_v<key_rotation> && sizeof(key_rotation) == 32 &&
                std::has_unique_object_representations_v<key_rotation>);
  const key_rotation one = stored_by<half_split>(keys_table);
  unsigned char bytes[sizeof one];
  std::memcpy(bytes, &one, sizeof one);
  key_rotation back;
  CHECK(back != one);
  std::memcpy(&back, bytes, sizeof one);
  CHECK(back == one);
  // splitmix64 over the bits of 1, 4, 1 and 100^(-i / 4), computed in Python. Saved files depend on it.
  CHECK(one.frequencies == 0xbcf6047d40acdb5a);
  CHECK(one.text == 0);
  CHECK(one.layout == 1);
  CHECK(one.first_channel == 0);
}

TEST_CASE("keys that are raw, rotated by the caller or absent have unknown rotation", "[cache]") {
  const two_tokens x;
  kv_cache<float> raw(1, 4, 1, 8, 0, key_storage::raw), given(1, 4, 1, 8), cleared(1, 4, 1, 8);
  raw.append(x.view, x.view);
  given.append(x.view, x.view);
  cleared.append<half_split>(x.view, x.view, keys_table);
  CHECK(cleared.rotation().known());
  cleared.clear();
  for (const kv_cache<float>* cache : {&raw, &given, &cleared}) {
    CHECK(cache->rotation() == key_rotation{});
    CHECK_FALSE(cache->rotation().known());
  }
  const ring_cache<float> ring(1, {.sinks = 0, .window = 4}, 1, 8);
  CHECK(ring.rotation() == key_rotation{});
  CHECK(ring.rotation_by<half_split>(keys_table) == stored_by<half_split>(keys_table));
}

TEST_CASE("the rotation of a cache follows a change of schedule", "[cache]") {
  const two_tokens x;
  const frequency_table<> longer(frequencies(8, 100.0, linear_scaling{.factor = 2}), 40);
  kv_cache<float> cache(1, 4, 1, 8);
  cache.append<half_split>(x.view, x.view, keys_table);
  cache.rebase<half_split>(keys_table, longer);
  CHECK(cache.rotation() == stored_by<half_split>(longer));
}

TEST_CASE("the rotation of latents begins after the latent", "[cache]") {
  const latent_cache<float> cache(1, 4, 6, 8);
  const key_rotation rotation = cache.rotation_by<half_split>(keys_table);
  CHECK(rotation.first_channel == 6);
  CHECK(rotation == cache.rotation_by<half_split>(keys_table.at_channel(6)));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { static_cast<void>(cache.rotation_by<half_split>(keys_table.at_channel(5))); },
      "latent_cache::rotation_by", "from channel 6 on", "from channel 5 on"));
}

TEST_CASE("the rotation of a cache with axes does not depend on coordinates", "[cache]") {
  const frequencies f = on_axes(frequencies(8, 100.0), contiguous_sections({2, 1, 1}));
  const auto at = [&](int first) {
    Eigen::ArrayXXi coordinates(2, 3);
    coordinates << first, first + 1, 7, first + 5, 2, 3;
    return frequency_table<>(f, coordinates);
  };
  const two_tokens x;
  kv_cache<float> cache(1, 8, 1, 8, token_axes{3});
  cache.append<half_split>(x.view, x.view, at(0));
  const key_rotation one = cache.rotation();
  CHECK(at(0).fingerprint() != at(40).fingerprint());
  CHECK(one == cache.rotation_by<half_split>(at(40)));
  CHECK(one != cache.rotation_by<interleaved>(at(40)));
  cache.append<half_split>(x.view, x.view, at(40));
  CHECK(cache.rotation() == one);

  // Text needs a table of positions only, which has the angles of text.
  const key_rotation text = cache.rotation_by<half_split>(keys_table);
  CHECK(text.frequencies == 0);
  CHECK(text.text == one.text);
  CHECK(text.known());
  cache.append<half_split>(x.view, x.view, keys_table);
  CHECK(cache.rotation() == one);
  cache.clear();
  cache.append<half_split>(x.view, x.view, keys_table);
  CHECK(cache.rotation() == text);

  Eigen::ArrayXXi plane = Eigen::ArrayXXi::Zero(2, 2);
  const frequency_table<> flat(axial(frequencies(4, 100.0), 2), plane);
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(cache.rotation_by<half_split>(flat)); },
                                             "kv_cache::rotation_by", "3 axes", "coordinates of 2"));
}

TEST_CASE("layouts differ from two pairs on, by the channels that they pair", "[cache]") {
  using rope::detail::layout_fingerprint;
  CHECK(layout_fingerprint<rope::interleaved>(1) == layout_fingerprint<rope::half_split>(1));
  CHECK(layout_fingerprint<mirrored>(1) == layout_fingerprint<rope::half_split>(1));
  for (const Index pairs : {2, 3, 64}) {
    CAPTURE(pairs);
    CHECK(layout_fingerprint<rope::interleaved>(pairs) != layout_fingerprint<rope::half_split>(pairs));
    CHECK(layout_fingerprint<mirrored>(pairs) != layout_fingerprint<rope::half_split>(pairs));
    CHECK(layout_fingerprint<mirrored>(pairs) != layout_fingerprint<rope::interleaved>(pairs));
    CHECK(layout_fingerprint<mirrored>(pairs) == layout_fingerprint<mirrored>(pairs));
  }
}
