// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Products of pairs of bfloat16 (AVX512_BF16): each lane adds two of them to its sum in fp32.
#pragma once

#include "gemm.h"

#define WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")))
#define INLINE_BF16 WITH_BF16 static inline __attribute__((always_inline))

// Add to (rows, 32) sums the products of rows of pairs, `stride` bytes apart, and a panel of weights (pairs, 32).
INLINE_BF16 void multiply_pairs(const int rows, int64_t pairs, const char *input, size_t stride, const char *weights,
                                const int fetch, __m512 sums[][2]) {
    for (int64_t pair = 0; pair < pairs; pair++, input += 4, weights += STEP) {
        if (fetch) _mm_prefetch(weights + AHEAD, _MM_HINT_T0);
        if (fetch) _mm_prefetch(weights + AHEAD + STEP / 2, _MM_HINT_T0);
        __m512bh left = (__m512bh)_mm512_loadu_si512(weights);
        __m512bh right = (__m512bh)_mm512_loadu_si512(weights + STEP / 2);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512bh both = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(input + r * stride));
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, left);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, right);
        }
    }
}
