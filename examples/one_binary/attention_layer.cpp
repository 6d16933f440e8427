// The only file of the program that includes rope. CMake compiles it once per instruction set, each time with
// its definitions in another namespace.

#include "attention_layer.hpp"

#include <rope/rope.hpp>

namespace ROPE_INSTRUCTION_SET {

namespace {

class layer : public attention_layer {
 public:
  explicit layer(const shape& of)
      : shape_(of),
        table_(rope::frequencies(of.head_dim, 10000.0), of.capacity),
        cache_(1, of.capacity, of.kv_heads, of.head_dim) {}

  void attend(std::ptrdiff_t tokens, float* q, const float* k, const float* v, float* out) override {
    const auto queries = rope::thd(q, tokens, shape_.heads, shape_.head_dim);
    rope::rotate<rope::half_split>(queries, table_, cache_.next_positions()[0]);
    cache_.append<rope::half_split>(rope::thd(k, tokens, shape_.kv_heads, shape_.head_dim),
                                    rope::thd(v, tokens, shape_.kv_heads, shape_.head_dim), table_);
    rope::attention(queries, cache_, rope::thd(out, tokens, shape_.heads, shape_.head_dim),
                    {.queries_are_rotated = true});
  }

 private:
  shape shape_;
  rope::frequency_table<float> table_;
  rope::kv_cache<float> cache_;
};

}  // namespace

make_attention_layer make;
std::unique_ptr<attention_layer> make(const attention_layer::shape& of) {
  return std::make_unique<layer>(of);
}

}  // namespace ROPE_INSTRUCTION_SET
