// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_HPP
#define ROPE_TABLES_HPP

/// Which cos and sin? This door opens tables of them: of positions, coordinates, given entries, sums of
/// frequencies, xPos.

#include <rope/config.hpp>  // first: what is wrong with the compiler is said in one sentence

#include <rope/tables/fourier.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>
#include <rope/tables/xpos.hpp>

#endif  // ROPE_TABLES_HPP
