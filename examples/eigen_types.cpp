// SPDX-License-Identifier: MIT
// What you have and what you write: tensors, matrices and vectors of Eigen as heads. Every row of the table
// is run, and every channel is compared with the rotation written as a loop over the indices of the object.

#include <rope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>

namespace {

using rope::Index;

constexpr Index B = 2, S = 5, H = 3, D = 8;
constexpr int start = 7;

const rope::frequency_table<double> table(rope::frequencies(D), 100);

/// Channel d of a head before the rotation, different for every index.
double before(Index b, Index s, Index h, Index d) {
  return 0.25 + 0.5 * double(b) - 0.125 * double(s) + 0.75 * double(h) + 0.0625 * double(d * d);
}

/// The angle of pair i of token s, by the frequencies for text.
double angle_of_text(Index s, Index i) {
  return double(start + s) * std::pow(10000.0, -2 * double(i) / double(D));
}

/// The channel after the rotation, by the formula of the paper in halves: (u, v) are channels i and i + D /
/// 2.
double after(Index b, Index s, Index h, Index d, double (&angle_of)(Index, Index)) {
  const Index i = d % (D / 2);
  const double angle = angle_of(s, i);
  const double u = before(b, s, h, i), v = before(b, s, h, i + D / 2);
  return d < D / 2 ? u * std::cos(angle) - v * std::sin(angle) : v * std::cos(angle) + u * std::sin(angle);
}

bool all_right = true;

/// Runs one row of the table. `at(b, s, h, d)` is the channel by the indices of your object, [batch, tokens,
/// heads] are its extents, and `rotate` is the call that you write.
template <class At, class Rotate>
void row(const char* have, const char* write, Index batch, Index tokens, Index heads, const At& at,
         const Rotate& rotate, double (&angle_of)(Index, Index) = angle_of_text) {
  const auto for_each = [&](const auto& body) {
    for (Index b = 0; b < batch; ++b)
      for (Index s = 0; s < tokens; ++s)
        for (Index h = 0; h < heads; ++h)
          for (Index d = 0; d < D; ++d) body(b, s, h, d);
  };
  using channel = std::remove_reference_t<decltype(at(0, 0, 0, 0))>;
  for_each(
      [&](Index b, Index s, Index h, Index d) { at(b, s, h, d) = static_cast<channel>(before(b, s, h, d)); });
  rotate();
  double worst = 0;
  for_each([&](Index b, Index s, Index h, Index d) {
    const double error = std::abs(double(at(b, s, h, d)) - after(b, s, h, d, angle_of));
    worst = error <= worst ? worst : error;  // also if it is not a number
  });
  const bool right = worst <= (sizeof(channel) == sizeof(float) ? 2e-6 : 1e-14);
  all_right = all_right && right;
  std::printf("%-58s %-34s %s\n", have, write, right ? "right" : "WRONG");
}

using rope::half_split;
using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void pointers() {
  double memory[B * S * H * D];
  row(
      "double* to row-major memory [B, S, H, D]", "bshd(p, B, S, H, D)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return memory[((b * S + s) * H + h) * D + d]; },
      [&] { rope::rotate<half_split>(rope::bshd(memory, B, S, H, D), table, start); });
}

void tensors() {
  Eigen::Tensor<double, 4, Eigen::RowMajor> bshd(B, S, H, D), bhsd(B, H, S, D), sbhd(S, B, H, D);
  Eigen::Tensor<float, 3, Eigen::RowMajor> thd(S, H, D);
  row(
      "Tensor<double, 4, RowMajor> (B, S, H, D)", "bshd(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return bshd(b, s, h, d); },
      [&] { rope::rotate<half_split>(rope::bshd(bshd), table, start); });
  row(
      "Tensor<double, 4, RowMajor> (B, H, S, D)", "bhsd(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return bhsd(b, h, s, d); },
      [&] { rope::rotate<half_split>(rope::bhsd(bhsd), table, start); });
  row(
      "Tensor<double, 4, RowMajor> (S, B, H, D)", "sbhd(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return sbhd(s, b, h, d); },
      [&] { rope::rotate<half_split>(rope::sbhd(sbhd), table, start); });
  row(
      "Tensor<float, 3, RowMajor> (S, H, D)", "thd(x)", 1, S, H,
      [&](Index, Index s, Index h, Index d) -> float& { return thd(s, h, d); },
      [&] { rope::rotate<half_split>(rope::thd(thd), table, start); });

  Eigen::Tensor<double, 4> dhsb(D, H, S, B), dshb(D, S, H, B), dhbs(D, H, B, S);
  Eigen::Tensor<float, 3> dht(D, H, S);
  row(
      "Tensor<double, 4> (D, H, S, B), Eigen's default order", "dhsb(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return dhsb(d, h, s, b); },
      [&] { rope::rotate<half_split>(rope::dhsb(dhsb), table, start); });
  row(
      "Tensor<double, 4> (D, S, H, B)", "dshb(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return dshb(d, s, h, b); },
      [&] { rope::rotate<half_split>(rope::dshb(dshb), table, start); });
  row(
      "Tensor<double, 4> (D, H, B, S)", "dhbs(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return dhbs(d, h, b, s); },
      [&] { rope::rotate<half_split>(rope::dhbs(dhbs), table, start); });
  row(
      "Tensor<float, 3> (D, H, S)", "dht(x)", 1, S, H,
      [&](Index, Index s, Index h, Index d) -> float& { return dht(d, h, s); },
      [&] { rope::rotate<half_split>(rope::dht(dht), table, start); });

  Eigen::TensorMap<Eigen::Tensor<double, 4>> map(dhsb.data(), D, H, S, B);
  row(
      "TensorMap<Tensor<double, 4>> (D, H, S, B)", "dhsb(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return map(d, h, s, b); },
      [&] { rope::rotate<half_split>(rope::dhsb(map), table, start); });

  Eigen::Tensor<double, 4> any(B, S, H, D);  // channels are the slowest index
  row(
      "Tensor<double, 4> (B, S, H, D), channels not fastest", "staged<\"bshd\">(x), .store(x)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return any(b, s, h, d); },
      [&] {
        auto copy = rope::staged<"bshd">(any);
        rope::rotate<half_split>(copy.view(), table, start);
        copy.store(any);
      });

  // Tokens of a picture, row after row.
  Eigen::Tensor<double, 4, Eigen::RowMajor> picture(B, 2, 3, D);
  Eigen::Tensor<double, 4> column_picture(D, 3, 2, B);
  row(
      "Tensor<double, 4, RowMajor> (B, height, width, D)", "view_as<\"bssd\">(x)", B, 6, 1,
      [&](Index b, Index s, Index, Index d) -> double& { return picture(b, s / 3, s % 3, d); },
      [&] { rope::rotate<half_split>(rope::view_as<"bssd">(picture), table, start); });
  row(
      "Tensor<double, 4> (D, width, height, B)", "view_as<\"dssb\">(x)", B, 6, 1,
      [&](Index b, Index s, Index, Index d) -> double& { return column_picture(d, s % 3, s / 3, b); },
      [&] { rope::rotate<half_split>(rope::view_as<"dssb">(column_picture), table, start); });
}

void matrices() {
  Eigen::MatrixXd m(H * D, S);
  const auto in_m = [&](Index, Index s, Index h, Index d) -> double& { return m(h * D + d, s); };
  row("MatrixXd [H * D, S], Eigen's default order", "dht(m, H)", 1, S, H, in_m,
      [&] { rope::rotate<half_split>(rope::dht(m, H), table, start); });
  row("the same, by its transpose", "thd(m.transpose(), H)", 1, S, H, in_m,
      [&] { rope::rotate<half_split>(rope::thd(m.transpose(), H), table, start); });
  row("Map<MatrixXd> [H * D, S]", "dht(m, H)", 1, S, H, in_m, [&] {
    rope::rotate<half_split>(rope::dht(Eigen::Map<Eigen::MatrixXd>(m.data(), H * D, S), H), table, start);
  });
  row("Ref<MatrixXd> [H * D, S]", "dht(m, H)", 1, S, H, in_m, [&] {
    Eigen::Ref<Eigen::MatrixXd> writable(m);
    rope::rotate<half_split>(rope::dht(writable, H), table, start);
  });

  row_major r(S, H * D), batch(B * S, H * D), large(S + 2, H * D + 5);
  row(
      "Matrix<..., RowMajor> [S, H * D]", "thd(m, H)", 1, S, H,
      [&](Index, Index s, Index h, Index d) -> double& { return r(s, h * D + d); },
      [&] { rope::rotate<half_split>(rope::thd(r, H), table, start); });
  row(
      "Matrix<..., RowMajor> [B * S, H * D]", "bshd(m, B, H)", B, S, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return batch(b * S + s, h * D + d); },
      [&] { rope::rotate<half_split>(rope::bshd(batch, B, H), table, start); });
  row(
      "a block of a row-major matrix", "thd(m.block(1, 2, S, H * D), H)", 1, S, H,
      [&](Index, Index s, Index h, Index d) -> double& { return large(1 + s, 2 + h * D + d); },
      [&] { rope::rotate<half_split>(rope::thd(large.block(1, 2, S, H * D), H), table, start); });

