// The two ways Python models rotate, in PyTorch's C++ library: the complex product of Meta's Llama, and
// x * cos + rotate_half(x) * sin of Hugging Face transformers. Both make new tensors, as the models do.

#include "other_rotations.hpp"

#include <torch/torch.h>

namespace {

using rope::Index;

/// [tokens, pairs] from rows of the table.
torch::Tensor rows_of(const rope::frequency_table<float>& table, Index tokens, bool cosine) {
  torch::Tensor rows = torch::empty({tokens, table.pairs()});
  for (Index t = 0; t < tokens; ++t) {
    const auto row = cosine ? table.cos(t) : table.sin(t);
    std::copy(row.data(), row.data() + row.size(), rows[t].data_ptr<float>());
  }
  return rows;
}

}  // namespace

std::vector<bench::rotation_way> bench::torch_ways() {
  torch::set_num_threads(1);
  return {
      {"torch_complex/interleaved",
       [](float* x, const rope::frequency_table<float>& table, Index tokens, Index heads, Index head_dim) {
         const auto pope = torch::complex(rows_of(table, tokens, true), rows_of(table, tokens, false))
                               .view({tokens, 1, -1});
         return [=, input = torch::from_blob(x, {tokens, heads, head_dim / 2, 2})] {
           const torch::NoGradGuard inference;
           torch::view_as_real(torch::view_as_complex(input) * pope).flatten(2);
         };
       }},
      {"torch_rotate_half/half_split",
       [](float* x, const rope::frequency_table<float>& table, Index tokens, Index heads, Index head_dim) {
         const auto c = rows_of(table, tokens, true), s = rows_of(table, tokens, false);
         const auto cos = torch::cat({c, c}, -1).unsqueeze(1), sin = torch::cat({s, s}, -1).unsqueeze(1);
         return [=, input = torch::from_blob(x, {tokens, heads, head_dim})] {
           const torch::NoGradGuard inference;
           const auto halves = input.chunk(2, -1);
           const torch::Tensor rotated = input * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
         };
       }},
  };
}
