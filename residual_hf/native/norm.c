// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Residual connections: addition, norm and dual stream in one pass over a row.

#include <math.h>

#include "simd.h"

// row += branch, dual += dual_scale * branch; returns the mean of the row, or 0 for an RMSNorm.
INLINE float add_branch(int width, float *row, const float *branch, float *dual, float dual_scale, int centered) {
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        __m512 values = _mm512_loadu_ps(row + i);
        if (branch) {
            __m512 added = _mm512_loadu_ps(branch + i);
            values = _mm512_add_ps(values, added);
            _mm512_storeu_ps(row + i, values);
            if (dual)
                _mm512_storeu_ps(dual + i,
                                 _mm512_fmadd_ps(added, _mm512_set1_ps(dual_scale), _mm512_loadu_ps(dual + i)));
        }
        total = _mm512_add_ps(total, values);  // the padding adds zeros
    }
    return centered ? _mm512_reduce_add_ps(total) / width : 0;
}

INLINE float variance(int width, const float *row, float mean) {
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        __m512 centered = _mm512_maskz_sub_ps(first_lanes(width - i), _mm512_loadu_ps(row + i), _mm512_set1_ps(mean));
        total = _mm512_fmadd_ps(centered, centered, total);
    }
    return _mm512_reduce_add_ps(total) / width;
}

// sum = stream + branch; y = norm(sum), output = y, and the stream continues with the sum (Pre-LN) or y (Post-LN).
//
// stream, branch, dual and output are (rows, stride), of which `width` values count. Without a branch there is nothing
// to add, without a norm (gain NULL) y = sum. The dual stream, if any, gets dual_scale * branch.
WITH_AVX512 void add_norm(int rows, int width, int stride, float *stream, const float *branch, const Norm *norm,
                     int keep_sum, float *dual, float dual_scale, void *output, Type output_type) {
    for (int r = 0; r < rows; r++) {
        int64_t start = (int64_t)r * stride;
        float *row = stream + start;
        float mean = add_branch(width, row, branch ? branch + start : NULL, dual ? dual + start : NULL, dual_scale,
                                norm->centered);
        float scale = norm->gain ? 1 / sqrtf(variance(width, row, mean) + norm->epsilon) : 0;
        for (int i = 0; i < stride; i += 16) {
            __m512 values = _mm512_loadu_ps(row + i);
            if (norm->gain) {
                values = _mm512_mul_ps(_mm512_sub_ps(values, _mm512_set1_ps(mean)), _mm512_set1_ps(scale));
                values = _mm512_fmadd_ps(values, _mm512_loadu_ps(norm->gain + i), _mm512_loadu_ps(norm->bias + i));
            }
            if (!keep_sum) _mm512_storeu_ps(row + i, values);
            if (output) store(output, start + i, output_type, values);
        }
    }
}
