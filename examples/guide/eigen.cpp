// The programs of eigen.md. Each is compared with attention or rotation by its formula.

#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice
#include <unsupported/Eigen/CXX11/Tensor>

#include "guide.hpp"

namespace {

using namespace guide;

const formula::speeds inv_freq = formula::speeds_of(64, 10000);
const rope::frequency_table<float> table(rope::frequencies(64), 4096);

void row_major() {
  Eigen::Tensor<float, 4, Eigen::RowMajor> q = random_tensor(2, 12, 4, 64, 1),
                                           k = random_tensor(2, 12, 2, 64, 2),
                                           v = random_tensor(2, 12, 2, 64, 3), out(2, 12, 4, 64);
  const tensor q0 = q, k0 = k;

  rope::rotate<rope::half_split>(rope::bshd(q), rope::bshd(k), table);  // in place
  rope::attention(rope::bshd(q), rope::bshd(k), rope::bshd(v), rope::bshd(out));

  check(attention_error(q0, k0, v, out, inv_freq) <= float_bound,
        "row-major tensors (batch, tokens, heads, head_dim)");
}

void column_major() {
  Eigen::Tensor<float, 4> q(64, 4, 12, 2);  // head_dim, heads, tokens, batch
  const tensor same = random_tensor(2, 12, 4, 64, 1);
  std::copy(same.data(), same.data() + same.size(), q.data());

  rope::rotate<rope::half_split>(rope::dhsb(q), table);

  tensor expected = same;
  rope::rotate<rope::half_split>(rope::bshd(expected), table);
  double off = 0;
  for (Index b = 0; b < 2; ++b)
    for (Index s = 0; s < 12; ++s)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 64; ++d)
          formula::compare(off, double(q(d, h, s, b)), double(expected(b, s, h, d)));
  check(off <= 0, "column-major tensors (head_dim, heads, tokens, batch)");

  Eigen::Tensor<float, 4> x(2, 12, 4, 64);  // column-major, and channels are the slowest index
  for (Index b = 0; b < 2; ++b)
    for (Index s = 0; s < 12; ++s)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 64; ++d) x(b, s, h, d) = same(b, s, h, d);

  auto copy = rope::staged<"bshd">(x);  // one letter for each index, in any order
  rope::rotate<rope::half_split>(copy.view(), table);
  copy.store(x);

  for (Index b = 0; b < 2; ++b)
    for (Index s = 0; s < 12; ++s)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 64; ++d)
          formula::compare(off, double(x(b, s, h, d)), double(expected(b, s, h, d)));
  check(off <= 0, "any other order, by a copy");
}

void maps_and_ranges() {
  tensor memory = random_tensor(2, 12, 8, 64, 4), expected = memory;
  float* data = memory.data();

  Eigen::TensorMap<Eigen::Tensor<float, 4, Eigen::RowMajor>> map(data, 2, 12, 8, 64);
  const auto x = rope::bshd(map);
  rope::rotate<rope::half_split>(x.head_range(0, 4), table);                    // instead of a slice of heads
  rope::rotate<rope::half_split>(x.batch_range(1, 1).head_range(4, 4), table);  // instead of a chip of row 1

  rope::rotate<rope::half_split>(rope::bshd(expected), table);
  double off = 0, untouched = 0;
  const tensor before = random_tensor(2, 12, 8, 64, 4);
  for (Index s = 0; s < 12; ++s)
    for (Index d = 0; d < 64; ++d)
      for (Index h = 0; h < 8; ++h) {
        formula::compare(off, double(memory(1, s, h, d)), double(expected(1, s, h, d)));
        formula::compare(h < 4 ? off : untouched, double(memory(0, s, h, d)),
                         double((h < 4 ? expected : before)(0, s, h, d)));
      }
  check(off <= 0 && untouched <= 0, "TensorMap, ranges of heads and rows");
}

