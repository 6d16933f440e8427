// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_WORKSPACE_HPP
#define ROPE_DETAIL_WORKSPACE_HPP

#include <cstddef>

#include <rope/config.hpp>
#include <rope/detail/storage.hpp>

/// Scratch memory that a thread keeps from call to call, so that only the first call of a size allocates.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// At least `count` elements, indeterminate; valid until the next call with the same T and User on the same
/// thread.
///
/// \tparam User  a tag that keeps two users of the same T apart
template <class User, class T>
T* workspace(Index count) {
  thread_local storage<T> memory;
  if (memory.size() < static_cast<std::size_t>(count)) memory = storage<T>(static_cast<std::size_t>(count));
  return memory.data();
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_WORKSPACE_HPP
