// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_HPP
#define ROPE_TABLES_HPP

/// Tables of cos and sin: for positions or coordinates, from given entries, from sums of frequencies (FoPE),
/// and for xPos.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/tables/fourier.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/row_maker.hpp>
#include <rope/tables/table.hpp>
#include <rope/tables/xpos.hpp>

#endif  // ROPE_TABLES_HPP
