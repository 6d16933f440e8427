// SPDX-License-Identifier: MIT
// Positions of prompts of text, images, videos and sound, and of padded batches, of any extents: each model's
// rule, written token by token, or an exception.
#include <rope/positions.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"

using fuzz::bytes;
using fuzz::check;
using rope::Index;

namespace {

constexpr double two_to_the_53 = 0x1p53;

/// One piece of a prompt.
struct piece {
  enum { text, vision, both } kind = text;
  Index tokens = 0;  // of text or sound
  Index frames = 0, height = 0, width = 0;
  double step = 1;

  bool is_vision() const { return kind != text; }
  Index seen() const { return frames == 0 || height == 0 || width == 0 ? 0 : frames * height * width; }
};

/// The expected result of a call with one piece.
enum class outcome { positions, invalid, too_long };

outcome outcome_of(const piece& p) {
  if (p.is_vision()) {
    if (p.frames < 0 || p.height < 0 || p.width < 0) return outcome::invalid;
    const double span = p.step * static_cast<double>(p.frames);
    if (!(p.step >= 0 && p.step <= two_to_the_53 && span <= two_to_the_53)) return outcome::invalid;
    const double seen =
        static_cast<double>(p.frames) * static_cast<double>(p.height) * static_cast<double>(p.width);
    if (seen > 0x1p50) return outcome::too_long;
  }
  if (p.kind != piece::vision) {
    if (p.tokens < 0) return outcome::invalid;
    if (p.tokens > Index{1} << 50) return outcome::too_long;
  }
  return outcome::positions;
}

double draw_step(bytes& b) {
  static constexpr double common[] = {1, 2, 25, 0.5, 12.5, 0, 13, 0.375};  // exact with every frame
  if (!b.one_in(8)) return b.one_of(common);
  return b.coin() ? b.moderate() / 16 : b.real();
}
/// Mostly small, so that a prompt has few tokens. At most one piece of a prompt is `wild`, so that the
/// library's order of checks does not matter.
piece draw_piece(bytes& b, bool sound, bool wild) {
  const auto extent = [&](long most) -> Index {
    if (!wild || b.coin()) return b.up_to(most);
    static constexpr Index odd[] = {-1, std::numeric_limits<Index>::min(), Index{1} << 60,
                                    std::numeric_limits<Index>::max()};
    return b.one_of(odd);
  };
  piece p;
  const long kind = b.up_to(sound ? 2 : 1);
  if (kind == 0) {
    p.tokens = extent(5);
    return p;
  }
  p.kind = kind == 1 ? piece::vision : piece::both;
  p.frames = extent(3), p.height = extent(4), p.width = extent(4);
  p.step = wild ? draw_step(b) : std::clamp(draw_step(b), 0.0, 100.0);
  if (std::isnan(p.step) && !wild) p.step = 1;
  if (p.step >= 0 && p.step < 0x1p40) p.step = std::floor(p.step * 256) / 256;
  if (p.kind == piece::both) p.tokens = extent(6);
  return p;
}
std::vector<piece> draw_prompt(bytes& b, bool sound) {
  std::vector<piece> prompt(static_cast<std::size_t>(b.up_to(4)));
  const long wild = b.one_in(4) ? b.up_to(4) : -1;
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = draw_piece(b, sound, static_cast<long>(i) == wild);
  return prompt;
}

template <class Run>
std::vector<Run> runs_of(const std::vector<piece>& prompt) {
  std::vector<Run> runs;
  for (const piece& p : prompt) {
    const rope::vision_run vision = {p.frames, p.height, p.width, p.step};
    if (p.kind == piece::text) runs.push_back(rope::text_run{p.tokens});
    if (p.kind == piece::vision) runs.push_back(vision);
    if constexpr (std::is_same_v<Run, rope::omni_run>)
      if (p.kind == piece::both) runs.push_back(rope::sounding_video_run{vision, p.tokens});
  }
  return runs;
}

/// The coordinates of a prompt, and the next position after it.
template <class S>
struct expected {
  std::vector<std::vector<S>> tokens;
  S next = 0;
  bool out_of_range = false;  // a piece begins beyond 2^53

