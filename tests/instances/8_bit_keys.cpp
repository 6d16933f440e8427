// SPDX-License-Identifier: MIT
#define ROPE_TEST_DEFINE_INSTANCES
#define ROPE_TEST_EXTERN
#include "instances.hpp"

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

ROPE_TEST_INSTANCES_OF_8_BIT_KEYS

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope
