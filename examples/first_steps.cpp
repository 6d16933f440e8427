#include <cstdio>
#include <random>
#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>
int main() {
  Eigen::Tensor<float, 4, Eigen::RowMajor> q(1, 16, 32, 128), k(1, 16, 8, 128), v = k, out = q;
  for (std::mt19937 random(1); auto* x : {&q, &k, &v})  // [batch, tokens, heads, head_dim]
    for (int i = 0; i < x->size(); ++i) x->data()[i] = static_cast<float>(random()) * 0x1p-31f - 1;
  const rope::frequency_table table(rope::frequencies(128, 500000.0), 8192);  // Llama 3, once per model
  rope::attention(rope::bshd(q), rope::bshd(k), rope::bshd(v), rope::bshd(out));
  std::printf("not rotated:            %.4f\n", double(out(0, 15, 0, 0)));
  for (const int start : {0, 5000}) {
    rope::rotate<rope::half_split>(rope::bshd(q), rope::bshd(k), table, start);  // in place
    rope::attention(rope::bshd(q), rope::bshd(k), rope::bshd(v), rope::bshd(out));
    std::printf("positions %4d to %4d: %.4f\n", start, start + 15, double(out(0, 15, 0, 0)));
    rope::unrotate<rope::half_split>(rope::bshd(q), rope::bshd(k), table, start);
  }
}