  void add(S time, S height, S width) { tokens.push_back({time, height, width}); }
  void add(S position) { add(position, position, position); }
  S largest_since(std::size_t first) const {
    S result = tokens[first][0];
    for (std::size_t i = first; i < tokens.size(); ++i)
      for (const S c : tokens[i]) result = std::max(result, c);
    return result;
  }
  bool may_begin() {
    out_of_range = out_of_range || !(std::abs(static_cast<double>(next)) <= two_to_the_53);  // or NaN
    return !out_of_range;
  }
};

/// Time of a frame. Integer times are rounded down.
template <class S>
S time_of(const piece& p, Index frame) {
  return static_cast<S>(static_cast<double>(frame) * p.step);
}

template <class S>
void add_patches(expected<S>& e, const piece& p, S start) {
  if (p.seen() == 0) return;
  for (Index f = 0; f < p.frames; ++f)
    for (Index r = 0; r < p.height; ++r)
      for (Index c = 0; c < p.width; ++c) e.add(start + time_of<S>(p, f), start + S(r), start + S(c));
}

/// Text, images and videos without sound of the Qwen models.
template <class S>
void add_plain(expected<S>& e, const piece& p, bool past_sides) {
  const S start = e.next;
  const std::size_t first = e.tokens.size();
  if (p.kind == piece::text) {
    for (Index t = 0; t < p.tokens; ++t) e.add(start + S(t));
    e.next = start + S(p.tokens);
  } else if (p.seen() > 0) {
    add_patches(e, p, start);
    e.next = past_sides ? start + S(std::max(p.height, p.width)) : e.largest_since(first) + 1;
  }
}

expected<std::int64_t> qwen_vl(const std::vector<piece>& prompt, std::int64_t start, bool past_sides) {
  expected<std::int64_t> e;
  e.next = start;
  for (const piece& p : prompt)
    if (e.may_begin()) add_plain(e, p, past_sides);
  if (!e.tokens.empty()) e.next = e.largest_since(0) + 1;
  return e;
}

expected<double> video_rope(const std::vector<piece>& prompt, double start) {
  expected<double> e;
  e.next = start;
  for (const piece& p : prompt) {
    if (!e.may_begin()) break;
    if (p.kind == piece::text) {
      add_plain(e, p, false);
    } else if (p.seen() > 0) {
      for (Index f = 0; f < p.frames; ++f)
        for (Index r = 0; r < p.height; ++r)
          for (Index c = 0; c < p.width; ++c) {
            const double time = e.next + static_cast<double>(f) * p.step;
            e.add(time, time + double(r - (p.height - 1) / 2), time + double(c - (p.width - 1) / 2));
          }
      e.next = e.next + static_cast<double>(p.frames - 1) * p.step + 1;
    }
  }
  return e;
}

/// (position, width, height, image), or the last three.
expected<std::int64_t> hunyuan(const std::vector<piece>& prompt, Index axes) {
  expected<std::int64_t> e;
  std::int64_t image = 0;
  for (const piece& p : prompt) {
    const auto here = [&] { return static_cast<std::int64_t>(e.tokens.size()); };
    const auto add = [&](std::int64_t w, std::int64_t h, std::int64_t i) {
      e.tokens.push_back(axes == 4 ? std::vector{here(), w, h, i} : std::vector{w, h, i});
    };
    if (p.kind == piece::text) {
      for (Index t = 0; t < p.tokens; ++t) add(here(), here(), here());
    } else if (p.seen() > 0) {
      for (Index r = 0; r < p.height; ++r)
        for (Index c = 0; c <= p.width; ++c) add(c, r, image);
      ++image;
    }
  }
  e.next = static_cast<std::int64_t>(e.tokens.size());
  return e;
}

/// The pieces of `times`, split before the first token whose time is `chunk`, 2 chunk, ... or later. One
/// token ends at most one piece.
std::vector<std::pair<std::size_t, std::size_t>> chunks_of(const std::vector<std::int64_t>& times,
                                                           std::int64_t chunk) {
  std::vector<std::pair<std::size_t, std::size_t>> chunks;
  std::size_t start = 0;
  for (std::size_t i = 0; i < times.size(); ++i)
    if (times[i] >= chunk * static_cast<std::int64_t>(chunks.size() + 1))
      chunks.emplace_back(start, i), start = i;
  if (start < times.size()) chunks.emplace_back(start, times.size());
  return chunks;
}

expected<std::int64_t> qwen2_5_omni(const std::vector<piece>& prompt, std::int64_t start,
                                    std::int64_t chunk) {
  expected<std::int64_t> e;
  e.next = start;
  for (const piece& p : prompt) {
    if (!e.may_begin()) break;
    if (p.kind != piece::both) {
      add_plain(e, p, false);
      continue;
    }
    const std::int64_t opened = e.next;
    e.add(opened), e.add(opened);
    expected<std::int64_t> frames, sound;
    std::vector<std::int64_t> frame_times, sound_times;
    add_patches(frames, p, opened + 1);
    for (Index i = 0; i < p.seen(); ++i)
      frame_times.push_back(time_of<std::int64_t>(p, i / (p.height * p.width)));
    for (Index i = 0; i < p.tokens; ++i) sound.add(opened + 1 + i), sound_times.push_back(i);
    const auto frame_chunks = chunks_of(frame_times, chunk), sound_chunks = chunks_of(sound_times, chunk);
    std::int64_t last = opened;
    const auto add = [&](const expected<std::int64_t>& from, const auto& chunks, std::size_t which) {
      if (which >= chunks.size()) return;
      const std::size_t first = e.tokens.size();
      for (std::size_t i = chunks[which].first; i < chunks[which].second; ++i)
        e.tokens.push_back(from.tokens[i]);
      if (e.tokens.size() > first) last = e.largest_since(first);
    };
    for (std::size_t which = 0; which < std::max(frame_chunks.size(), sound_chunks.size()); ++which) {
      add(frames, frame_chunks, which);
      add(sound, sound_chunks, which);
    }
    e.add(last + 1), e.add(last + 1);
    e.next = last + 2;
  }
  if (!e.tokens.empty()) e.next = e.largest_since(0) + 1;
  return e;
}

expected<double> qwen3_omni(const std::vector<piece>& prompt, double start) {
  expected<double> e;
  e.next = start;
  for (const piece& p : prompt) {
    if (!e.may_begin()) break;
    if (p.kind != piece::both) {
      add_plain(e, p, false);
      continue;
    }
    const double first = e.next + 2;
    e.add(e.next), e.add(e.next + 1);
    expected<double> frames;
    add_patches(frames, p, first);
    std::size_t seen = 0;
    Index heard = 0;
    while (seen < frames.tokens.size() && heard < p.tokens)
      if (frames.tokens[seen][0] <= first + double(heard))
        e.tokens.push_back(frames.tokens[seen++]);
      else
        e.add(first + double(heard++));
    const std::size_t rest = e.tokens.size();  // of one stream, after the other has ended
    while (seen < frames.tokens.size()) e.tokens.push_back(frames.tokens[seen++]);
    while (heard < p.tokens) e.add(first + double(heard++));
    const double last = e.tokens.size() > rest ? e.largest_since(rest) : first - 1;
    e.add(last + 1), e.add(last + 2);
    e.next = last + 3;
  }
  if (!e.tokens.empty()) e.next = e.largest_since(0) + 1;
  return e;
}

/// The call gives these positions, or throws as the pieces and the start require.
template <class S, class Call>
void compare(const std::vector<piece>& prompt, const expected<S>& e, Index axes, const Call& call) {
  for (const piece& p : prompt) {
    if (outcome_of(p) == outcome::invalid)
      return fuzz::rejects<std::invalid_argument>("pieces that are none throw", call);
    if (outcome_of(p) == outcome::too_long)
      return fuzz::rejects<std::length_error>("prompts that fit no memory throw", call);
  }
  if (e.out_of_range) return fuzz::rejects<std::out_of_range>("positions are at most 2^53", call);
  const auto got = call();
  check(got.coordinates.rows() == static_cast<Index>(e.tokens.size()) && got.coordinates.cols() == axes,
        "every token has coordinates");
  for (Index t = 0; t < got.coordinates.rows(); ++t)
    for (Index a = 0; a < axes; ++a)
      check(got.coordinates(t, a) == e.tokens[static_cast<std::size_t>(t)][static_cast<std::size_t>(a)],
            "a token is at the position of its rule");
  if (e.next != e.next) return check(got.next != got.next, "an empty prompt ends where it begins");
  check(got.next == e.next, "generation continues at the position of its rule");
  check(got.delta() == e.next - static_cast<S>(e.tokens.size()),
        "delta is the next position less the tokens");
}

void run_prompt(bytes& b) {
  static constexpr std::int64_t starts[] = {0,
                                            0,
                                            3,
                                            -7,
                                            std::int64_t{1} << 53,
                                            -(std::int64_t{1} << 53) - 2,
                                            (std::int64_t{1} << 53) + 2,
                                            std::int64_t{1} << 61};
  static constexpr double real_starts[] = {0,      0.5,    -7,
                                           0x1p53, 0x1p54, std::numeric_limits<double>::quiet_NaN()};
  const long model = b.up_to(5);
  const bool omni = model >= 4;
  const std::vector<piece> prompt = draw_prompt(b, omni);
  const auto runs = runs_of<rope::prompt_run>(prompt);
  const auto omni_runs = runs_of<rope::omni_run>(prompt);
  // Expected positions of empty pieces use no memory: they are not enumerated.
  const bool valid = std::all_of(prompt.begin(), prompt.end(),
                                 [](const piece& p) { return outcome_of(p) == outcome::positions; });
  const std::vector<piece> walked = valid ? prompt : std::vector<piece>();
  const std::int64_t start = b.one_of(starts);
  switch (model) {
    case 0:
    case 1: {
      const auto advance =
          b.coin() ? rope::vision_advance::past_sides : rope::vision_advance::past_time_and_sides;
      const auto e = qwen_vl(walked, start, advance == rope::vision_advance::past_sides);
      return compare(prompt, e, 3, [&] { return rope::qwen_vl_positions(runs, start, advance); });
    }
    case 2: {
      const double from = b.one_of(real_starts);
      return compare(prompt, video_rope(walked, from), 3,
                     [&] { return rope::video_rope_positions(runs, from); });
    }
    case 3: {
      const Index axes = b.one_in(8) ? b.up_to(6) : 3 + b.up_to(1);
      const auto call = [&] { return rope::hunyuan_vl_positions(runs, axes); };
      const bool is_video = valid && std::any_of(prompt.begin(), prompt.end(), [](const piece& p) {
                              return p.is_vision() && p.frames > 1;
                            });
      if (is_video || axes < 3 || axes > 4)
        return fuzz::rejects<std::invalid_argument>("images have one frame, and three or four axes", call);
      return compare(prompt, hunyuan(walked, axes), axes, call);
    }
    case 4: {
      static constexpr std::int64_t chunks[] = {
          50, 1, 2, 3, 7, std::int64_t{1} << 53, 0, -1, (std::int64_t{1} << 53) + 1};
      const std::int64_t chunk = b.one_of(chunks);
      const auto call = [&] { return rope::qwen2_5_omni_positions(omni_runs, start, chunk); };
      if (chunk < 1 || chunk > std::int64_t{1} << 53)
        return fuzz::rejects<std::invalid_argument>("a chunk is from 1 to 2^53", call);
      return compare(prompt, qwen2_5_omni(walked, start, chunk), 3, call);
    }
    default: {
      const double from = b.one_of(real_starts);
      return compare(prompt, qwen3_omni(walked, from), 3,
                     [&] { return rope::qwen3_omni_positions(omni_runs, from); });
    }
  }
}

/// positions_of_mask of a matrix in either storage order, of an expression of one, or of a list.
void run_mask(bytes& b) {
  const bool one_row = b.one_in(4), causal = b.coin();
  const Index batch = one_row ? 1 : b.up_to(4), tokens = b.up_to(7);
  Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> mask(batch, tokens);
  for (Index r = 0; r < batch; ++r) {
    const Index first = b.up_to(static_cast<long>(tokens)),
                count = b.up_to(static_cast<long>(tokens - first));
    for (Index t = 0; t < tokens; ++t) mask(r, t) = t >= first && t < first + count ? 1 : 0;
  }
  if (b.one_in(4) && mask.size() > 0)
    mask.data()[b.up_to(static_cast<long>(mask.size()) - 1)] = static_cast<int>(b.between(-1, 2));
  bool valid = true;
  std::vector<std::int64_t> positions, counts;
  std::vector<rope::key_range> ranges;
  for (Index r = 0; r < batch; ++r) {
    std::int64_t count = 0, first = tokens;
    for (Index t = 0; t < tokens; ++t) {
      const int entry = mask(r, t);
      valid = valid && (entry == 0 || entry == 1) && (entry == 0 || count == 0 || mask(r, t - 1) == 1);
      if (entry == 1 && count++ == 0) first = t;
    }
    counts.push_back(count);
    std::int64_t next = 0;
    for (Index t = 0; t < tokens; ++t) {
      const bool real = mask(r, t) == 1;
      positions.push_back(real ? next++ : 0);
      ranges.push_back({static_cast<Index>(first), static_cast<Index>(real ? causal ? next : count : 0)});
    }
  }
  const auto call = [&]() -> rope::padded_rows {
    const Eigen::ArrayXXi by_column = mask;
    switch (one_row ? b.up_to(3) : b.up_to(2)) {
      case 0:
        return rope::positions_of_mask(mask, causal);
      case 1:
        return rope::positions_of_mask(by_column, causal);
      case 2:
        return rope::positions_of_mask(mask.cast<std::int64_t>(), causal);
      default:
        return rope::positions_of_mask(std::vector<std::int8_t>(mask.data(), mask.data() + mask.size()),
                                       causal);
    }
  };
  if (!valid) return fuzz::rejects<std::invalid_argument>("a mask is ones side by side", call);
  const rope::padded_rows rows = call();
  check(rows.positions == positions, "tokens of a row are at 0, 1, 2, ...");
  check(rows.counts == counts, "a row has as many tokens as ones");
  check(rows.key_ranges.size() == ranges.size(), "every token has a range of keys");
  for (std::size_t i = 0; i < ranges.size(); ++i)
    check(rows.key_ranges[i].count == ranges[i].count &&
              (ranges[i].count == 0 || rows.key_ranges[i].first == ranges[i].first),
          "a token sees the tokens of its row");
}

/// Whether key j is in a range.
bool is_in(const rope::key_range& range, Index j) {
  return j >= range.first && j < range.first + range.count;
}

/// Ranges of keys by a rule, or a refusal.
void run_rule(bytes& b) {
  const Index keys = b.up_to(9), queries = b.one_in(6) ? b.between(-1, 10) : b.up_to(long(keys)),
              size = b.one_in(6) ? static_cast<Index>(b.integer()) : b.between(0, 10);
  const long rule = b.up_to(2);
  const bool fits = queries >= 0 && queries <= keys && (rule == 0 ? size >= 0 && size <= keys : size > 0);
  const auto call = [&] {
    const rope::row_tokens row = {.queries = queries, .keys = keys};
    return rule == 0   ? rope::prefix_ranges(size, row)
           : rule == 1 ? rope::block_causal_ranges(size, row)
                       : rope::chunk_ranges(size, row);
  };
  if (!fits) return fuzz::rejects<std::invalid_argument>("queries are tokens of their row", call);
  const std::vector<rope::key_range> ranges = call();
  check(static_cast<Index>(ranges.size()) == queries, "a query has a range");
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0, t = keys - queries + i; j < keys; ++j) {
      const bool sees = rule == 0   ? j < size || j <= t
                        : rule == 1 ? j / size <= t / size
                                    : j / size == t / size && j <= t;
      check(is_in(ranges[static_cast<std::size_t>(i)], j) == sees, "a range is its rule");
    }
}

