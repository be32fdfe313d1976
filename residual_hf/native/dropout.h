// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Masks of dropout. A mask is a function of a seed and the position of a value, so nothing keeps it: backward makes it again.
#pragma once

#include <math.h>

#include "simd.h"

enum { BLOCK = 32 };  // values whose mask is made at once, from 16 random bits each

// Finalizer of SplitMix64 (Steele et al. 2014), for 8 numbers.
INLINE __m512i scramble(__m512i z) {
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((int64_t)0xbf58476d1ce4e5b9u));
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((int64_t)0x94d049bb133111ebu));
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

typedef struct {
    __m512i first, threshold;
    __m512 scale;
    int active;
} Dropout;

INLINE Dropout make_dropout(uint64_t seed, float rate) {
    __m512i lanes = _mm512_mullo_epi64(_mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1),
                                       _mm512_set1_epi64((int64_t)0x9e3779b97f4a7c15u));
    return (Dropout){
        .first = _mm512_add_epi64(_mm512_set1_epi64((int64_t)seed), lanes),
        .threshold = _mm512_set1_epi16((int16_t)(uint16_t)lrintf(fminf(rate * 65536, 65535))),
        .scale = _mm512_set1_ps(1 / (1 - rate)),
        .active = rate > 0,
    };
}

// Which values of a block of 32 are kept.
INLINE __mmask32 kept(const Dropout *dropout, int64_t block) {
    if (!dropout->active) return ~0u;
    uint64_t step = (uint64_t)block * 8 * 0x9e3779b97f4a7c15u;
    __m512i bits = scramble(_mm512_add_epi64(dropout->first, _mm512_set1_epi64((int64_t)step)));
    return _mm512_cmpge_epu16_mask(bits, dropout->threshold);
}

INLINE __m512 drop(const Dropout *dropout, __mmask16 keep, __m512 values) {
    return _mm512_maskz_mul_ps(keep, values, dropout->scale);
}

INLINE __mmask16 half(__mmask32 mask, int index) { return (__mmask16)(index & 16 ? mask >> 16 : mask); }
