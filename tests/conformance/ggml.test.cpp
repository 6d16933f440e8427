// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/operator_rotation.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

/// The cases of ggml's tests/test-backend-ops.cpp (d99724f2, 2026-08-21) with a rotation in them: test_rope,
/// test_rope_set_rows and test_rms_norm_mul_rope. Shapes and parameters are those of ggml, channels and
/// positions come from a seed in their ranges, and every value is compared with ggml's formulas. All calls
/// are public.
///
/// ggml's own tests compare two of its backends, to a normalised mean square error of 1e-7.

namespace {

using namespace rope;
using extents = std::array<Index, 4>;  // ne: (head_dim, heads, tokens, batch)
using mode = ggml_rope_type;
constexpr Index n_ctx = 512;

struct rope_case {
  bool half;
  extents ne;
  Index n_dims;
  ggml_rope_type mode;
  float fs = 1, ef = 0, af = 1;  // freq_scale, ext_factor, attn_factor
  bool ff = false;               // with freq_factors
  int v = 0;                     // 1: a part of every axis, 2: the second half of the channels
  bool forward = true, inplace = false;
  Index n_offs = 0;
};

std::string text_of(const rope_case& c) {
  std::string text = c.half ? "f16" : "f32";
  for (const Index extent : c.ne) text += " " + std::to_string(extent);
  return text + " n_dims " + std::to_string(c.n_dims) + " mode " + std::to_string(int(c.mode)) + " fs " +
         std::to_string(c.fs) + " ef " + std::to_string(c.ef) + " af " + std::to_string(c.af) + " ff " +
         std::to_string(c.ff) + " v " + std::to_string(c.v) + " forward " + std::to_string(c.forward) +
         " inplace " + std::to_string(c.inplace) + " n_offs " + std::to_string(c.n_offs);
}

/// Shapes with their n_dims: those of the first of all combinations, and those of every combination.
struct shape {
  extents ne;
  Index n_dims;
  ggml_rope_type mode;
};
const std::vector<shape> once = {{{128, 40, 2, 1}, 128, mode::normal}, {{128, 52, 2, 1}, 128, mode::normal},
                                 {{128, 64, 2, 1}, 128, mode::normal}, {{16, 16, 8192, 1}, 16, mode::normal},
                                 {{64, 1, 2, 1}, 64, mode::neox},      {{64, 71, 2, 1}, 64, mode::neox},
                                 {{64, 8, 2, 1}, 64, mode::neox},      {{80, 32, 2, 1}, 20, mode::normal},
                                 {{80, 32, 2, 1}, 32, mode::normal},   {{80, 32, 4, 1}, 32, mode::normal},
                                 {{80, 32, 2, 1}, 20, mode::neox},     {{80, 32, 2, 1}, 32, mode::neox},
                                 {{80, 32, 4, 1}, 32, mode::neox},     {{16, 16, 8192, 1}, 16, mode::neox},
                                 {{128, 12, 2, 1}, 128, mode::mrope},  {{128, 28, 2, 1}, 128, mode::mrope},
                                 {{128, 12, 2, 1}, 20, mode::mrope},   {{128, 28, 2, 1}, 32, mode::mrope},
                                 {{128, 12, 2, 1}, 128, mode::imrope}, {{128, 28, 2, 1}, 128, mode::imrope},
                                 {{128, 12, 2, 1}, 20, mode::imrope},  {{128, 28, 2, 1}, 32, mode::imrope},
                                 {{80, 16, 2, 1}, 80, mode::vision},   {{128, 16, 2, 1}, 128, mode::imrope},
                                 {{16, 16, 8192, 1}, 16, mode::imrope}};
const std::vector<shape> always = {{{128, 32, 2, 1}, 128, mode::normal}, {{64, 128, 2, 1}, 64, mode::neox}};
constexpr ggml_rope_type modes[] = {mode::normal, mode::neox, mode::mrope, mode::imrope, mode::vision};
constexpr float stretched = 1.4245f, extrapolated = 0.7465f;

std::vector<rope_case> cases_of_test_rope() {
  std::vector<rope_case> cases;
  for (const bool forward : {true, false})
    for (const float fs : {1.0f, stretched})
      for (const float ef : {0.0f, extrapolated})
        for (const float af : {1.0f, stretched})
          for (const bool half : {false, true})
            for (const bool ff : {false, true}) {
              const bool all = fs == 1 && ef == 0 && af == 1 && !half;
              for (const int v : {0, 1}) {
                for (const shape& s : always)
                  cases.push_back({half, s.ne, s.n_dims, s.mode, fs, ef, af, ff, v, forward});
                for (const shape& s : once)
                  if (all) cases.push_back({half, s.ne, s.n_dims, s.mode, fs, ef, af, ff, v, forward});
              }
              for (const auto m : modes)
                cases.push_back({half, {36, 16, 2457, 1}, 36, m, fs, ef, af, ff, 2, forward});
            }
  for (const bool half : {false, true})
    for (const auto m : modes)
      for (const bool ff : {false, true})
        for (const auto& [batch, v] : {std::pair{1, 0}, std::pair{1, 1}, std::pair{3, 1}})
          cases.push_back(
              {half, {128, 32, 2, batch}, 128, m, stretched, extrapolated, stretched, ff, v, true, true});
  for (const bool half : {false, true}) {
    for (const bool forward : {true, false})
      for (const bool ff : {false, true})
        for (const shape& s :
             {shape{{128, 32, 2, 1}, 32, mode::normal}, shape{{128, 32, 2, 1}, 32, mode::neox},
              shape{{128, 12, 2, 1}, 24, mode::mrope}, shape{{128, 12, 2, 1}, 24, mode::imrope}})
          cases.push_back(
              {half, s.ne, s.n_dims, s.mode, stretched, extrapolated, stretched, ff, 0, forward, false, 32});
    cases.push_back({half,
                     {128, 32, 2, 1},
                     32,
                     mode::neox,
                     stretched,
                     extrapolated,
                     stretched,
                     false,
                     0,
                     true,
                     true,
                     32});
  }
  return cases;
}

/// `count` numbers of a seed in [low, high), as floats.
std::vector<float> uniform(std::size_t count, double low, double high, std::uint64_t seed) {
  testing::random numbers(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(low + (high - low) * numbers.unit());
  return values;
}

/// Channels in [-1, 1), the same for every case.
template <class T>
void fill(std::vector<T>& memory, Index count) {
  static const std::vector<T> source = [] {
    std::vector<T> values;
    for (const float value : uniform(100003, -1, 1, 1)) values.push_back(static_cast<T>(value));
    return values;
  }();
  memory.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < memory.size(); i += source.size())
    std::copy_n(source.begin(), (std::min)(source.size(), memory.size() - i),
                memory.begin() + static_cast<std::ptrdiff_t>(i));
}

/// Positions and frequency factors of a case.
struct rope_inputs {
  std::vector<std::int32_t> pos;
  std::vector<float> factors;

