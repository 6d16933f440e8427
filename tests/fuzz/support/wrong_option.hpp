// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_WRONG_OPTION_HPP
#define ROPE_TESTS_FUZZ_WRONG_OPTION_HPP

/// Options of attention that every cache rejects, for any contents.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <rope/attention/options.hpp>

#include "fuzz/support/bytes.hpp"

namespace fuzz {

using rope::Index;

/// Makes one option wrong: outside its range, of another length than the call has, or one that the cache sets
/// itself.
///
/// Requires:  this outlives the call, whose queries are float or double
class wrong_option {
 public:
  void put_into(rope::attention_options& options, bytes& b, Index batch, Index queries, Index heads) {
    constexpr double infinity = std::numeric_limits<double>::infinity(),
                     none = std::numeric_limits<double>::quiet_NaN(), least = 5e-324;
    static constexpr double not_finite[] = {infinity, -infinity, none};
    static constexpr double no_probability[] = {-0.25, 1, infinity, none};
    integers_.assign(1, 0);
    switch (b.up_to(20)) {
      case 0:
        options.window = -1;
        break;
      case 1:
        options.sinks = -1;
        break;
      case 2:
        options.dropout = 0.5;
        break;
      case 3:
        options.dropout = b.one_of(no_probability);
        break;
      case 4:
        options.softcap = -1;
        break;
      case 5:
        options.softcap = b.one_of(not_finite);
        break;
      case 6:
        options.scale = b.one_of(not_finite);
        break;
      case 7:  // subnormal
        options.scale = least;
        break;
      case 8:  // scale / softcap overflows
        options.scale = 1e-20, options.softcap = 1e290;
        break;
      case 9:
        options.query_positions = integers_;
        break;
      case 10:
        options.key_positions = integers_;
        break;
      case 11:
        options.query_counts = integers_;
        break;
      case 12:
        options.key_counts = integers_;
        break;
      case 13:
        options.query_offsets = integers_;
        break;
      case 14:
        options.key_offsets = integers_;
        break;
      case 15:
        logits_.assign(static_cast<std::size_t>(heads + 1), 0);
        options.sink_logits = logits_;
        break;
      case 16:
        logits_.assign(static_cast<std::size_t>(heads), std::numeric_limits<float>::quiet_NaN());
        if (heads == 0) logits_.push_back(0);
        options.sink_logits = logits_;
        break;
      case 17:
        sums_.assign(static_cast<std::size_t>(batch * queries * heads + 1), 0);
        options.log_sum_exp = sums_;
        break;
      case 18:  // of queries that are not bfloat16
        options.products = rope::product_precision::bfloat16;
        break;
      case 19:
        options.bias = {.data = &bias_, .queries = queries + 2};
        break;
      default:
        options.mask = {.data = &mask_, .batch = batch + 2};
    }
  }

 private:
  std::vector<std::int64_t> integers_;
  std::vector<float> logits_;
  std::vector<double> sums_;
  float bias_ = 0;
  bool mask_ = true;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_WRONG_OPTION_HPP
