// SPDX-License-Identifier: MIT
// A table placed in the head rotates the channels that it names, with the bits of the same call on
// x.channels(first, rotary_dim). Other channels do not change, and are copied if the call is out of place.
#include <rope/rotation/angle_gradient.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/pope.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>

#include <cstdint>
#include <limits>
#include <rope/frequencies/axes.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index head_dim = 23, rotary_dim = 8;
constexpr Index places[] = {0, 1, 6, head_dim - rotary_dim};

template <class T>
testing::tensor<T> drawn() {
  return testing::random_tensor<T>(2, 5, 3, head_dim, 77);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a placed table rotates its channels and nothing else", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const auto position_scaled = frequencies::custom(frequencies(rotary_dim, 50.0).inv_freq(), 1.25);
  const frequency_table<S> table(position_scaled, -3, 30);
  const std::vector<int> starts = {0, 9};  // position 0 with a magnitude, and without: an identity
  const frequency_table<S> plain(frequencies(rotary_dim, 50.0), -3, 30);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const auto* t : {&table, &plain})
      for (const Index first : places) {
        CAPTURE(testing::name_of<Layout>, first, t == &plain);
        const auto before = drawn<T>();
        auto windowed = before, got = before, out = before;
        rotate<Layout>(view(windowed).channels(first, rotary_dim), *t, row_starts{starts});
        rotate<Layout>(view(got), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(got, windowed));
        CHECK_FALSE(same_bits(got, before));
        std::fill(out.values.begin(), out.values.end(), static_cast<T>(-99));
        rotate_to<Layout>(view(before), view(out), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(out, windowed));

        auto unrotated = windowed, windowed_back = windowed;
        unrotate<Layout>(view(windowed_back).channels(first, rotary_dim), *t, row_starts{starts});
        unrotate<Layout>(view(unrotated), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(unrotated, windowed_back));
        unrotate_to<Layout>(view(windowed), view(out), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(out, windowed_back));

        auto gradient = before, windowed_gradient = before;
        rotate_gradient<Layout>(view(windowed_gradient).channels(first, rotary_dim), *t, row_starts{starts});
        rotate_gradient<Layout>(view(gradient), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(gradient, windowed_gradient));
        rotate_gradient_to<Layout>(view(before), view(out), t->at_channel(first), row_starts{starts});
        CHECK(same_bits(out, windowed_gradient));

        auto q = before, k = windowed, q_alone = before, k_alone = windowed;
        rotate<Layout>(view(q), view(k), t->at_channel(first), 4);
        rotate<Layout>(view(q_alone).channels(first, rotary_dim), *t, 4);
        rotate<Layout>(view(k_alone).channels(first, rotary_dim), *t, 4);
        CHECK(same_bits(q, q_alone));
        CHECK(same_bits(k, k_alone));
        unrotate<Layout>(view(q), view(k), t->at_channel(first), 4);
        unrotate<Layout>(view(q_alone).channels(first, rotary_dim), *t, 4);
        unrotate<Layout>(view(k_alone).channels(first, rotary_dim), *t, 4);
        CHECK(same_bits(q, q_alone));
        CHECK(same_bits(k, k_alone));
      }
  });
}

TEST_CASE("every head rotates the channels of its own table", "[rotation]") {
  const frequency_table<float> slow(frequencies(8, 1e6), 20), fast(frequencies(6, 10.0), 20);
  const std::vector<placed_table<float>> tables = {slow.at_channel(15), fast.at_channel(2), slow};
  auto got = drawn<float>(), expected = got;
  rotate_heads<half_split>(view(got), tables, 3);
  for (Index h = 0; h < 3; ++h) {
    const auto& t = tables[static_cast<std::size_t>(h)];
    rotate<half_split>(view(expected).head_range(h, 1).channels(t.first_channel(), t.table().rotary_dim()),
                       t.table(), 3);
  }
  CHECK(same_bits(got, expected));
  unrotate_heads<half_split>(view(got), tables, 3);
  for (Index h = 0; h < 3; ++h) {
    const auto& t = tables[static_cast<std::size_t>(h)];
    unrotate<half_split>(view(expected).head_range(h, 1).channels(t.first_channel(), t.table().rotary_dim()),
                         t.table(), 3);
  }
  CHECK(same_bits(got, expected));
}