  rope_inputs(const rope_case& c, bool many_axes) {
    testing::random numbers(static_cast<std::uint64_t>(c.ne[2]));
    for (Index n = 0; n < c.ne[2] * (many_axes ? 4 : 1); ++n)
      pos.push_back(static_cast<std::int32_t>(numbers.integer(0, n_ctx - 1)));
    if (c.ff) factors = uniform(static_cast<std::size_t>(c.n_dims / 2), 0.9, 1.1, 2);
  }
};

bool has_many_axes(ggml_rope_type m) { return m != mode::normal && m != mode::neox; }

/// The arguments in the terms of this library. Theirs have n_ctx_orig = 0, which puts both bounds of the
/// blend below the first pair. 1 does that too.
ggml_rope_parameters parameters_of(const rope_case& c, const rope_inputs& in) {
  const bool vision = c.mode == mode::vision;
  ggml_rope_parameters p = {.n_dims = vision ? c.n_dims / 2 : c.n_dims,
                            .mode = c.mode,
                            .n_ctx_orig = 1,
                            .freq_scale = static_cast<double>(c.fs),
                            .ext_factor = static_cast<double>(c.ef),
                            .attn_factor = static_cast<double>(c.af),
                            .beta_fast = 1,
                            .beta_slow = 1};
  p.freq_factors.assign(in.factors.begin(), in.factors.end());
  if (vision)
    p.sections = {c.n_dims / 4, c.n_dims / 4, 0, 0};
  else if (has_many_axes(c.mode))
    p.sections = {c.n_dims / 3, c.n_dims / 3, c.n_dims / 3, 0};
  return p;
}

/// ggml_rope_cache_init and ggml_mrope_cache_init with their sections: thirds of n_dims for mrope and imrope,
/// with the list repeated at its end, and two quarters for vision, with the powers of the second starting
/// again.
testing::operator_entries entries_of(const rope_case& c, const rope_inputs& in) {
  using testing::wide;
  const bool vision = c.mode == mode::vision;
  const Index tokens = c.ne[2], pairs = c.n_dims / 2, third = c.n_dims / 3, quarter = c.n_dims / 4;
  const auto scale = static_cast<wide>(c.fs), mixed = static_cast<wide>(c.ef);
  wide m = static_cast<wide>(c.af);
  if (c.ef != 0) m *= 1 + testing::log(1 / scale) / 10;
  testing::operator_entries entries(tokens, pairs);
  for (Index i = 0; i < pairs; ++i) {
    Index axis = 0, power = i;
    if (vision)
      axis = i / quarter, power = i % quarter;
    else if (c.mode == mode::mrope)
      axis = i % (3 * third) / third;
    else if (c.mode == mode::imrope)
      axis = i % (3 * third) % 3;
    wide f = testing::pow(wide(10000), -2 * wide(power) / wide(vision ? pairs : c.n_dims));
    if (c.ff) f /= static_cast<wide>(in.factors[static_cast<std::size_t>(i)]);
    f *= i == 0 ? scale * (1 - mixed) + mixed : scale;  // rope_yarn with bounds below the first pair
    for (Index t = 0; t < tokens; ++t) {
      const auto at = static_cast<std::size_t>(t * pairs + i);
      const wide angle = f * wide(in.pos[static_cast<std::size_t>(axis * tokens + t)]);
      entries.cos[at] = static_cast<double>(m * testing::cos(angle));
      entries.sin[at] = static_cast<double>(m * testing::sin(angle));
    }
  }
  return entries;
}

testing::pairing pairing_of(ggml_rope_type m) {
  return m == mode::normal ? testing::pairing::neighbours : testing::pairing::halves;
}

/// Calls `call(table, positions)` with the table of a case as users make it.
template <class Call>
void with_table(const rope_case& c, const rope_inputs& in, const Call& call) {
  const frequencies f = ggml_frequencies(parameters_of(c, in));
  if (!has_many_axes(c.mode)) return call(frequency_table(f, n_ctx), in.pos);
  const Eigen::Map<const Eigen::Array<std::int32_t, Eigen::Dynamic, 4>> coordinates(in.pos.data(), c.ne[2],
                                                                                    4);
  call(frequency_table(f, coordinates), 0);
}

/// The tensor of a case. If v is 1 or 2 it is a part of a larger one.
template <class T>
head_view<T> source_of(const rope_case& c, std::vector<T>& memory) {
  const Index dim = c.ne[0], heads = c.ne[1], tokens = c.ne[2], batch = c.ne[3];
  const Index times[] = {c.v == 0 ? 1 : 2, c.v == 1 ? 4 : 1, c.v == 1 ? 3 : 1};
  const Index token = times[0] * dim * times[1] * heads;
  fill(memory, ((batch - 1) * times[2] * tokens + tokens) * token);
  return bshd(memory.data(), batch, times[2] * tokens, times[1] * heads, times[0] * dim)
      .token_range(0, tokens)
      .head_range(0, heads)
      .channels(c.v == 2 ? dim : 0, dim);
}

template <class Layout, class T>
double error_of_rope(const rope_case& c) {
  static std::vector<T> memory, before, result;
  const rope_inputs in(c, has_many_axes(c.mode));
  const head_view<T> x = source_of(c, memory);
  head_view<T> out = x;
  head_view<const T> source = x;
  if (c.inplace) {
    before = memory;
    source.data = before.data() + (x.data - memory.data());
  } else {
    result.assign(static_cast<std::size_t>(x.size()), T(7));
    out = bshd(result.data(), x.batch, x.tokens, x.heads, x.head_dim);
  }
  with_table(c, in, [&](const auto& table, const auto& positions) {
    const auto placed = table.at_channel(c.n_offs);
    if (!c.forward)
      rotate_gradient_to<Layout>(x, out, placed, positions);
    else if (c.inplace)
      rotate<Layout>(x, placed, positions);
    else
      rotate_to<Layout>(x, out, placed, positions);
  });
  const double error = testing::operator_error<T, T>(source, out, entries_of(c, in),
                                                     {pairing_of(c.mode), c.n_offs, !c.forward},
                                                     [](Index, Index t) { return t; });
  if (!c.inplace) return error;
  for (Index b = 0; b < x.batch; ++b)  // memory between the heads does not change
    for (Index t = 0; t < x.tokens; ++t)
      for (Index h = 0; h < x.heads; ++h)
        std::copy_n(x.at(b, t, h), x.head_dim, before.data() + (x.at(b, t, h) - memory.data()));
  return memory == before ? error : HUGE_VAL;
}

double error_of(const rope_case& c) {
  if (c.mode == mode::normal)
    return c.half ? error_of_rope<interleaved, Eigen::half>(c) : error_of_rope<interleaved, float>(c);
  return c.half ? error_of_rope<half_split, Eigen::half>(c) : error_of_rope<half_split, float>(c);
}

/// 0 .. count - 1 in an order from a seed: init_set_rows_row_ids.
std::vector<std::int32_t> shuffled(Index count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  testing::random numbers(3);
  for (std::size_t i = rows.size(); i > 1; --i)
    std::swap(rows[i - 1], rows[static_cast<std::size_t>(numbers.integer(0, std::int64_t(i) - 1))]);
  return rows;
}

/// ggml_rope, then ggml_set_rows: token t of `x` goes to row rows[t] of a tensor of T, with one call per
/// token.
template <class Layout, class T>
double error_of_set_rows(const rope_case& c) {
  const Index dim = c.ne[0], heads = c.ne[1], tokens = c.ne[2], batch = c.ne[3];
  std::vector<float> memory;
  fill(memory, dim * heads * tokens);
  std::vector<T> result(static_cast<std::size_t>(dim * heads * tokens * batch), T(7)), sorted(memory.size());
  const auto x = thd(memory.data(), tokens, heads, dim);
  const auto dst = thd(result.data(), tokens * batch, heads, dim),
             by_token = thd(sorted.data(), tokens, heads, dim);
  const rope_inputs in(c, has_many_axes(c.mode));
  const auto rows = shuffled(tokens);
  with_table(c, in, [&](const auto& table, const auto& positions) {
    for (Index t = 0; t < tokens; ++t) {
      const auto row = dst.token_range(rows[static_cast<std::size_t>(t)], 1);
      if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(positions)>>)
        rotate_to<Layout>(x.token_range(t, 1), row, table, t);
      else
        rotate_to<Layout>(x.token_range(t, 1), row, table, positions[static_cast<std::size_t>(t)]);
    }
  });
  for (Index t = 0; t < tokens; ++t)
    std::copy_n(dst.at(0, rows[static_cast<std::size_t>(t)], 0), dim * heads, by_token.at(0, t, 0));
  for (std::size_t i = sorted.size(); i < result.size(); ++i)  // rows to which no token is written
    if (result[i] != T(7)) return HUGE_VAL;
  return testing::operator_error<float, T>(x, by_token, entries_of(c, in), {pairing_of(c.mode)},
                                           [](Index, Index t) { return t; });
}

