// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What the matrix products share: blocks of rows, and how sums become outputs.
#pragma once

#include "simd.h"

enum { AHEAD = 4096 };  // bytes by which weights are fetched before their use: they come from far

typedef struct {
    void *values;  // (rows, linear->outputs)
    Type type;
    Activation activation;
    const float *row_scales;  // INT8: what one unit of an input row is worth
} Output;

void gemm_avx512(const Linear *linear, int rows, const void *input, const Output *output);
void gemm_bf16(const Linear *linear, int rows, const void *input, const Output *output);
void gemm_amx(const Linear *linear, int rows, const void *input, const Output *output);

// Without AMX, 12 rows by 32 columns of sums stay in registers. A step reads 128 bytes of weights: 32 outputs for 32
// bits of an input row.
enum { MOST_ROWS = 12, STEP = 128 };

// Call `block` with the number of rows as a constant: with its loops unrolled, sums are registers.
#define WITH_CONSTANT_ROWS(rows, block, ...) \
    switch (rows) { \
    case 1: block(1, __VA_ARGS__); break; \
    case 2: block(2, __VA_ARGS__); break; \
    case 3: block(3, __VA_ARGS__); break; \
    case 4: block(4, __VA_ARGS__); break; \
    case 5: block(5, __VA_ARGS__); break; \
    case 6: block(6, __VA_ARGS__); break; \
    case 7: block(7, __VA_ARGS__); break; \
    case 8: block(8, __VA_ARGS__); break; \
    case 9: block(9, __VA_ARGS__); break; \
    case 10: block(10, __VA_ARGS__); break; \
    case 11: block(11, __VA_ARGS__); break; \
    default: block(12, __VA_ARGS__); \
    }

// Where block `block` of rows begins: all have about the same size.
static inline int block_count(int rows) { return (rows + MOST_ROWS - 1) / MOST_ROWS; }
static inline int block_start(int rows, int block) { return (int)((int64_t)rows * block / block_count(rows)); }

// Call `block` for each panel of weights and each block of rows; a panel stays in the cache for all rows.
#define FOR_EACH_BLOCK(block, ...) \
    for (int column = 0; column < linear->outputs; column += PANEL) \
        for (int i = 0; i < block_count(rows); i++) { \
            int row = block_start(rows, i), count = block_start(rows, i + 1) - row; \
            WITH_CONSTANT_ROWS(count, block, __VA_ARGS__, linear, row, column, input, output) \
        }

// Of the weights of one output, and of one input row if it has their type.
static inline size_t weight_bytes(const Linear *linear) {
    return (size_t)linear->inputs * (linear->type == FLOAT32 ? 4 : linear->type == BFLOAT16 ? 2 : 1);
}

// Outputs from a block of sums, (rows, PANEL): integers for INT8, else floats.
void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                  const int32_t sums[][PANEL]);

// The same for sums in registers.
INLINE void finish_sums(const int rows, const Linear *linear, const Output *output, int row, int column,
                        __m512 sums[][2]) {
    int32_t block[MOST_ROWS][PANEL];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(block[r], sums[r][0]);
        _mm512_storeu_ps(block[r] + 16, sums[r][1]);
    }
    finish_block(linear, output, row, rows, column, block);
}
