// SPDX-License-Identifier: MIT
#define ROPE_TEST_DEFINE_INSTANCES
#include "instances.hpp"

template reference::tensor reference::attention<void>(const tensor&, const tensor&, const tensor&,
                                                      const attention_rule&, std::vector<double>*);
template features::result features::definition<void>(const setting&, const operands&);
