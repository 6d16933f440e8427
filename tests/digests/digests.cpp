// SPDX-License-Identifier: MIT
// One digest per class of results, and what its bits depend on:
//
//     digests               prints  "<class> <depends on> <digest>", one per line
//     digests expected.txt  compares with its lines for these dependencies, and fails on a difference
//
// Every input is a fraction with few bits made from integers, so nothing but the library decides the digest.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <rope/rope.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;

/// FNV-1a over the bits of numbers, lowest byte first whatever the order in memory.
class digest {
 public:
  template <class T>
  void add(T value) {
    using bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
    auto left = static_cast<std::uint64_t>(std::bit_cast<bits>(value));
    for (std::size_t byte = 0; byte < sizeof(T); ++byte, left >>= 8)
      value_ = (value_ ^ (left & 255)) * 0x100000001b3u;
  }
  template <class List>
  void add_all(const List& list) {
    for (const auto& value : list) add(value);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

/// Multiples of 1/128 in [-1, 1), which every channel type holds.
template <class T>
std::vector<T> channels(Index count, std::uint64_t seed) {
  std::vector<T> values;
  for (Index i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    values.push_back(
        static_cast<T>(static_cast<float>(static_cast<std::int64_t>(seed >> 56) - 128) / 128.0f));
  }
  return values;
}

std::vector<frequencies> schedules() {
  const Index d = 64;
  std::vector<double> factors;
  for (Index i = 0; i < d / 2; ++i) factors.push_back(1 + static_cast<double>(i) / 8);
  return {frequencies(d),
          frequencies(d, 500000.0),
          frequencies(d, 1e6, rope::linear_scaling{.factor = 8}),
          frequencies(d, 1e4, rope::ntk_scaling{.factor = 4}),
          frequencies(d, 1e4, rope::dynamic_ntk_scaling{.factor = 2, .max_position = 2048, .length = 5000}),
          frequencies(d, 1e4, rope::yarn_scaling{.factor = 16, .original_max_position = 4096}),
          frequencies(d, 1e4,
                      rope::longrope_scaling{.short_factor = factors,
                                             .long_factor = factors,
                                             .original_max_position = 4096,
                                             .max_position = 131072,
                                             .length = 8192}),
          frequencies(d, 5e5, rope::llama3_scaling{.factor = 8}),
          frequencies(d, 1e6, rope::proportional_scaling{.partial_rotary_factor = 0.25}),
          frequencies::pixel(d),
          rope::wan_frequencies(128),
          rope::cogvideox_frequencies(64),
          rope::pixtral_frequencies(64),
          rope::qwen_vl_vision_frequencies(80)};
}

/// The schedules that are not in schedules().
std::vector<frequencies> other_schedules() {
  const Index d = 64;
  const std::vector<double> factors(d / 2, 1.75);
  const std::vector<double> directions_of_pairs = channels<double>(d, 21);
  const Eigen::Map<const Eigen::ArrayXXd> directions(directions_of_pairs.data(), d / 2, 2);
  return {frequencies(d, 1e4, rope::pair_factor_scaling{factors}),
          frequencies(d, 1e4, rope::alpha_scaling{1000}),
          frequencies(d, 1e4, rope::mixed_ntk_scaling{.factor = 4}),
          frequencies(d, 1e4, rope::mixed_ntk_scaling{.factor = 4, .mixed_b = 0.625}),
          frequencies(d, 1e4, rope::ntk_by_parts_scaling{.factor = 8, .original_max_position = 2048}),
          frequencies(d, 1e4, rope::resonance_scaling{}),
          frequencies(d, 1e4, rope::clipped_scaling{}),
          frequencies(d, 1e4, rope::clipped_scaling{.low_count = 5, .form = rope::clipping::hard}),
          rope::fourier_frequencies(frequencies(d), 4096),
          rope::pope_frequencies(d),
          frequencies::constant(4),
          rope::llama4_vision_frequencies(d),
          rope::rope_vit_axial_frequencies(d),
          rope::rope_vit_mixed_frequencies(d, 0.75),
          rope::dino_v3_frequencies(d),
          rope::dino_v3_frequencies(d, 0.5, 90),
          rope::timm_pixel_frequencies(d),
          rope::timm_pixel_frequencies(d, 224, rope::pixel_bands::evenly_spaced),
          rope::cosmos_frequencies(128, {.time = 2, .height = 0.75, .width = 3}),
          rope::ltx_frequencies(128),
          rope::axial_blocks({16, 24, 24}),
          rope::on_axes(frequencies(d, 1e6), rope::contiguous_sections({8, 12, 12})),
          rope::along_directions(frequencies(d), directions)};
}

std::uint64_t inv_freq(const std::vector<frequencies>& schedules) {
  digest d;
  for (const frequencies& f : schedules) {
    for (Index axis = 0; axis < f.axes(); ++axis)
      for (Index pair = 0; pair < f.pairs(); ++pair) d.add(f.inv_freq()(pair, axis));
    d.add(f.attention_factor());
  }
  return d.value();
}

template <class S>
std::uint64_t tables(const std::vector<frequencies>& schedules) {
  digest d;
  for (const frequencies& f : schedules) {
    if (f.axes() != 1) continue;
    for (const std::int64_t first :
         {std::int64_t{-40}, std::int64_t{0}, std::int64_t{131000}, std::int64_t{2147480000}}) {
      const frequency_table<S> table(f, first, first + 60);
      for (std::int64_t p = first; p < first + 60; ++p) {
        d.add_all(table.cos(p));
        d.add_all(table.sin(p));
      }
    }
  }
  return d.value();
}

void add_rows(digest& d, const frequency_table<float>& table) {
  for (std::int64_t p = table.first(); p < table.last(); ++p) {
    d.add_all(table.cos(p));
    d.add_all(table.sin(p));
  }
}

/// Tables of schedules of several axes, at coordinates that are multiples of 1/128.
std::uint64_t other_tables() {
  digest d;
  for (const auto& list : {schedules(), other_schedules()})
    for (const frequencies& f : list) {
      const std::vector<double> fractions = channels<double>(20 * f.axes(), 22);
      Eigen::ArrayXXd coordinates = Eigen::Map<const Eigen::ArrayXXd>(fractions.data(), 20, f.axes());
      for (Index row = 0; row < 20; ++row) coordinates.row(row) *= double(std::int64_t{1} << row);
      add_rows(d, frequency_table<float>(f, coordinates));
    }
  return d.value();
}

/// Tables of angles in float, with the sine and cosine of the C library.
std::uint64_t float_angles() {
  digest d;
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{131000}})
    add_rows(d, frequency_table<float>::with_float_angles(frequencies(64), first, first + 60));
  return d.value();
}