struct norm_case {
  extents ne;
  bool multi_add, set_rows, broadcast;
};

/// ggml_rope(ggml_mul(ggml_rms_norm(a), w)): the weight is a tensor [heads, head_dim] of each token, or
/// [head_dim].
template <class Layout>
double error_of_norm(const norm_case& c) {
  const Index dim = c.ne[0], heads = c.ne[1], tokens = c.ne[2], batch = c.ne[3];
  const Index count = dim * heads * tokens;
  std::vector<float> a, gain = uniform(static_cast<std::size_t>(c.broadcast ? dim : count), -1, 1, 4);
  fill(a, count);
  if (c.multi_add) {  // a + b + c, where b is the weight, or has its shape
    const auto b = uniform(a.size(), -1, 1, 4), other = uniform(a.size(), -1, 1, 5);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = a[i] + b[i] + other[i];
  }
  const auto x = thd(a.data(), tokens, heads, dim);
  const rope_case plain = {false, c.ne, dim, std::is_same_v<Layout, interleaved> ? mode::normal : mode::neox};
  rope_inputs in(plain, false);
  in.pos = shuffled(tokens);
  const frequency_table table(frequencies(dim), n_ctx);
  const double epsilon = static_cast<double>(1e-6f);

  std::vector<float> exact(a.size());
  std::vector<double> rms(static_cast<std::size_t>(tokens * heads));
  for (Index r = 0; r < tokens * heads; ++r) {
    double sum = 0;
    for (Index d = 0; d < dim; ++d)
      sum += std::pow(static_cast<double>(a[static_cast<std::size_t>(r * dim + d)]), 2);
    rms[static_cast<std::size_t>(r)] = std::sqrt(sum / static_cast<double>(dim) + epsilon);
  }
  const auto gain_of = [&](Index r, Index d) {
    return gain[static_cast<std::size_t>(c.broadcast ? d : r * dim + d)];
  };
  for (Index r = 0; r < tokens * heads; ++r)
    for (Index d = 0; d < dim; ++d) {
      const auto at = static_cast<std::size_t>(r * dim + d);
      exact[at] = static_cast<float>(static_cast<double>(a[at]) / rms[static_cast<std::size_t>(r)] *
                                     static_cast<double>(gain_of(r, d)));
    }
  const auto expected = thd(exact.data(), tokens, heads, dim);
  const auto norm_of = [&](Index t) {
    const std::span<const float> all = gain;
    const auto of_token = c.broadcast ? all
                                      : all.subspan(static_cast<std::size_t>(t * heads * dim),
                                                    static_cast<std::size_t>(heads * dim));
    return head_norm<float>{.weight = of_token, .epsilon = epsilon};
  };
  // 4 u of the norm, and half an ulp for each expected channel, which is a float.
  const testing::operator_call call = {pairing_of(plain.mode), 0, false, 5};
  const auto entries = entries_of(plain, in);
  const auto by_row = [](Index, Index t) { return t; };
  if (!c.set_rows) {
    for (Index t = 0; t < tokens; ++t)
      normalize_and_rotate<Layout>(x.token_range(t, 1), norm_of(t), table,
                                   in.pos[static_cast<std::size_t>(t)]);
    return testing::operator_error<float, float>(expected, x, entries, call, by_row);
  }
  std::vector<Eigen::half> result(a.size() * static_cast<std::size_t>(batch), Eigen::half(7)),
      sorted(a.size());
  const auto dst = thd(result.data(), tokens * batch, heads, dim);
  const auto by_token = thd(sorted.data(), tokens, heads, dim);
  const auto rows = shuffled(tokens);
  for (Index t = 0; t < tokens; ++t) {
    const auto row = rows[static_cast<std::size_t>(t)];
    normalize_heads(x.token_range(t, 1), norm_of(t));
    rotate_to<Layout>(x.token_range(t, 1), dst.token_range(row, 1), table,
                      in.pos[static_cast<std::size_t>(t)]);
    std::copy_n(dst.at(0, row, 0), dim * heads, by_token.at(0, t, 0));
  }
  return testing::operator_error<float, Eigen::half>(expected, by_token, entries, call, by_row);
}

}  // namespace

