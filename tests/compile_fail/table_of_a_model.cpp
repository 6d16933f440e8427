// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequency_table: frequencies come first, .*the tables of a model are model_tables\(model, count\)

#include <rope/models.hpp>

#ifdef SHOULD_FAIL
rope::frequency_table<float> test(const rope::model_rope& model) { return {model, 64}; }
#else
rope::model_tables<float> test(const rope::model_rope& model) { return {model, 64}; }
#endif
