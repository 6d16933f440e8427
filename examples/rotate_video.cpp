// A video of 8 frames of 64 x 32 patches, with 8 heads of 64 channels. 48 channels of each head are rotated,
// 16 per axis, with pixel frequencies over coordinates of [-1, 1] (`get_axial_freqs(8, 64, 32)` of
// lucidrains/rotary-embedding-torch). The program checks every claim of its report.

#include <rope/rope.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using rope::Index;

constexpr std::array<Index, 3> extents = {8, 64, 32};
constexpr std::array<const char*, 3> names = {"time", "height", "width"};
constexpr Index tokens = extents[0] * extents[1] * extents[2], heads = 8, head_dim = 64;
constexpr double unit = 0x1p-24;  // half an ulp of 1 in float

bool all_true = true;

void check(bool holds, const char* claim) {
  std::printf("  %s  %s\n", holds ? "ok    " : "FAILED", claim);
  all_true = all_true && holds;
}

/// The shortest time of several runs.
double seconds_of(const auto& work, int runs = 5) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

auto view(std::vector<float>& video) { return rope::bshd(video.data(), 1, tokens, heads, head_dim); }

/// The row of a patch in the video.
Index token_of(const std::array<Index, 3>& at) { return (at[0] * extents[1] + at[1]) * extents[2] + at[2]; }

/// The score of two patches, summed over heads.
double score(const std::vector<float>& queries, const std::vector<float>& keys, Index query, Index key) {
  double sum = 0;
  for (Index c = 0; c < heads * head_dim; ++c)
    sum += static_cast<double>(queries[static_cast<std::size_t>(query * heads * head_dim + c)]) *
           static_cast<double>(keys[static_cast<std::size_t>(key * heads * head_dim + c)]);
  return sum;
}

/// A video of equal patches, which differ only by their coordinates.
std::vector<float> same_everywhere(const std::vector<float>& patch) {
  std::vector<float> video;
  video.reserve(patch.size() * static_cast<std::size_t>(tokens));
  for (Index t = 0; t < tokens; ++t) video.insert(video.end(), patch.begin(), patch.end());
  return video;
}

}  // namespace

int main() {
  const rope::frequencies frequencies = rope::axial(rope::frequencies::pixel(16, 256), 3);
  const Eigen::ArrayXXd coordinates = rope::grid_coordinates(
      rope::evenly_spaced(extents[0]), rope::evenly_spaced(extents[1]), rope::evenly_spaced(extents[2]));
  const rope::frequency_table table(frequencies, coordinates);

  std::mt19937 engine(1);
  const auto channel = [&] {
    return static_cast<float>(static_cast<double>(engine()) * 0x1p-31 - 1);
  };  // [-1, 1)
  std::vector<float> video(static_cast<std::size_t>(tokens * heads * head_dim)), patch(heads * head_dim);
  std::generate(video.begin(), video.end(), channel);
  std::generate(patch.begin(), patch.end(), channel);

  std::printf("A video of %d x %d x %d patches, %d heads of %d channels, %d of them rotary\n\n",
              int(extents[0]), int(extents[1]), int(extents[2]), int(heads), int(head_dim),
              int(table.rotary_dim()));
  const double entries = static_cast<double>(table.rows() * table.pairs());
  const double build = seconds_of([&] { rope::frequency_table<float>(frequencies, coordinates); });
  const double bytes = static_cast<double>(tokens * heads * table.rotary_dim()) * sizeof(float);
  std::vector<float> rotated = video;
  const double rotation = seconds_of([&] { rope::rotate<rope::interleaved>(view(rotated), table); });
  std::printf("  table    %d rows of %d pairs, %.1f MiB, %.2f ms, %.1f ns per pair\n", int(table.rows()),
              int(table.pairs()), 8 * entries / 0x1p20, 1e3 * build, 1e9 * build / entries);
  std::printf("  rotation %.1f MiB of rotary channels, %.2f ms, %.1f GB/s read and written\n\n",
              bytes / 0x1p20, 1e3 * rotation, 2 * bytes / rotation * 1e-9);

  rotated = video;
  rope::rotate<rope::interleaved>(view(rotated), table);
  bool rest_kept = true;
  double longest = 0;  // relative change of the length of a head
  for (Index head = 0; head < tokens * heads; ++head) {
    const float *before = &video[static_cast<std::size_t>(head * head_dim)],
                *after = &rotated[static_cast<std::size_t>(head * head_dim)];
    rest_kept = rest_kept && std::memcmp(before + 48, after + 48, 16 * sizeof(float)) == 0;
    double old_square = 0, new_square = 0;
    for (Index c = 0; c < head_dim; ++c) {
      old_square += static_cast<double>(before[c]) * static_cast<double>(before[c]);
      new_square += static_cast<double>(after[c]) * static_cast<double>(after[c]);
    }
    longest = std::max(longest, std::abs(new_square / old_square - 1));
  }
  check(rest_kept, "the 16 channels behind the rotary ones keep every bit");
  check(longest <= 8 * unit, "the length of every head stays");
  std::vector<float> back = rotated;
  rope::unrotate<rope::interleaved>(view(back), table);
  double farthest = 0;
  for (std::size_t i = 0; i < video.size(); ++i)
    farthest = std::max(farthest, std::abs(static_cast<double>(back[i]) - static_cast<double>(video[i])));
  check(farthest <= 6.3 * unit * std::sqrt(2.0), "unrotate gives the video back");

  // Patches are equal, so a score depends only on the displacement, along every axis and from every start.
  std::vector<float> places = same_everywhere(patch);
  rope::rotate<rope::interleaved>(view(places), table);
  const double own = score(places, places, 0, 0);
  const double rounding = 4 * 3 * unit * own;
  const std::array<Index, 3> center = {4, 32, 16};
  std::printf("\nScore of a patch for one like it, by displacement, relative to its own\n");
  std::array<double, 3> deviation = {};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    std::printf("\n  along %s\n", names[axis]);
    for (Index shift = 0; shift < extents[axis]; ++shift) {
      double first = 0;
      for (Index start = 0; start + shift < extents[axis]; ++start) {
        std::array<Index, 3> from = center, to = center;
        from[axis] = start;
        to[axis] = start + shift;
        const double here = score(places, places, token_of(from), token_of(to));
        if (start == 0) first = here;
        deviation[axis] = std::max(deviation[axis], std::abs(here - first));
      }
      if (shift < 8)
        std::printf("    %2d  %6.3f  %s\n", int(shift), first / own,
                    std::string(static_cast<std::size_t>(std::max(0.0, 50 * first / own)), '#').c_str());
    }
  }
  std::printf("\n");
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::string claim =
        std::string("scores along ") + names[axis] + " depend on the displacement alone";
    check(deviation[axis] <= rounding, claim.c_str());
  }

  // A clip cut from a longer video has other coordinates, but the same scores.
  Eigen::ArrayXXd shifted = coordinates;
  shifted.col(0) += 5.5;
  shifted.col(1) -= 0.37;
  std::vector<float> elsewhere = same_everywhere(patch);
  rope::rotate<rope::interleaved>(view(elsewhere), rope::frequency_table(frequencies, shifted));
  double moved = 0;
  for (Index key = 0; key < tokens; key += 61)
    moved = std::max(moved, std::abs(score(elsewhere, elsewhere, token_of(center), key) -
                                     score(places, places, token_of(center), key)));
  check(moved <= rounding, "a clip from another place and time has the same scores");
  return all_true ? 0 : 1;
}
