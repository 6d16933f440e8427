// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_SUPPORT_SPAN_OF_STRIDES_HPP
#define ROPE_TESTS_SUPPORT_SPAN_OF_STRIDES_HPP

#include <array>
#include <cstddef>

namespace testing {

/// The requirements of the library on an mdspan, and nothing else.
template <class T, std::size_t dimensions>
class span_of_strides {
 public:
  using element_type = T;
  using reference = T&;
  using data_handle_type = T*;

  span_of_strides(T* data, std::array<std::size_t, dimensions> extents,
                  std::array<std::size_t, dimensions> strides)
      : data_(data), extents_(extents), strides_(strides) {}
  /// Of layout_right: the last index is the fastest.
  span_of_strides(T* data, std::array<std::size_t, dimensions> extents) : span_of_strides(data, extents, {}) {
    std::size_t stride = 1;
    for (std::size_t i = dimensions; i-- > 0; stride *= extents[i]) strides_[i] = stride;
  }

  static constexpr std::size_t rank() noexcept { return dimensions; }
  T* const& data_handle() const { return data_; }
  std::size_t extent(std::size_t i) const { return extents_[i]; }
  std::size_t stride(std::size_t i) const { return strides_[i]; }

 private:
  T* data_;
  std::array<std::size_t, dimensions> extents_, strides_;
};

}  // namespace testing

#endif  // ROPE_TESTS_SUPPORT_SPAN_OF_STRIDES_HPP