TEST_CASE("gradients with respect to the source of a placed table are those of its channels", "[rotation]") {
  auto x = drawn<float>();
  auto d_x = drawn<double>();
  const frequencies axial = on_axes(frequencies(rotary_dim, 50.0), contiguous_sections({1, 3}));
  Eigen::ArrayXXd coordinates(5, 2);
  coordinates << 0, 1.5, 2, -3, 0.25, 4, 7, 7, -1, 0;
  const frequency_table<double> table(axial, coordinates);
  for (const Index first : places) {
    CAPTURE(first);
    const auto placed = table.at_channel(first);
    const auto part = view(x).channels(first, rotary_dim);
    const auto d_part = view(d_x).channels(first, rotary_dim);
    const auto same = [](const auto& a, const auto& b) {
      return a.rows() == b.rows() && a.cols() == b.cols() && (a == b).all() && (a != 0).any();
    };
    CHECK(same(angle_gradient<half_split>(view(x), view(d_x), placed),
               angle_gradient<half_split>(part, d_part, table)));
    CHECK(same(inv_freq_gradient<half_split>(view(x), view(d_x), placed),
               inv_freq_gradient<half_split>(part, d_part, table)));
    CHECK(same(coordinate_gradient<half_split>(view(x), view(d_x), placed),
               coordinate_gradient<half_split>(part, d_part, table)));
    const auto got = table_gradient<half_split>(view(x), view(d_x), placed),
               expected = table_gradient<half_split>(part, d_part, table);
    CHECK(same(got.cos, expected.cos));
    CHECK(same(got.sin, expected.sin));
  }
}

TEST_CASE("PoPE with a placed table copies the channels before it", "[rotation]") {
  auto x = drawn<float>();
  const frequency_table<float> table(pope_frequencies(4), 20);
  std::vector<float> out(2 * 5 * 3 * (head_dim + 4), -99.0f), expected(out);
  const Index first = 5;
  pope<interleaved>(view(x), bshd(out.data(), 2, 5, 3, head_dim + 4), table.at_channel(first), 2);
  const auto wide = bshd(expected.data(), 2, 5, 3, head_dim + 4);
  testing::for_each_head(
      wide, [&](Index b, Index t, Index h) { std::copy_n(view(x).at(b, t, h), first, wide.at(b, t, h)); });
  pope<interleaved>(view(x).channels(first, head_dim - first), wide.channels(first, head_dim + 4 - first),
                    table, 2);
  CHECK(out == expected);
}

TEST_CASE("rotated channels beyond the head throw before anything is written", "[rotation]") {
  const frequency_table<float> table(frequencies(rotary_dim), 20);
  const auto before = drawn<float>();
  auto x = before, out = before;
  for (const Index first : {head_dim - rotary_dim + 1, head_dim, std::numeric_limits<Index>::max()}) {
    const auto placed = table.at_channel(first);
    const std::string place = "8 channels from channel " + std::to_string(first);
    const auto rejects = [&](const auto& call) {
      return throws_saying<std::invalid_argument>(call, place, "must lie in the head of 23 channels");
    };
    CHECK(rejects([&] { rotate<half_split>(view(x), placed); }));
    CHECK(rejects([&] { rotate_to<half_split>(view(x), view(out), placed); }));
    CHECK(rejects([&] { unrotate<half_split>(view(x), view(out), placed); }));
    CHECK(rejects([&] { rotate_gradient<half_split>(view(x), placed); }));
    CHECK(rejects([&] { angle_gradient<half_split>(view(x), view(out), placed); }));
  }
  CHECK(same_bits(x, before));
  CHECK(same_bits(out, before));
}