std::string c_library() {
#if defined(__GLIBC__)
  return "glibc";
#elif defined(_WIN32)
  return "windows";
#else
  return "other_c_library";
#endif
}

/// Numbers with as many digits as a double has, in [-1/3, 1/3): the products of two are rounded.
std::vector<double> thirds(Index count, std::uint64_t seed) {
  std::vector<double> values = channels<double>(count, seed);
  for (double& value : values) value /= 3;
  return values;
}

/// Tables of given entries.
std::uint64_t rotation_by_doubles() {
  digest d;
  for (const Index pairs : {Index{4}, Index{20}, Index{50}}) {
    const std::vector<double> cos = thirds(9 * pairs, 23), sin = thirds(9 * pairs, 24);
    const Eigen::Map<const Eigen::ArrayXXd> c(cos.data(), 9, pairs), s(sin.data(), 9, pairs);
    const auto table = rope::table_of_entries<double>(c, s);
    const Index head_dim = 2 * pairs + 3;
    for (const bool back : {false, true}) {
      auto a = thirds(9 * 3 * head_dim, 11), b = a;
      const auto heads = rope::thd(a.data(), 9, 3, head_dim), halves = rope::thd(b.data(), 9, 3, head_dim);
      back ? rope::unrotate<interleaved>(heads, table) : rope::rotate<interleaved>(heads, table);
      back ? rope::unrotate<half_split>(halves, table) : rope::rotate<half_split>(halves, table);
      d.add_all(a);
      d.add_all(b);
    }
  }
  return d.value();
}

template <class T>
std::uint64_t rotation() {
  digest d;
  for (const Index pairs : {Index{4}, Index{20}, Index{32}, Index{50}}) {
    const frequency_table<float> table(frequencies(2 * pairs), 9);
    const Index head_dim = 2 * pairs + 3, count = 2 * 9 * 3 * head_dim;
    const auto x = channels<T>(count, 11);
    const auto add_rotations = [&](auto layout) {
      std::vector<T> out(x.size());
      rope::rotate_to<decltype(layout)>(rope::bshd(x.data(), 2, 9, 3, head_dim),
                                        rope::bshd(out.data(), 2, 9, 3, head_dim), table);
      d.add_all(out);
    };
    add_rotations(interleaved{});
    add_rotations(half_split{});
  }
  return d.value();
}

struct shape {
  Index queries, keys, heads, kv_heads, head_dim;
};
constexpr shape shapes[] = {{1, 70, 8, 2, 64}, {1, 300, 4, 4, 80}, {33, 70, 4, 2, 64}, {70, 70, 2, 1, 40}};

template <class T>
std::uint64_t attention() {
  digest d;
  for (const shape& s : shapes)
    for (const rope::attention_options& options :
         {rope::attention_options{}, rope::attention_options{.window = 20, .softcap = 30, .sinks = 2}}) {
      const auto q = channels<T>(s.queries * s.heads * s.head_dim, 1),
                 k = channels<T>(s.keys * s.kv_heads * s.head_dim, 2),
                 v = channels<T>(s.keys * s.kv_heads * s.head_dim, 3);
      std::vector<T> out(q.size());
      rope::attention(rope::thd(q.data(), s.queries, s.heads, s.head_dim),
                      rope::thd(k.data(), s.keys, s.kv_heads, s.head_dim),
                      rope::thd(v.data(), s.keys, s.kv_heads, s.head_dim),
                      rope::thd(out.data(), s.queries, s.heads, s.head_dim), options);
      d.add_all(out);
    }
  return d.value();
}

std::uint64_t rotation_gradient() {
  digest d;
  const frequency_table<float> table(frequencies(40), 9);
  auto g = channels<float>(9 * 3 * 43, 5);
  rope::rotate_gradient<half_split>(rope::thd(g.data(), 9, 3, 43), table);
  d.add_all(g);
  return d.value();
}

std::uint64_t head_norm() {
  digest d;
  for (const Index head_dim : {Index{33}, Index{64}}) {
    const auto weight = channels<float>(head_dim, 7);
    auto x = channels<float>(9 * 3 * head_dim, 6);
    rope::normalize_heads(rope::thd(x.data(), 9, 3, head_dim), rope::head_norm<float>{weight});
    d.add_all(x);
  }
  return d.value();
}

std::uint64_t head_norm_gradient() {
  digest d;
  for (const Index head_dim : {Index{33}, Index{64}}) {
    const auto weight = channels<float>(head_dim, 7), x = channels<float>(9 * 3 * head_dim, 6);
    std::vector<float> g = channels<float>(9 * 3 * head_dim, 8), d_weight(weight.size());
    for (float& channel : g) channel /= 3;  // with as many digits as a float has
    rope::normalize_heads_gradient(rope::thd(x.data(), 9, 3, head_dim), rope::head_norm<float>{weight},
                                   rope::thd(g.data(), 9, 3, head_dim), std::span<float>(d_weight));
    d.add_all(g);
    d.add_all(d_weight);
  }
  return d.value();
}

std::uint64_t attention_gradient(const rope::attention_options& options = {}) {
  digest d;
  for (const shape& s : shapes) {
    const auto q = channels<float>(s.queries * s.heads * s.head_dim, 1),
               d_out = channels<float>(s.queries * s.heads * s.head_dim, 4),
               k = channels<float>(s.keys * s.kv_heads * s.head_dim, 2),
               v = channels<float>(s.keys * s.kv_heads * s.head_dim, 3);
    std::vector<float> out(q.size()), d_q(q.size()), d_k(k.size()), d_v(v.size());
    const auto queries = [&](auto& x) { return rope::thd(x.data(), s.queries, s.heads, s.head_dim); };
    const auto keys = [&](auto& x) { return rope::thd(x.data(), s.keys, s.kv_heads, s.head_dim); };
    rope::attention(queries(q), keys(k), keys(v), queries(out), options);
    rope::attention_gradient(rope::attention_tape<float>{.q = queries(q),
                                                         .k = keys(k),
                                                         .v = keys(v),
                                                         .out = queries(out),
                                                         .d_out = queries(d_out),
                                                         .d_q = queries(d_q),
                                                         .d_k = keys(d_k),
                                                         .d_v = keys(d_v)},
                             options);
    for (const auto* list : {&d_q, &d_k, &d_v}) d.add_all(*list);
  }
  return d.value();
}

/// Whether this compiler makes a product and a sum one rounding, which it may if the processor can.
[[maybe_unused]] bool contracts() {
  volatile double a = 1 + 0x1p-30, c = -1;
  const double x = a, z = c;
  return x * x + z != 0x1p-29;  // 2^-29 + 2^-60 in one rounding
}

