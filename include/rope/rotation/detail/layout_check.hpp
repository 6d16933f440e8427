// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_LAYOUT_CHECK_HPP
#define ROPE_ROTATION_DETAIL_LAYOUT_CHECK_HPP

#include <algorithm>  // std::fill_n
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>

/// Whether a caller's own layout is one.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Refuses a layout that does not name every channel of [0, 2 * pairs) once: a channel that two pairs name
/// would turn twice, and no inverse would lead back. Channels are checked 1024 at a time, whose marks fit the
/// stack.
///
/// Throws:  std::invalid_argument
/// Cost:    nothing for the library's own layouts; else one walk over the pairs per 1024 channels
template <class Layout>
void check_layout(const char* function, Index pairs) {
  if constexpr (!std::is_same_v<Layout, interleaved> && !std::is_same_v<Layout, half_split>) {
    const Index channels = 2 * pairs;
    for (Index i = 0; i < pairs; ++i) {
      const Index u = Layout::first(i, pairs), v = Layout::second(i, pairs);
      if (u < 0 || v < 0 || u >= channels || v >= channels || u == v)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": the layout must map a pair to two channels of [0, ", channels,
                           "), got ", u, " and ", v, " for pair ", i));
    }
    constexpr Index at_once = 1024;
    bool named[at_once];
    for (Index begin = 0; begin < channels; begin += at_once) {
      std::fill_n(named, at_once, false);
      for (Index i = 0; i < pairs; ++i)
        for (const Index channel : {Index(Layout::first(i, pairs)), Index(Layout::second(i, pairs))}) {
          if (channel < begin || channel - begin >= at_once) continue;
          if (named[channel - begin])
            ROPE_THROW(std::invalid_argument,
                       message(function, ": the layout must name every channel of [0, ", channels,
                               ") once, got channel ", channel, " again for pair ", i));
          named[channel - begin] = true;
        }
    }
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_DETAIL_LAYOUT_CHECK_HPP
