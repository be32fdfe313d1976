// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Matrix product. 32 bits of weights are 1 float, 2 bfloat16 or 4 bytes; a step takes 32 bits of each input row.
//
// Every sum is made in the same order however many rows there are: a sentence has the same result in any batch.

#include "gemm.h"

INLINE int steps_of(const Type type) { return type == FLOAT32 ? 1 : type == BFLOAT16 ? BF16_STEPS : INT8_STEPS; }

INLINE ivec multiply_add(ivec sums, ivec inputs, ivec weights, const Type type) {
    if (type == INT8) return (ivec)DOT_INT8(sums, inputs, weights);
#ifdef DOT_BF16
    if (type == BFLOAT16) return (ivec)DOT_BF16(sums, inputs, weights);
#endif
    return (ivec)((vec)inputs * (vec)weights + (vec)sums);
}

// The weights of a step as they are multiplied.
INLINE ivec weights_of_step(const char *weights, const Type type, const int step) {
    typedef int16_t shorts __attribute__((vector_size(VECTOR_BYTES)));
    ivec bits = load_bits(weights);
    if (steps_of(type) == 1) return bits;
    if (type == BFLOAT16) return step ? bits & (int32_t)0xffff0000 : bits << 16;
    if (INT8_STEPS == 2) return (ivec)((step ? (shorts)bits : (shorts)bits << 8) >> 8);
    return (ivec)__builtin_convertvector((bits << (24 - 8 * step)) >> 24, vec);
}

INLINE void multiply_block(const int rows, const Type type, const Linear *linear, int row, int column,
                           const char *input, const Output *output) {
    size_t row_size = (size_t)linear->inputs * input_size(type);
    const char *weights = (const char *)linear->weights + column * weight_bytes(linear);
    ivec sums[MOST_ROWS][VECTORS];
    UNROLLED(r, rows) UNROLLED(v, VECTORS) sums[r][v] = (ivec){0};
    input += row * row_size;
    for (const char *end = input + row_size; input < end; weights += 4 * PANEL) {
        UNROLLED(line, PANEL / 16) __builtin_prefetch(weights + AHEAD + 64 * line);
        UNROLLED(step, steps_of(type)) {
            ivec right[VECTORS];
            UNROLLED(v, VECTORS) right[v] = weights_of_step(weights + v * VECTOR_BYTES, type, step);
            UNROLLED(r, rows) {
                int32_t left;
                memcpy(&left, input + r * row_size, sizeof left);
                UNROLLED(v, VECTORS) sums[r][v] = multiply_add(sums[r][v], left - (ivec){0}, right[v], type);
            }
            input += 4;
        }
    }
    ivec block[MOST_ROWS][VECTORS];  // a copy: what is passed by its address is in memory, in the loop too
    UNROLLED(r, rows) UNROLLED(v, VECTORS) block[r][v] = sums[r][v];
    finish_block(linear, output, row, rows, column, block);
}

// A panel of weights stays in the cache for all rows.
INLINE void multiply(const Type type, const Linear *linear, int rows, const char *input, const Output *output) {
    for (int column = 0; column < linear->outputs; column += PANEL)
        for (int i = 0; i < block_count(rows); i++) {
            int row = block_start(rows, i), count = block_start(rows, i + 1) - row;
            WITH_CONSTANT_ROWS(count, multiply_block, type, linear, row, column, input, output)
        }
}

void gemm(const Linear *linear, int rows, const void *input, const Output *output) {
    if (linear->type == FLOAT32)
        multiply(FLOAT32, linear, rows, input, output);
    else if (linear->type == BFLOAT16)
        multiply(BFLOAT16, linear, rows, input, output);
    else
        multiply(INT8, linear, rows, input, output);
}

// How many outputs `weights.py` puts together.
int panel_width(void) { return PANEL; }
