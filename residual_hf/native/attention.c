// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Attention of single queries over those rows of a key/value cache that a table names.
//
// Beams share what they have in common: a reordered beam is another line of the table, and nothing is copied.

#include <math.h>

#include "simd.h"

enum { KEYS = 4, MOST_VECTORS = 8 };

// The sums of four vectors, as four floats.
INLINE __m128 sum_each(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 abcd = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

// Scores of four keys at a time. The last group repeats the last key; `softmax` overwrites those scores.
INLINE void score_keys(const int vectors, const Type type, const void *query, const void *keys, int64_t stride,
                       const int32_t *entries, int length, float scale, float *scores) {
    __m512 q[MOST_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) q[v] = _mm512_mul_ps(load(query, 16 * v, type), _mm512_set1_ps(scale));
    for (int j = 0; j < length; j += KEYS) {
        __m512 sums[KEYS];
#pragma GCC unroll 4
        for (int k = 0; k < KEYS; k++) {
            int64_t key = entries[j + k < length ? j + k : length - 1] * stride;
            sums[k] = _mm512_mul_ps(q[0], load(keys, key, type));
#pragma GCC unroll 8
            for (int v = 1; v < vectors; v++) sums[k] = _mm512_fmadd_ps(q[v], load(keys, key + 16 * v, type), sums[k]);
        }
        _mm_storeu_ps(scores + j, sum_each(sums[0], sums[1], sums[2], sums[3]));
    }
}

// exp(score - max) in place; returns the sum. `scores` has room up to a multiple of 16.
INLINE float softmax(float *scores, int length) {
    __m512 largest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int j = 0; j < length; j += 16)
        largest = _mm512_mask_max_ps(largest, first_lanes(length - j), largest, _mm512_loadu_ps(scores + j));
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (int j = 0; j < length; j += 16) {
        __m512 weights = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), largest));
        weights = _mm512_maskz_mov_ps(first_lanes(length - j), weights);
        _mm512_storeu_ps(scores + j, weights);
        total = _mm512_add_ps(total, weights);
    }
    return _mm512_reduce_add_ps(total);
}

// Two keys at a time into sums of their own: twice as many independent additions.
INLINE void average_values(const int vectors, const Type type, const void *values, int64_t stride,
                           const int32_t *entries, int length, const float *weights, float total, void *output) {
    __m512 even[MOST_VECTORS], odd[MOST_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) even[v] = odd[v] = _mm512_setzero_ps();
    for (int j = 0; j < length; j += 2) {  // the weight behind the last one is 0
        int64_t first = entries[j] * stride, second = entries[j + 1 < length ? j + 1 : j] * stride;
        __m512 w = _mm512_set1_ps(weights[j]), x = _mm512_set1_ps(weights[j + 1]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            even[v] = _mm512_fmadd_ps(w, load(values, first + 16 * v, type), even[v]);
            odd[v] = _mm512_fmadd_ps(x, load(values, second + 16 * v, type), odd[v]);
        }
    }
    __m512 factor = _mm512_set1_ps(length ? 1 / total : 0);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        store(output, 16 * v, type, _mm512_mul_ps(_mm512_add_ps(even[v], odd[v]), factor));
}

INLINE const void *offset(const void *base, int64_t index, const Type type) {
    return (const char *)base + index * size_of(type);
}

INLINE void attend(const int vectors, const Type type, int rows, int heads, int width, const void *queries,
                   const void *cache, const Table *table, float scale, void *output, float *scratch) {
    for (int r = 0; r < rows; r++) {
        const int32_t *entries = table->entries + table->line[r] * table->stride;
        int length = table->lengths[table->line[r]];
        for (int h = 0; h < heads; h++) {
            int64_t head = 16 * vectors * h, place = (int64_t)r * width + head;
            const void *keys = offset(cache, head, type), *values = offset(cache, width + head, type);
            score_keys(vectors, type, offset(queries, place, type), keys, 2 * width, entries, length, scale, scratch);
            float total = softmax(scratch, length);
            average_values(vectors, type, values, 2 * width, entries, length, scratch, total,
                           (void *)offset(output, place, type));
        }
        for (int64_t i = 16 * vectors * heads; i < width; i += 16)  // a linear map reads the padding, too
            store(output, (int64_t)r * width + i, type, _mm512_setzero_ps());
    }
}

INLINE void attend_typed(const Type type, int rows, int heads, int head_size, int width, const void *queries,
                         const void *cache, const Table *table, float scale, void *output, float *scratch) {
    switch (head_size / 16) {
    case 1: return attend(1, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 2: return attend(2, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 3: return attend(3, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 4: return attend(4, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 5: return attend(5, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 6: return attend(6, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 7: return attend(7, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    default: return attend(8, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    }
}

// softmax(q K^T * scale) V for each row, over the lines of the cache, (entries, 2 * width), keys before values.
//
// queries and output are (rows, width), of which heads * head_size count; head_size is a multiple of 16, at most 128.
// `scratch` has room for the longest line of the table, up to a multiple of 16.
WITH_AVX512 void attention(int rows, int heads, int head_size, int width, Type type, const void *queries, const void *cache,
                      const Table *table, float scale, void *output, float *scratch) {
    if (type == FLOAT32)
        attend_typed(FLOAT32, rows, heads, head_size, width, queries, cache, table, scale, output, scratch);
    else
        attend_typed(BFLOAT16, rows, heads, head_size, width, queries, cache, table, scale, output, scratch);
}