  Eigen::Matrix<double, int(H * D), int(S)> fixed;
  row(
      "Matrix<double, 24, 5>, a fixed size", "dht(m, H)", 1, S, H,
      [&](Index, Index s, Index h, Index d) -> double& { return fixed(h * D + d, s); },
      [&] { rope::rotate<half_split>(rope::dht(fixed, H), table, start); });
  Eigen::VectorXd column(H * D);
  Eigen::RowVectorXd line(H * D);
  row(
      "VectorXd [H * D], one token", "dht(v, H)", 1, 1, H,
      [&](Index, Index, Index h, Index d) -> double& { return column(h * D + d); },
      [&] { rope::rotate<half_split>(rope::dht(column, H), table, start); });
  row(
      "RowVectorXd [H * D], one token", "thd(v, H)", 1, 1, H,
      [&](Index, Index, Index h, Index d) -> double& { return line(h * D + d); },
      [&] { rope::rotate<half_split>(rope::thd(line, H), table, start); });
}

constexpr Index patch_rows = 2, patch_columns = 3;

/// The angle of pair i of patch s: half of the pairs rotate by its row, the other half by its column.
double angle_of_patch(Index s, Index i) {
  const Index coordinate = i < D / 4 ? s / patch_columns : s % patch_columns;
  return double(coordinate) * std::pow(10000.0, -2 * double(i % (D / 4)) / double(D / 2));
}

/// A vision transformer (ViT): the class token comes first and is not rotated, the patches after it rotate on
/// two axes.
void patches_behind_a_class_token() {
  constexpr Index patches = patch_rows * patch_columns;
  const rope::frequency_table<double> grid(rope::axial(rope::frequencies(D / 2), 2),
                                           rope::grid_positions({patch_rows, patch_columns}));
  Eigen::Tensor<double, 4, Eigen::RowMajor> x(B, 1 + patches, H, D);
  x.setConstant(0.5);
  row(
      "Tensor (B, 1 + patches, H, D), a class token first", "bshd(x).token_range(1, patches)", B, patches, H,
      [&](Index b, Index s, Index h, Index d) -> double& { return x(b, 1 + s, h, d); },
      [&] { rope::rotate<half_split>(rope::bshd(x).token_range(1, patches), grid); }, angle_of_patch);
  for (Index b = 0; b < B; ++b)
    for (Index h = 0; h < H; ++h)
      for (Index d = 0; d < D; ++d) all_right = all_right && x(b, 0, h, d) == 0.5;
}

}  // namespace

int main() {
  std::printf("%-58s %-34s\n", "what you have", "what you write");
  pointers();
  tensors();
  matrices();
  patches_behind_a_class_token();
  return all_right ? 0 : 1;
}
