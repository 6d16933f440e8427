// SPDX-License-Identifier: MIT
#define ROPE_TEST_DEFINE_INSTANCES
#include "instances.hpp"

template reference::tensor reference::attention<void>(const tensor&, const tensor&, const tensor&,
                                                      const attention_rule&, std::vector<double>*);
template reference::attention_state reference::attend<void>(const wide_tensor&, const wide_tensor&,
                                                            const wide_tensor&, const full_rule&);
template reference::attention_gradients reference::differentiate<void>(const wide_tensor&, const wide_tensor&,
                                                                       const wide_tensor&, const wide_tensor&,
                                                                       const wide_tensor&, const full_rule&);
template std::vector<testing::wide> reference::attend<void>(const model&, const std::vector<double>&,
                                                            long long, const std::vector<visible>&);
template reference::matrix reference::projected<void>(const linear&, const matrix&);
template features::result features::definition<void>(const setting&, const operands&);
ROPE_TEST_OPERANDS(template, float)
ROPE_TEST_OPERANDS(template, double)
ROPE_TEST_OPERANDS(template, Eigen::half)
ROPE_TEST_OPERANDS(template, Eigen::bfloat16)
template std::vector<std::int8_t> testing::stored<std::int8_t, double>(const tensor<double>&, axes);
