// Rotation and attention of ONNX Runtime, through its C interface, next to rope. ../peers.py builds and
// runs it.
//
// Its operators RotaryEmbedding and GroupQueryAttention (domain com.microsoft) are graphs of one node,
// written here as the bytes of an ONNX file. Both libraries read cos and sin from tables made before.

#include "peer_rows.hpp"

#include <onnxruntime_c_api.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using bench::Index;
using peers::row;

const OrtApi& api() {
  static const OrtApi& version = *OrtGetApiBase()->GetApi(ORT_API_VERSION);
  return version;
}

void must(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "ONNX Runtime: %s\n", api().GetErrorMessage(status));
  std::exit(1);
}

/// A message of protocol buffers.
class message {
 public:
  message& number(int field, std::uint64_t value) {
    key(field, 0);
    variable(value);
    return *this;
  }
  message& real(int field, float value) {
    key(field, 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int byte = 0; byte < 4; ++byte) bytes_ += static_cast<char>(bits >> 8 * byte & 255);
    return *this;
  }
  message& text(int field, const std::string& value) {
    key(field, 2);
    variable(value.size());
    bytes_ += value;
    return *this;
  }
  message& part(int field, const message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, unsigned kind) { variable(static_cast<unsigned>(field) << 3 | kind); }
  void variable(std::uint64_t value) {
    for (; value > 127; value >>= 7) bytes_ += static_cast<char>(value & 127 | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

using extents = std::vector<std::int64_t>;

template <class T>
constexpr ONNXTensorElementDataType type_of =
    std::is_same_v<T, float>          ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
    : std::is_same_v<T, Eigen::half>  ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16
    : std::is_same_v<T, std::int32_t> ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32
                                      : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

/// A graph of one operator whose inputs and outputs are in the caller's memory. Field numbers come from
/// onnx.proto.
class node {
 public:
  explicit node(const char* name) { node_.text(4, name).text(7, "com.microsoft"); }
  node(const node&) = delete;
  node& operator=(const node&) = delete;
  ~node() {
    for (OrtValue* value : inputs_) api().ReleaseValue(value);
    for (OrtValue* value : outputs_) api().ReleaseValue(value);
    if (session_ != nullptr) api().ReleaseSession(session_);
  }

  node& attribute(const char* name, std::int64_t value) {
    node_.part(5, message().text(1, name).number(3, static_cast<std::uint64_t>(value)).number(20, 2));
    return *this;
  }
  node& attribute(const char* name, float value) {
    node_.part(5, message().text(1, name).real(2, value).number(20, 1));
    return *this;
  }
  template <class T>
  node& input(const char* name, T* data, const extents& shape) {
    node_.text(1, name);
    graph_.part(11, described<T>(name, shape));
    input_names_.push_back(name);
    inputs_.push_back(value_of(data, shape));
    return *this;
  }
  template <class T>
  node& output(const char* name, T* data, const extents& shape) {
    node_.text(2, name);
    graph_.part(12, described<T>(name, shape));
    output_names_.push_back(name);
    outputs_.push_back(value_of(data, shape));
    return *this;
  }
  void compute() {
    if (session_ == nullptr) start();
    must(api().Run(session_, nullptr, input_names_.data(), inputs_.data(), inputs_.size(),
                   output_names_.data(), outputs_.size(), outputs_.data()));
  }

 private:
  template <class T>
  static message described(const char* name, const extents& shape) {
    message dimensions;
    for (const std::int64_t extent : shape)
      dimensions.part(1, message().number(1, static_cast<std::uint64_t>(extent)));
    const message tensor = message().number(1, type_of<T>).part(2, dimensions);
    return message().text(1, name).part(2, message().part(1, tensor));
  }
  template <class T>
  static OrtValue* value_of(T* data, const extents& shape) {
    static OrtMemoryInfo* const memory = [] {
      OrtMemoryInfo* info = nullptr;
      must(api().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &info));
      return info;
    }();
    std::size_t bytes = sizeof(T);
    for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
    OrtValue* value = nullptr;
    must(api().CreateTensorWithDataAsOrtValue(memory, data, bytes, shape.data(), shape.size(), type_of<T>,
                                              &value));
    return value;
  }
  void start() {
    static OrtEnv* const environment = [] {
      OrtEnv* made = nullptr;
      must(api().CreateEnv(ORT_LOGGING_LEVEL_ERROR, "rope", &made));
      return made;
    }();
    message model;
    model.number(1, 8).part(7, graph_.part(1, node_).text(2, "one_node"));
    model.part(8, message().text(1, "").number(2, 17))
        .part(8, message().text(1, "com.microsoft").number(2, 1));
    OrtSessionOptions* options = nullptr;
    must(api().CreateSessionOptions(&options));
    must(api().SetIntraOpNumThreads(options, 1));
    must(api().CreateSessionFromArray(environment, model.bytes().data(), model.bytes().size(), options,
                                      &session_));
    api().ReleaseSessionOptions(options);
  }

  message node_, graph_;
  std::vector<const char*> input_names_, output_names_;
  std::vector<OrtValue*> inputs_, outputs_;
  OrtSession* session_ = nullptr;
};

template <class T>
std::vector<T> filled(Index count, int seed) {
  std::vector<T> x(static_cast<std::size_t>(count));
  peers::fill(x.data(), count, seed);
  return x;
}

template <class Layout>
void rotate(row& of, const std::string& name, Index tokens, Index heads, Index head_dim) {
  constexpr std::int64_t first = 100;  // not 0, where nothing is rotated
  const Index rows = first + tokens, pairs = head_dim / 2, size = tokens * heads * head_dim;
  const rope::frequency_table<float> table(rope::frequencies(head_dim, 10000.0), rows);
  std::vector<float> cos_cache, sin_cache;
  for (Index row = 0; row < rows; ++row)
    for (Index i = 0; i < pairs; ++i) {
      cos_cache.push_back(table.cos(row)[i]);
      sin_cache.push_back(table.sin(row)[i]);
    }
  std::vector<float> x = filled<float>(size, 0), out = x;
  std::vector<std::int64_t> positions;
  for (Index t = 0; t < tokens; ++t) positions.push_back(first + t);
  node theirs("RotaryEmbedding");
  theirs.attribute("interleaved", std::int64_t{std::is_same_v<Layout, rope::interleaved>})
      .attribute("num_heads", std::int64_t{heads})
      .input("x", x.data(), {1, tokens, heads * head_dim})
      .input("positions", positions.data(), {1, tokens})
      .input("cos", cos_cache.data(), {rows, pairs})
      .input("sin", sin_cache.data(), {rows, pairs})
      .output("out", out.data(), {1, tokens, heads * head_dim});
  std::vector<float> ours = x;
  const auto from = rope::thd(static_cast<const float*>(x.data()), tokens, heads, head_dim);
  const auto to = rope::thd(ours.data(), tokens, heads, head_dim);
  const auto by_rope = [&] { rope::rotate_to<Layout>(from, to, table, Index{first}); };
  by_rope();
  theirs.compute();
  peers::must_agree(name, ours.data(), out.data(), size, 4 * 0x1p-24);
  peers::time_alternately(
      of, [&] { theirs.compute(); }, by_rope);
}

/// Keys and values are [kv_heads, keys, head_dim], a cache that already has the newest tokens.
template <class T>
void attend(row& of, const std::string& name, const peers::attention_shape& shape) {
  const auto [queries, keys, heads, kv_heads, head_dim] = shape;
  std::vector<T> q = filled<T>(queries * heads * head_dim, 1),
                 new_k = filled<T>(queries * kv_heads * head_dim, 2),
                 new_v = filled<T>(queries * kv_heads * head_dim, 3), out = q, ours = q;
  std::vector<T> k = filled<T>(keys * kv_heads * head_dim, 4), v = filled<T>(keys * kv_heads * head_dim, 5);
  std::int32_t last = static_cast<std::int32_t>(keys - 1), total = static_cast<std::int32_t>(keys);
  const extents cache = {1, kv_heads, keys, head_dim}, added = {1, queries, kv_heads * head_dim};
  node theirs("GroupQueryAttention");
  theirs.attribute("num_heads", std::int64_t{heads})
      .attribute("kv_num_heads", std::int64_t{kv_heads})
      .input("q", q.data(), {1, queries, heads * head_dim})
      .input("k", new_k.data(), added)
      .input("v", new_v.data(), added)
      .input("past_k", k.data(), cache)
      .input("past_v", v.data(), cache)
      .input("last", &last, {1})
      .input("total", &total, {1})
      .output("out", out.data(), {1, queries, heads * head_dim})
      .output("present_k", k.data(), cache)
      .output("present_v", v.data(), cache);

  const auto newest = [&](std::vector<T>& x) {
    return rope::bhsd(x.data(), 1, kv_heads, keys, head_dim).token_range(keys - queries, queries);
  };
  const auto newest_k = newest(k), newest_v = newest(v);
  const auto read = [&](const std::vector<T>& x, Index count, Index of_heads) {
    return rope::thd(static_cast<const T*>(x.data()), count, of_heads, head_dim);
  };
  const auto all = [&](const std::vector<T>& x) {
    return rope::bhsd(static_cast<const T*>(x.data()), 1, kv_heads, keys, head_dim);
  };
  const auto write = [&](const std::vector<T>& from, const auto& to) {
    for (Index t = 0; t < queries; ++t)
      for (Index h = 0; h < kv_heads; ++h)
        std::memcpy(to.at(0, t, h), read(from, queries, kv_heads).at(0, t, h),
                    static_cast<std::size_t>(head_dim) * sizeof(T));
  };
  const auto step = [&] {
    write(new_k, newest_k);
    write(new_v, newest_v);
    rope::attention(read(q, queries, heads), all(k), all(v), rope::thd(ours.data(), queries, heads, head_dim),
                    {.causal = true});
  };
  step();
  theirs.compute();
  const double u = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-11;
  peers::must_agree(name, ours.data(), out.data(), queries * heads * head_dim,
                    std::fmax(8 * u, 0x1p-24 * std::sqrt(static_cast<double>(keys * head_dim))));
  peers::time_alternately(
      of, [&] { theirs.compute(); }, step);
}

}  // namespace

int main(int argc, char** argv) {
  peers::add_rotations<rope::half_split, float>(rotate<rope::half_split>);
  peers::add_rotations<rope::interleaved, float>(rotate<rope::interleaved>);
  peers::add_attention<float>(attend<float>);
  peers::add_attention<Eigen::half>(attend<Eigen::half>);
  return bench::run(argc, argv);
}
