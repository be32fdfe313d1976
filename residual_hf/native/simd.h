// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Vectors of 16 floats (AVX-512) and what the kernels share about them.
#pragma once

#include <immintrin.h>
#include <math.h>

#include "native.h"

// Functions, not files, are compiled for AVX-512: the library loads on any x86-64, and `enable_instruction_set` chooses at run time.
#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define INLINE WITH_AVX512 static inline __attribute__((always_inline))

typedef uint16_t bf16;

INLINE __mmask16 first_lanes(int count) { return count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1); }

INLINE float dot(const float *a, const float *b, int width) {
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        __mmask16 lanes = first_lanes(width - i);
        total = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, a + i), _mm512_maskz_loadu_ps(lanes, b + i), total);
    }
    return _mm512_reduce_add_ps(total);
}

// 1 / sqrt(variance + epsilon), with the variance from differences: from squares it would lose digits.
INLINE float inverse_deviation(const float *values, int width, float mean, float epsilon) {
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        __mmask16 lanes = first_lanes(width - i);
        __m512 centered = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, values + i), _mm512_set1_ps(mean));
        total = _mm512_fmadd_ps(centered, centered, total);
    }
    return 1 / sqrtf(_mm512_reduce_add_ps(total) / width + epsilon);
}

// sum_i weights[i * stride] * vectors[i], of 16 values.
INLINE __m512 combine(int count, const float *weights, int stride, const float *const *vectors, int64_t at,
                      __mmask16 lanes) {
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < count; i++)
        total = _mm512_fmadd_ps(_mm512_set1_ps(weights[i * stride]), _mm512_maskz_loadu_ps(lanes, vectors[i] + at),
                                total);
    return total;
}

// 16 rows of 16 values of 32 bits become columns.
INLINE void transpose_tile(__m512i rows[16]) {
    __m512i t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; half++) {
            u[i + 2 * half] = _mm512_unpacklo_epi64(t[i + half], t[i + half + 2]);
            u[i + 2 * half + 1] = _mm512_unpackhi_epi64(t[i + half], t[i + half + 2]);
        }
    for (int i = 0; i < 4; i++) {  // lane k of u[4 j + i] has values j of row 4 k + i
        __m512i a = _mm512_shuffle_i32x4(u[i], u[i + 4], 0x44), b = _mm512_shuffle_i32x4(u[i + 8], u[i + 12], 0x44);
        __m512i c = _mm512_shuffle_i32x4(u[i], u[i + 4], 0xee), d = _mm512_shuffle_i32x4(u[i + 8], u[i + 12], 0xee);
        rows[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        rows[i + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
        rows[i + 8] = _mm512_shuffle_i32x4(c, d, 0x88);
        rows[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

INLINE __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// Rounds to the nearest bfloat16, ties away from zero. In integers: the instruction for it is missing before Cooper Lake.
INLINE __m256i narrow(__m512 values) {
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(values), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

INLINE size_t size_of(const Type type) { return type == FLOAT32 ? 4 : 2; }

// `type` is a constant wherever these are called in a loop: the branch disappears.
INLINE __m512 load(const void *base, int64_t index, const Type type) {
    if (type == FLOAT32) return _mm512_loadu_ps((const float *)base + index);
    return widen(_mm256_loadu_si256((const __m256i *)((const bf16 *)base + index)));
}

INLINE void store(void *base, int64_t index, const Type type, __m512 values) {
    if (type == FLOAT32)
        _mm512_storeu_ps((float *)base + index, values);
    else
        _mm256_storeu_si256((__m256i *)((bf16 *)base + index), narrow(values));
}

// e^x with a relative error of 1e-7: 2^n * e^r with |r| <= ln(2) / 2, polynomial of Cephes' expf.
INLINE __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.3f), x); // in this order NaN remains NaN
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

// erf(x) with an absolute error of 1.5e-7: Abramowitz & Stegun 7.1.26.
INLINE __m512 error_function(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f), magnitude = _mm512_abs_ps(x);
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(magnitude, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    __m512 decay = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(x, x)));
    __m512 result = _mm512_fnmadd_ps(_mm512_mul_ps(p, t), decay, one);
    return _mm512_mask_sub_ps(result, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_setzero_ps(),
                              result);
}

INLINE __m512 activate(__m512 x, Activation activation) {
    __m512 one = _mm512_set1_ps(1.0f);
    switch (activation) {
    case RELU:
        return _mm512_max_ps(_mm512_setzero_ps(), x);
    case GELU: {
        __m512 erf = error_function(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678118654752f)));
        return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), _mm512_add_ps(erf, one));
    }
    case SILU: {
        __m512 decay = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
        return _mm512_div_ps(x, _mm512_add_ps(decay, one));
    }
    default:
        return x;
    }
}
