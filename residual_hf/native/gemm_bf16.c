// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Matrix product with AVX512_BF16. As with AVX-512, a sentence has the same result in any batch.

#include "pairs.h"

INLINE_BF16 void multiply_block(const int rows, const int fetch, const Linear *linear, int row, int column,
                                const char *input, const Output *output) {
    size_t stride = weight_bytes(linear);
    __m512 sums[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    multiply_pairs(rows, linear->inputs / 2, input + row * stride, stride,
                   (const char *)linear->weights + column * stride, fetch, sums);
    finish_sums(rows, linear, output, row, column, sums);
}

WITH_BF16 void gemm_bf16(const Linear *linear, int rows, const void *input, const Output *output) {
    FOR_EACH_BLOCK(multiply_block, 1)
}
