// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Matrix product with AVX-512. The 32 bits of an input row are 1 float or 4 bytes; weights in bfloat16 are widened, so
// that their inputs are 2 floats.
//
// Every sum is made in the same order however many rows there are: a sentence has the same result in any batch.

#include "gemm.h"

INLINE __m512 multiply_add(__m512 sums, __m512i inputs, __m512i weights, const Type type) {
    if (type == INT8) return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sums), inputs, weights));
    return _mm512_fmadd_ps(_mm512_castsi512_ps(inputs), _mm512_castsi512_ps(weights), sums);
}

// Weights of 16 outputs as they are multiplied: of a pair of bfloat16 one becomes a float.
INLINE __m512i load_weights(const char *weights, const Type type, const int second) {
    __m512i bits = _mm512_loadu_si512(weights);
    if (type != BFLOAT16) return bits;
    return second ? _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(bits, 16);
}

INLINE void multiply_block(const int rows, const Type type, const Linear *linear, int row, int column,
                           const char *input, const Output *output) {
    const int values_per_step = type == BFLOAT16 ? 2 : 1;
    size_t row_size = (size_t)linear->inputs * (type == INT8 ? 1 : 4);
    const char *weights = (const char *)linear->weights + column * weight_bytes(linear);
    __m512 sums[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    input += row * row_size;
    for (const char *end = input + row_size; input < end; weights += STEP) {
        _mm_prefetch(weights + AHEAD, _MM_HINT_T0);
        _mm_prefetch(weights + AHEAD + STEP / 2, _MM_HINT_T0);
        for (int second = 0; second < values_per_step; second++, input += 4) {
            __m512i left = load_weights(weights, type, second);
            __m512i right = load_weights(weights + STEP / 2, type, second);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                __m512i inputs = _mm512_set1_epi32(*(const int32_t *)(input + r * row_size));
                sums[r][0] = multiply_add(sums[r][0], inputs, left, type);
                sums[r][1] = multiply_add(sums[r][1], inputs, right, type);
            }
        }
    }
    finish_sums(rows, linear, output, row, column, sums);
}

INLINE void multiply(const Type type, const Linear *linear, int rows, const char *input, const Output *output) {
    FOR_EACH_BLOCK(multiply_block, type)
}

WITH_AVX512 void gemm_avx512(const Linear *linear, int rows, const void *input, const Output *output) {
    if (linear->type == FLOAT32)
        multiply(FLOAT32, linear, rows, input, output);
    else if (linear->type == BFLOAT16)
        multiply(BFLOAT16, linear, rows, input, output);
    else
        multiply(INT8, linear, rows, input, output);
}