TEST_CASE("ggml test-backend-ops: test_rope", "[conformance]") {
  const auto cases = cases_of_test_rope();
  CHECK(cases.size() == 870);
  for (const rope_case& c : cases) {
    const double error = error_of(c);
    if (error <= 1) continue;
    CAPTURE(text_of(c));
    CHECK(error <= 1);
  }
}

TEST_CASE("ggml test-backend-ops: test_rope_set_rows", "[conformance]") {
  int count = 0;
  for (const auto m : {mode::normal, mode::neox, mode::mrope, mode::vision})
    for (const bool half : {true, false})
      for (const Index tokens : {1, 8, 512})
        for (const Index batch : {1, 3}) {
          rope_case c = {half, {128, 32, tokens, batch}, 128, m};
          if (has_many_axes(m)) c.fs = stretched, c.ef = extrapolated, c.af = stretched;
          CAPTURE(text_of(c));
          if (m == mode::normal)
            CHECK((half ? error_of_set_rows<interleaved, Eigen::half>(c)
                        : error_of_set_rows<interleaved, float>(c)) <= 1);
          else
            CHECK((half ? error_of_set_rows<half_split, Eigen::half>(c)
                        : error_of_set_rows<half_split, float>(c)) <= 1);
          ++count;
        }
  CHECK(count == 48);
}

TEST_CASE("ggml test-backend-ops: test_rms_norm_mul_rope", "[conformance]") {
  const extents shapes[] = {{768, 1, 1, 1},  {768, 3, 1, 1},  {768, 3, 5, 1},
                            {128, 32, 2, 1}, {128, 4, 2, 1},  {128, 32, 50, 1},
                            {128, 4, 50, 1}, {8192, 2, 2, 1}, {8192, 2, 2, 1}};
  int count = 0;
  for (const bool multi_add : {false, true})
    for (const bool set_rows : {false, true})
      for (const bool broadcast : {false, true})
        for (const extents& ne : shapes) {
          const norm_case c = {ne, multi_add, set_rows, broadcast};
          CAPTURE(ne[0], ne[1], ne[2], multi_add, set_rows, broadcast);
          CHECK(error_of_norm<interleaved>(c) <= 1);
          CHECK(error_of_norm<half_split>(c) <= 1);
          count += 2;
        }
  CHECK(count == 144);
}