/// Clang contracts within an expression, GCC across expressions: other products and sums, and other bits.
#if defined(__clang__)
[[maybe_unused]] constexpr const char* as_compiler_contracts = "contracted_in_expressions";
#else
[[maybe_unused]] constexpr const char* as_compiler_contracts = "contracted";
#endif

/// What the bits of products and sums of two numbers depend on.
std::string products() {
#if ROPE_DETAIL_FUSED
  return "fma";
#else
  return contracts() ? as_compiler_contracts : "no_fma";
#endif
}

/// What the bits of products of three numbers depend on: -ffast-math lets a compiler multiply them in another
/// order.
std::string fast_math() {
#if defined(__FAST_MATH__)
  return "fast_math";
#else
  return "nothing";
#endif
}

/// What the bits of sums of such products depend on.
std::string products_in_order() {
  const std::string order = fast_math();
  return order == "nothing" ? products() : order;
}

/// What the order of many sums depends on. If packets fuse products and sums, the compiler has no choice.
/// Eigen 5 has other polynomials for tanh, which softcaps use, than 3.4. Packets of 32-bit ARM divide by
/// estimates of the reciprocal and take subnormals as 0, while scalars do not: nothing is recorded for them.
std::string packets() {
  using packet = Eigen::internal::packet_traits<float>;
  std::string text = "packets_of_" + std::to_string(int(packet::Vectorizable) ? int(packet::size) : 1);
#if ROPE_DETAIL_FUSED
  text += "_fma";
#else
  if (contracts()) text += std::string("_") + as_compiler_contracts;
#endif
#if defined(__arm__)
  if (int(packet::Vectorizable)) text += "_arm32";
#endif
#if defined(__FAST_MATH__)
  text += "_fast_math";
#endif
#if EIGEN_VERSION_AT_LEAST(5, 0, 0)
  if (int(packet::Vectorizable)) text += "_eigen_5";
#endif
  return text;
}

/// The additional dependency of results with a softcap: the packets of VSX have their own tanh, with other
/// bits.
std::string packets_and_tanh() {
#if defined(__VSX__)
  return packets() + "_vsx";
#else
  return packets();
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    std::string depends_on;
    std::uint64_t value;
  } found[] = {{"inv_freq", "nothing", inv_freq(schedules())},
               {"inv_freq_of_other_schedules", "nothing", inv_freq(other_schedules())},
               {"float_tables", "nothing", tables<float>(schedules())},
               {"other_float_tables", "nothing", other_tables()},
               {"float_angles", c_library(), float_angles()},
               {"double_tables", "nothing", tables<double>(schedules())},
               {"rotation_of_float", products(), rotation<float>()},
               {"rotation_of_double", products(), rotation<double>()},
               {"rotation_by_doubles", products_in_order(), rotation_by_doubles()},
               {"rotation_of_half", products(), rotation<Eigen::half>()},
               {"rotation_of_bfloat16", products(), rotation<Eigen::bfloat16>()},
               {"rotation_gradient", products(), rotation_gradient()},
               {"attention_of_float", packets(), attention<float>()},
               {"attention_of_half", packets(), attention<Eigen::half>()},
               {"attention_of_bfloat16", packets(), attention<Eigen::bfloat16>()},
               {"attention_gradient", packets(), attention_gradient()},
               {"attention_gradient_with_options", packets_and_tanh(),
                attention_gradient({.window = 20, .softcap = 0.5, .sinks = 2})},
               {"head_norm", fast_math(), head_norm()},
               {"head_norm_gradient", products_in_order(), head_norm_gradient()}};
  std::map<std::string, std::string> expected;
  if (argc > 1) {
    std::ifstream file(argv[1]);
    if (!file) {
      std::printf("%s cannot be read\n", argv[1]);
      return 1;
    }
    for (std::string name, depends_on, value; file >> name >> depends_on >> value;)
      expected[name + " " + depends_on] = value;
  }
  int differ = 0;
  for (const auto& of : found) {
    char value[17];
    std::snprintf(value, sizeof value, "%016llx", static_cast<unsigned long long>(of.value));
    std::printf("%s %s %s", of.name, of.depends_on.c_str(), value);
    if (argc > 1) {
      const auto at = expected.find(of.name + (" " + of.depends_on));
      const bool same = at != expected.end() && at->second == value;
      std::printf(at == expected.end() ? "  not recorded"
                  : same               ? "  as recorded"
                                       : "  DIFFERS from %s",
                  at == expected.end() ? "" : at->second.c_str());
      differ += at != expected.end() && !same ? 1 : 0;
    }
    std::printf("\n");
  }
  return differ > 0 ? 1 : 0;
}
