// Masks of dropout. A mask is a function of a seed and the position of a value, so nothing keeps it: backward makes it again.
#pragma once

#include "vector.h"

enum { BLOCK = 32 };  // values whose mask is made at once, from 16 random bits each

typedef uint64_t numbers __attribute__((vector_size(VECTOR_BYTES)));

// The random bits of a block.
typedef union {
    numbers bits[64 / VECTOR_BYTES];
    bf16 of_value[BLOCK];
} Mask;

typedef struct {
    Mask first;
    int32_t threshold;
    float scale;
    int active;
} Dropout;

// Finalizer of SplitMix64 (Steele et al. 2014).
INLINE numbers scramble(numbers z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

INLINE Dropout make_dropout(uint64_t seed, float rate) {
    Dropout dropout = {.threshold = (int32_t)lrintf(fminf(rate * 65536, 65535)), .scale = 1 / (1 - rate), .active = rate > 0};
    for (uint64_t i = 0; i < 8; i++)
        dropout.first.bits[i * 8 / VECTOR_BYTES][i % (VECTOR_BYTES / 8)] = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    return dropout;
}

INLINE void make_mask(const Dropout *dropout, int64_t block, Mask *mask) {
    if (!dropout->active) return;
    uint64_t step = (uint64_t)block * 8 * 0x9e3779b97f4a7c15u;
    UNROLLED(i, 64 / VECTOR_BYTES) mask->bits[i] = scramble(dropout->first.bits[i] + step);
}

// Values from place `at` of a block, those that are kept times the scale.
INLINE vec drop(const Dropout *dropout, const Mask *mask, int at, vec values) {
    if (!dropout->active) return values;
    ivec bits = __builtin_convertvector(load_halves(mask->of_value + at % BLOCK), ivec);
    return only(bits >= dropout->threshold, values * dropout->scale);
}
