/* Six functions of rope for C, and for all that calls C: tables, rotation and attention of floats in row-major memory. */

#ifndef ROPE_EXAMPLES_ROPE_C_H
#define ROPE_EXAMPLES_ROPE_C_H

#include <stdint.h>

#if defined(_WIN32)
#define ROPE_C_API __declspec(dllexport)
#else
#define ROPE_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cos and sin of some positions, to be shared by threads, layers and heads. */
typedef struct rope_c_table rope_c_table;

/* Which channels are pair i of a head: (2i, 2i + 1), or (i, i + pairs). */
enum rope_c_layout { rope_c_interleaved = 0, rope_c_half_split = 1 };

/* Heads [batch, tokens, heads, head_dim]. Its memory is yours. */
typedef struct {
  float* data;
  int64_t batch, tokens, heads, head_dim;
} rope_c_heads;

/* The table of positions first to last - 1, with frequencies base^(-2 i / rotary_dim). NULL if an argument is invalid. */
ROPE_C_API rope_c_table* rope_c_table_new(int64_t rotary_dim, double base, int64_t first, int64_t last);
ROPE_C_API void rope_c_table_free(rope_c_table* table);

/* Rotates channels [0, rotary_dim) in place, token t at position start + t; and the inverse. 0, or 1 if an argument is invalid:
   nothing is then written. */
ROPE_C_API int rope_c_rotate(rope_c_heads x, const rope_c_table* table, int64_t start,
                             enum rope_c_layout layout);
ROPE_C_API int rope_c_unrotate(rope_c_heads x, const rope_c_table* table, int64_t start,
                               enum rope_c_layout layout);

/* Causal attention of rotated queries and keys. The last query is aligned with the last key. 0, or 1 as above. */
ROPE_C_API int rope_c_attention(rope_c_heads q, rope_c_heads k, rope_c_heads v, rope_c_heads out);

/* What was wrong in the last call of this thread that failed. */
ROPE_C_API const char* rope_c_error(void);

#ifdef __cplusplus
}
#endif

#endif