void matrices() {
  const tensor q = random_tensor(1, 12, 4, 64, 5), k = random_tensor(1, 12, 4, 64, 6);
  tensor out(1, 12, 4, 64);

  using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const row_major wq = row_major::Identity(256, 256);  // a projection of the model
  const Eigen::Map<const row_major> tokens(q.data(), 12, 256);

  row_major queries = tokens * wq;  // [tokens, heads * head_dim]: evaluated, not an expression
  rope::rotate<rope::half_split>(rope::thd(queries, 4), table);

  tensor expected = q;
  rope::rotate<rope::half_split>(rope::bshd(expected), table);
  double off = 0;
  for (Index i = 0; i < q.size(); ++i)
    formula::compare(off, double(queries.data()[i]), double(expected.data()[i]));
  check(off <= 0, "row-major matrix [tokens, heads * head_dim]");

  Eigen::MatrixXf keys(256, 12);  // Eigen's default order: [heads * head_dim, tokens]
  std::copy(k.data(), k.data() + k.size(), keys.data());
  rope::rotate<rope::half_split>(rope::dht(keys, 4), table);
  rope::attention(rope::thd(queries, 4), rope::dht(keys, 4), rope::bshd(q), rope::bshd(out));
  check(attention_error(q, k, q, out, inv_freq) <= float_bound,
        "column-major matrix [heads * head_dim, tokens]");

  Eigen::MatrixXf x = Eigen::Map<const row_major>(q.data(), 12, 256);
  row_major rows = x;  // x: column-major [tokens, heads * head_dim]
  rope::rotate<rope::half_split>(rope::thd(rows, 4), table);
  x = rows;
  for (Index t = 0; t < 12; ++t)
    for (Index c = 0; c < 256; ++c)
      formula::compare(off, double(x(t, c)), double(expected.data()[t * 256 + c]));
  check(off <= 0, "column-major matrix [tokens, heads * head_dim], by a copy");
}

void narrow_types() {
  const tensor q = random_tensor(1, 12, 4, 64, 7), k = random_tensor(1, 12, 2, 64, 8),
               v = random_tensor(1, 12, 2, 64, 9);
  tensor out(1, 12, 4, 64);

  rope::kv_cache<Eigen::bfloat16> cache(1, 4096, 2, 64);  // batch, capacity, kv_heads, head_dim
  for (Index t = 0; t < 12; ++t) {                        // one token at a time
    cache.append<rope::half_split>(rope::bshd(k).token_range(t, 1), rope::bshd(v).token_range(t, 1), table);
    rope::attention<rope::half_split>(rope::bshd(q).token_range(t, 1), cache,
                                      rope::bshd(out).token_range(t, 1), table);
  }

  check(attention_error(q, k, v, out, inv_freq) <= bfloat16_bound, "decoding with a cache of bfloat16");
}

void batches() {
  tensor x = random_tensor(3, 1, 4, 64, 10), expected = x;
  Eigen::VectorXi lengths(3);
  lengths << 17, 4, 250;

  rope::rotate<rope::half_split>(rope::bshd(x), table,
                                 rope::row_starts{lengths});  // row b starts at position lengths[b]

  for (Index b = 0; b < 3; ++b)
    rope::rotate<rope::half_split>(rope::bshd(expected).batch_range(b, 1), table, lengths[b]);
  check(difference(x, expected) <= 0, "a batch whose rows are at different positions");
}

void threads() {
  const tensor x = random_tensor(1, 512, 8, 64, 11), v = random_tensor(1, 512, 8, 64, 12);
  tensor q(1, 512, 8, 64), out(1, 512, 8, 64), same(1, 512, 8, 64), expected(1, 512, 8, 64);

  Eigen::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice device(&pool, 2);
  q.device(device) = x * 2.0f;  // an expression of Eigen
  rope::rotate<rope::half_split>(rope::bshd(q), table, 0, device);
  rope::attention(rope::bshd(q), rope::bshd(q), rope::bshd(v), rope::bshd(out), {}, device);

  same = x * 2.0f;
  rope::rotate<rope::half_split>(rope::bshd(same), table);
  rope::attention(rope::bshd(same), rope::bshd(same), rope::bshd(v), rope::bshd(expected));
  check(difference(q, same) <= 0 && difference(out, expected) <= 0,
        "Eigen::ThreadPoolDevice: the same bits as one thread");
}

}  // namespace

int main() {
  row_major();
  column_major();
  maps_and_ranges();
  matrices();
  narrow_types();
  batches();
  threads();
  return all_hold ? 0 : 1;
}
