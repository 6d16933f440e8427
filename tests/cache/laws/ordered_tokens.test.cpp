// SPDX-License-Identifier: MIT
// A cache keeps track of the order of its positions, so that attention can treat them as ranges without
// reading each one. After any calls this agrees with the positions themselves.
#include <rope/cache/kv_cache.hpp>

#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using namespace rope;

namespace {

void check_order(const kv_cache<float>& cache) {
  for (Index b = 0; b < cache.batch(); ++b) {
    const auto positions = cache.positions(b);
    std::size_t counted = 0, ascending = positions.empty() ? 0 : 1;
    while (counted < positions.size() && positions[counted] == static_cast<std::int64_t>(counted)) ++counted;
    while (ascending > 0 && ascending < positions.size() && positions[ascending] >= positions[ascending - 1])
      ++ascending;
    CHECK(cache.ordered(b).counted == static_cast<Index>(counted));
    CHECK(cache.ordered(b).ascending == static_cast<Index>(ascending));
  }
}

}  // namespace

TEST_CASE("a cache knows how far its positions count up and ascend after any calls", "[cache]") {
  testing::random random(11);
  const std::vector<float> data(3 * 4 * 4, 1.f);
  kv_cache<float> cache(3, 24, 1, 4, 4, key_storage::raw);  // keys that no position rotates
  const auto fits = [&](Index count) {
    for (Index b = 0; b < 3; ++b)
      if (cache.size(b) + count > cache.capacity()) return false;
    return true;
  };
  for (int step = 0; step < 3000; ++step) {
    CAPTURE(step);
    const auto tokens = static_cast<Index>(random.integer(0, 4));
    const auto x = bshd(data.data(), 3, tokens, 1, 4);
    const auto row = static_cast<Index>(random.integer(0, 2));
    const Index size = cache.size(row);
    const auto first = static_cast<Index>(random.integer(0, size));
    const auto count = static_cast<Index>(random.integer(0, size - first));
    switch (random.integer(0, 9)) {
      case 0:
      case 1:
      case 2:
        if (fits(tokens)) cache.append(x, x);
        break;
      case 3:
      case 4:
        if (fits(tokens)) {
          std::vector<std::int64_t> positions;
          for (Index t = 0; t < 3 * tokens; ++t)
            positions.push_back(random.integer(0, 3) + cache.size(t / tokens) + t % tokens);
          cache.append_at(x, x, positions);
        }
        break;
      case 5:
        cache.truncate(first, batch_row{row});
        break;
      case 6:
        cache.remove(first, count, batch_row{row});
        break;
      case 7:
        cache.shift(first, count, random.integer(-3, 3), batch_row{row});
        break;
      case 8: {
        const Index parents[] = {static_cast<Index>(random.integer(0, 2)),
                                 static_cast<Index>(random.integer(0, 2)),
                                 static_cast<Index>(random.integer(0, 2))};
        random.integer(0, 1) == 0 ? cache.reorder(parents) : cache.copy_row(parents[0], parents[1]);
        break;
      }
      default:
        if (random.integer(0, 7) == 0) cache.clear();
    }
    check_order(cache);
  }
}
