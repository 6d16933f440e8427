// SPDX-License-Identifier: MIT
// Frequencies on several axes, from any numbers: the named ones of vision and video models, and the
// constructions from which they are made, each compared with its published formula, or throwing.
#include <rope/frequencies.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "support/wide.hpp"

using fuzz::bytes;
using fuzz::check;
using rope::frequencies;
using rope::Index;
using testing::wide;

namespace {

/// inv_freq [pairs, axes].
using matrix = std::vector<std::vector<wide>>;
using list = std::vector<wide>;

/// The expected outcome: frequencies, or std::invalid_argument. If a formula comes near the end of a range,
/// either.
struct expected {
  matrix inv_freq;
  wide factor = 1;
  bool valid = true, clear = true;
};

bool is_finite(double x) { return std::abs(x) <= std::numeric_limits<double>::max(); }
bool is_base(double base) { return is_finite(base) && base > 1; }
wide wider(double x) { return static_cast<wide>(x); }
/// Far enough from 1 and from the end of the range that no product of a formula overflows.
bool is_usual(double base) { return base > 1.0001 && base < 1e12; }

/// base^(-2 j / width), j < width / 2
list original(Index width, wide base) {
  list f;
  for (Index j = 0; j < width / 2; ++j)
    f.push_back(testing::pow(base, -static_cast<wide>(2 * j) / static_cast<wide>(width)));
  return f;
}
/// One block of pairs after another, each rotated by its own axis.
matrix blocks(const std::vector<list>& parts) {
  matrix all;
  for (std::size_t axis = 0; axis < parts.size(); ++axis)
    for (const wide f : parts[axis]) {
      all.emplace_back(parts.size(), wide(0));
      all.back()[axis] = f;
    }
  return all;
}
void swap_axes(matrix& of) {
  for (auto& pair : of) std::swap(pair[0], pair[1]);
}

template <class Make>
void compare(const expected& e, const Make& make) {
  if (!e.valid && e.clear) return fuzz::rejects<std::invalid_argument>("numbers that are none throw", make);
  std::optional<frequencies> got;
  try {
    got = make();
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    if (text.find("rope::") != 0 || e.clear) fuzz::fail("valid numbers throw: " + text);
    return;
  }
  for (Index i = 0; i < got->pairs(); ++i)
    for (Index a = 0; a < got->axes(); ++a)
      check(std::abs(got->inv_freq()(i, a)) < 0x1p64, "a frequency is finite and below 2^64");
  check(got->attention_factor() > 0 && is_finite(got->attention_factor()),
        "an attention_factor is positive and finite");
  if (!e.clear) return;
  check(got->pairs() == static_cast<Index>(e.inv_freq.size()) &&
            got->axes() == static_cast<Index>(e.inv_freq[0].size()),
        "there are as many pairs and axes as the formula has");
  check(wider(got->attention_factor()) == e.factor, "the attention_factor is that of the parts");
  for (Index i = 0; i < got->pairs(); ++i)
    for (Index a = 0; a < got->axes(); ++a) {
      const wide exact = e.inv_freq[static_cast<std::size_t>(i)][static_cast<std::size_t>(a)];
      const double value = got->inv_freq()(i, a);
      // Two roundings, of a frequency and of its factor. A power of 64 bits adds less.
      if (testing::abs(wider(value) - exact) <= 4 * 0x1p-53L * testing::abs(exact) + 0x1p-1073L) continue;
      std::fprintf(stderr, "pair %ld, axis %ld: %.17g for %.21Lg\n", long(i), long(a), value,
                   static_cast<long double>(exact));
      check(false, "a frequency agrees with the formula");
    }
}

Index draw_dim(bytes& b, Index step) {
  static const long odd_ones[] = {0, -4, 2, 6, 7, 10, 30, 1, -1, 3};
  return b.one_in(6) ? b.one_of(odd_ones) : step * b.between(1, 8);
}
double draw_base(bytes& b) {
  static const double common[] = {1e4, 100, 10, 256, 5e5, 2};
  return b.one_in(4) ? b.real() : b.one_of(common);
}

void run_vision(bytes& b) {
  const long model = b.up_to(8);
  const Index dim = draw_dim(b, 4);
  const double base = draw_base(b);
  const bool fits = dim > 0 && dim % 4 == 0;
  expected e;
  e.valid = fits && is_base(base);
  e.clear = !e.valid || is_usual(base);
  const list half = fits && is_base(base) ? original(dim / 2, wider(base)) : list(1, 1);
  const std::size_t quarter = fits ? static_cast<std::size_t>(dim / 4) : 1;
  switch (model) {
    case 0: {
      const list f = e.valid ? original(dim, wider(base)) : list(2, 1);
      list even, odd;
      for (std::size_t j = 0; j + 1 < f.size(); j += 2) even.push_back(f[j]), odd.push_back(f[j + 1]);
      e.inv_freq = blocks({even, odd});
      return compare(e, [&] { return rope::pixtral_frequencies(dim, base); });
    }
    case 1:
      e.inv_freq = blocks({half, half});
      return compare(e, [&] { return rope::qwen_vl_vision_frequencies(dim, base); });
    case 2:
      e.inv_freq = blocks({half, half});
      swap_axes(e.inv_freq);
      return compare(e, [&] { return rope::llama4_vision_frequencies(dim, base); });
    case 3:
      e.inv_freq = blocks({half, half});
      swap_axes(e.inv_freq);
      return compare(e, [&] { return rope::rope_vit_axial_frequencies(dim, base); });
    case 4: {
      const double angle = b.one_in(8) ? b.real() : b.moderate() / 32;
      e.clear = e.clear && is_finite(angle) && std::abs(angle) < 1e6;
      if (e.valid && !is_finite(angle)) e.valid = false, e.clear = true;
      const wide across = e.valid ? testing::cos(wider(angle)) : wide(0),
                 down = e.valid ? testing::sin(wider(angle)) : wide(0);
      for (const wide f : half) e.inv_freq.push_back({f * down, f * across});
      for (const wide f : half) e.inv_freq.push_back({f * across, -f * down});
      return compare(e, [&] { return rope::rope_vit_mixed_frequencies(dim, angle, base); });
    }
    case 5: {
      list f;
      for (std::size_t k = 0; k < quarter && e.valid; ++k)
        f.push_back(2 * testing::pi *
                    testing::pow(wider(base), -static_cast<wide>(k) / static_cast<wide>(quarter)));
      e.inv_freq = blocks({f, f});
      return compare(e, [&] { return rope::dino_v3_frequencies(dim, base); });
    }
    case 6: {
      const double least = b.one_in(4) ? b.real() : b.moderate() + 0.5,
                   most = b.one_in(4) ? b.real() : least * (1 + b.moderate());
      e.valid = fits && is_finite(least) && is_finite(most) && least > 0 && most >= least;
      e.clear = !e.valid || (least > 1e-12 && most < 1e12);
      list f;
      for (std::size_t k = 0; k < quarter && e.valid; ++k)
        f.push_back(2 * testing::pi / wider(least) *
                    (k == 0 ? wide(1)
                            : testing::pow(wider(most) / wider(least),
                                           -static_cast<wide>(k) / static_cast<wide>(quarter - 1))));
      e.inv_freq = blocks({f, f});
      return compare(e, [&] { return rope::dino_v3_frequencies(dim, least, most); });
    }
    default: {
      const double most = b.one_in(4) ? b.real() : 2 + b.moderate();
      const bool octaves = model == 7;
      e.valid = fits && is_finite(most) && most >= 2;
      e.clear = !e.valid || most < 1e12;
      list f;
      const auto last = static_cast<wide>(quarter - 1);
      for (std::size_t k = 0; k < quarter && e.valid; ++k) {
        const wide part = k == 0 ? wide(0) : static_cast<wide>(k) / last;
        f.push_back(testing::pi *
                    (octaves ? testing::pow(wider(most) / 2, part) : 1 + part * (wider(most) / 2 - 1)));
      }
      e.inv_freq = blocks({f, f});
      return compare(e, [&] {
        return rope::timm_pixel_frequencies(
            dim, most, octaves ? rope::pixel_bands::octaves : rope::pixel_bands::evenly_spaced);
      });
    }
  }
}

void run_video(bytes& b) {
  const long model = b.up_to(3);
  const Index dim = draw_dim(b, model == 1 ? 16 : 2);
  const double base = draw_base(b);
  expected e;
  e.clear = is_usual(base);
  const bool splits = dim >= 6 && dim % 2 == 0;
  const Index space = splits ? 2 * (dim / 6) : 2, time = splits ? dim - 2 * space : 2;
  const wide by = is_base(base) ? wider(base) : wide(2);
  const auto rejected_early = [&] {
    if (!e.valid) e.clear = true;
    if (e.inv_freq.empty()) e.inv_freq = {{1}};
  };
  switch (model) {
    case 0:
      e.valid = splits && is_base(base);
      if (e.valid) e.inv_freq = blocks({original(time, by), original(space, by), original(space, by)});
      rejected_early();
      return compare(e, [&] { return rope::wan_frequencies(dim, base); });
    case 1:
      e.valid = dim > 0 && dim % 16 == 0 && is_base(base);
      if (e.valid)
        e.inv_freq =
            blocks({original(dim / 4, by), original(3 * (dim / 8), by), original(3 * (dim / 8), by)});
      rejected_early();
      return compare(e, [&] { return rope::cogvideox_frequencies(dim, base); });
    case 2: {
      rope::cosmos_stretch stretch;
      double* const each[] = {&stretch.time, &stretch.height, &stretch.width};
      e.valid = splits && dim >= 12 && is_base(base);
      std::vector<list> parts;
      for (std::size_t a = 0; a < 3; ++a) {
        *each[a] = b.one_in(6) ? b.real() : (1 + b.moderate()) / 16;
        const double s = *each[a];
        e.valid = e.valid && is_finite(s) && s > 0;
        if (!e.valid) continue;
        const Index width = a == 0 ? time : space;
        const auto d = static_cast<wide>(width);
        const wide stretched = by * testing::pow(wider(s), d / (d - 2));
        if (stretched <= 1) e.valid = false;
        e.clear = e.clear && s > 1e-6 && s < 1e6 && testing::abs(stretched - 1) > 1e-3L;
        if (e.valid) parts.push_back(original(width, stretched));
      }
      if (e.valid) e.inv_freq = blocks(parts);
      if (!(splits && dim >= 12 && is_base(base))) e.clear = true;
      for (const double* s : each)
        if (!is_finite(*s) || *s <= 0) e.clear = true;
      if (splits && dim < 12) e.clear = false;  // an axis of one pair
      return compare(e, [&] { return rope::cosmos_frequencies(dim, stretch, base); });
    }
    default: {
      e.valid = splits && is_base(base);
      const Index count = splits ? dim / 6 : 1, rest = splits ? dim % 6 / 2 : 0;
      for (Index i = 0; i < rest; ++i) e.inv_freq.emplace_back(3, wide(0));
      for (Index k = 0; k < count; ++k)
        for (std::size_t axis = 0; axis < 3; ++axis) {
          e.inv_freq.emplace_back(3, wide(0));
          e.inv_freq.back()[axis] =
              testing::pi / 2 *
              (k == 0 ? wide(1) : testing::pow(by, static_cast<wide>(k) / static_cast<wide>(count - 1)));
        }
      rejected_early();
      return compare(e, [&] { return rope::ltx_frequencies(dim, base); });
    }
  }
}

/// A schedule of any numbers on one axis, sometimes on two.
frequencies draw_part(bytes& b, bool two_axes) {
  const Index pairs = b.between(1, 5), axes = two_axes ? 2 : 1;
  Eigen::ArrayXXd f(pairs, axes);
  for (Index i = 0; i < f.size(); ++i) f(i) = b.moderate();
  static const double factors[] = {1, 1, 1, 1.25};
  return frequencies::custom(f, b.one_of(factors));
}

void run_parts(bytes& b) {
  expected e;
  switch (b.up_to(5)) {
    case 0: {
      std::vector<frequencies> parts;
      for (long n = b.up_to(4); n > 0; --n) parts.push_back(draw_part(b, b.one_in(4)));
      e.valid = !parts.empty();
      std::size_t axes = 0, axis = 0;
      for (const frequencies& part : parts) {
        axes += static_cast<std::size_t>(part.axes());
        e.valid = e.valid && part.attention_factor() == parts[0].attention_factor();
      }
      for (const frequencies& part : parts) {
        for (Index i = 0; i < part.pairs(); ++i) {
          e.inv_freq.emplace_back(axes, wide(0));
          for (Index a = 0; a < part.axes(); ++a)
            e.inv_freq.back()[axis + static_cast<std::size_t>(a)] = wider(part.inv_freq()(i, a));
        }
        axis += static_cast<std::size_t>(part.axes());
      }
      if (e.valid) e.factor = wider(parts[0].attention_factor());
      return compare(e, [&] { return rope::axial(parts); });
    }
    case 1: {
      const frequencies part = draw_part(b, b.one_in(4));
      const Index count = b.one_in(6) ? (b.coin() ? 0 : -3) : b.between(1, 4);
      e.valid = count > 0;
      e.factor = wider(part.attention_factor());
      for (Index n = 0; n < count; ++n)
        for (Index i = 0; i < part.pairs(); ++i) {
          e.inv_freq.emplace_back(static_cast<std::size_t>(count * part.axes()), wide(0));
          for (Index a = 0; a < part.axes(); ++a)
            e.inv_freq.back()[static_cast<std::size_t>(n * part.axes() + a)] = wider(part.inv_freq()(i, a));
        }
      return compare(e, [&] { return rope::axial(part, count); });
    }
    case 2: {
      std::vector<Index> widths;
      const double base = draw_base(b);
      std::vector<list> parts;
      e.clear = is_usual(base);
      for (long n = b.up_to(4); n > 0; --n) {
        widths.push_back(draw_dim(b, 2));
        e.valid = e.valid && widths.back() > 0 && widths.back() % 2 == 0 && is_base(base);
        if (e.valid) parts.push_back(original(widths.back(), wider(base)));
      }
      e.valid = e.valid && !widths.empty();
      if (e.valid)
        e.inv_freq = blocks(parts);
      else
        e.clear = true;
      return compare(e, [&] { return rope::axial_blocks(widths, base); });
    }
    case 3: {
      const frequencies part = draw_part(b, b.one_in(6));
      const Index axes = b.one_in(8) ? 0 : b.between(1, 3), rows = b.one_in(8) ? b.up_to(5) : part.pairs();
      Eigen::ArrayXXd along(rows, axes);
      for (Index i = 0; i < along.size(); ++i) along(i) = b.one_in(8) ? b.real() : b.moderate() / 64 - 2;
      e.valid = part.axes() == 1 && rows == part.pairs() && axes > 0;
      e.factor = wider(part.attention_factor());
      for (Index i = 0; i < rows && e.valid; ++i) {
        e.inv_freq.emplace_back();
        for (Index a = 0; a < axes; ++a) {
          const double product =
              along(i, a) * part.inv_freq()(i, 0);  // not finite, or one that frequencies may be
          e.valid = e.valid && std::abs(product) < 0x1p64;
          if (e.valid) e.inv_freq.back().push_back(wider(along(i, a)) * wider(part.inv_freq()(i, 0)));
        }
      }
      return compare(e, [&] { return rope::along_directions(part, along); });
    }
    case 4: {
      const frequencies part = draw_part(b, b.one_in(6));
      const Index axes = b.one_in(10) ? 0 : b.between(1, 3);
      rope::axis_assignment given = {{}, axes};
      const Index count = b.one_in(8) ? b.up_to(6) : part.pairs();
      e.valid = part.axes() == 1 && count == part.pairs() && axes > 0;
      for (Index i = 0; i < count; ++i) {
        given.axis_of_pair.push_back(b.one_in(16) ? static_cast<Index>(b.integer())
                                                  : b.up_to(long(axes) - 1));
        const Index axis = given.axis_of_pair.back();
        e.valid = e.valid && axis >= 0 && axis < axes;
        if (!e.valid) continue;
        e.inv_freq.emplace_back(static_cast<std::size_t>(axes), wide(0));
        e.inv_freq.back()[static_cast<std::size_t>(axis)] = wider(part.inv_freq()(i, 0));
      }
      e.factor = wider(part.attention_factor());
      return compare(e, [&] { return rope::on_axes(part, given); });
    }
    default: {
      const frequencies part = draw_part(b, b.coin());
      const Index first = b.one_in(6) ? static_cast<Index>(b.integer()) : b.up_to(4),
                  step = b.one_in(6) ? static_cast<Index>(b.integer()) : b.between(1, 3);
      if (step > Index{1} << 40) return;
      e.valid = first >= 0 && first < part.pairs() && step > 0;
      e.factor = wider(part.attention_factor());
      for (Index i = first; e.valid && i < part.pairs(); i += step) {
        e.inv_freq.emplace_back();
        for (Index a = 0; a < part.axes(); ++a) e.inv_freq.back().push_back(wider(part.inv_freq()(i, a)));
      }
      return compare(e, [&] { return rope::every_pair(part, first, step); });
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(2)) {
    case 0:
      run_vision(b);
      break;
    case 1:
      run_video(b);
      break;
    default:
      run_parts(b);
  }
  return 0;
}
