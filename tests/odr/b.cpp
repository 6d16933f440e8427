// SPDX-License-Identifier: MIT
#include "odr.hpp"

odr::outcome odr::from_b() { return run_here(); }