/// Ranges of segments, some of them padded, or a refusal.
void run_segments(bytes& b) {
  std::vector<std::int64_t> offsets = {b.one_in(12) ? 1 : 0}, lengths, segment_of;
  bool fits = offsets[0] == 0;
  const bool causal = b.coin(), is_padded = b.coin();
  for (Index s = 0, count = b.up_to(4); s < count; ++s) {
    const std::int64_t tokens = b.one_in(12) ? -1 : b.up_to(4),
                       length = b.one_in(12) ? b.between(-1, 5) : b.up_to(std::max(0L, long(tokens)));
    offsets.push_back(offsets.back() + tokens);
    fits = fits && tokens >= 0;
    if (is_padded) lengths.push_back(length), fits = fits && length >= 0 && length <= tokens;
    for (std::int64_t t = 0; t < tokens; ++t) segment_of.push_back(s);
  }
  if (is_padded && b.one_in(8)) lengths.push_back(0), fits = false;
  const auto call = [&] { return rope::segment_ranges(offsets, causal, lengths); };
  if (!fits) return fuzz::rejects<std::invalid_argument>("segments lie end to end", call);
  const std::vector<rope::key_range> ranges = call();
  check(ranges.size() == segment_of.size(), "a token has a range");
  const auto is_real = [&](std::size_t t) {
    const auto s = static_cast<std::size_t>(segment_of[t]);
    return lengths.empty() || static_cast<std::int64_t>(t) - offsets[s] < lengths[s];
  };
  for (std::size_t t = 0; t < segment_of.size(); ++t)
    for (std::size_t j = 0; j < segment_of.size(); ++j)
      check(is_in(ranges[t], static_cast<Index>(j)) ==
                (segment_of[t] == segment_of[j] && is_real(t) && is_real(j) && (!causal || j <= t)),
            "a token sees its segment");
}

/// grid_positions of any extents and first cells.
void run_grid(bytes& b) {
  std::vector<Index> extents(static_cast<std::size_t>(b.up_to(3)));
  for (Index& extent : extents) extent = b.one_in(12) ? static_cast<Index>(b.integer()) : b.up_to(4);
  std::vector<std::int64_t> first;
  if (b.coin())
    for (std::size_t a = 0; a < extents.size() + (b.one_in(8) ? 1 : 0); ++a)
      first.push_back(b.one_in(6) ? b.integer() : b.between(-3, 9));
  const auto call = [&] { return rope::grid_positions(extents, first); };
  const bool negative = std::any_of(extents.begin(), extents.end(), [](Index e) { return e < 0; });
  if (extents.empty() || negative || (!first.empty() && first.size() != extents.size()))
    return fuzz::rejects<std::invalid_argument>("a grid has extents, and a first cell on each axis", call);
  double count = 1;
  for (const Index extent : extents) count *= static_cast<double>(extent);
  if (count * static_cast<double>(extents.size()) > 0x1p61)
    return fuzz::rejects<std::length_error>("grids that fit no memory throw", call);
  if (count > 0x1p20) return;  // no memory for so many
  bool fits = true;
  for (std::size_t a = 0; a < first.size(); ++a)
    fits =
        fits && (extents[a] == 0 || first[a] <= std::numeric_limits<std::int64_t>::max() - (extents[a] - 1));
  if (!fits && count > 0) return fuzz::rejects<std::out_of_range>("a coordinate has 64 bits", call);
  const auto got = call();
  check(got.rows() == static_cast<Index>(count) && got.cols() == static_cast<Index>(extents.size()),
        "a grid has every cell");
  for (Index r = 0; r < got.rows(); ++r) {
    Index left = r;
    for (std::size_t a = extents.size(); a-- > 0; left /= extents[a])
      check(got(r, static_cast<Index>(a)) == (first.empty() ? 0 : first[a]) + left % extents[a],
            "the last axis is the fastest");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(5)) {
    case 4:
      run_mask(b);
      break;
    case 5:
      run_grid(b);
      break;
    default:
      run_prompt(b);
  }
  // After the others, so that inputs of the corpus keep what they mean.
  if (!b.empty()) b.coin() ? run_rule(b) : run_segments(b);
  return 0;
}
