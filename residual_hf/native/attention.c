// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Attention of single queries over those rows of a key/value cache that a table names.
//
// Beams share what they have in common: a reordered beam is another line of the table, and nothing is copied.

#include <math.h>

#include "simd.h"

enum { KEYS = 4, PAIR = 32, MOST_PAIRS = 4 };

// 32 values: of bfloat16 the even ones and the odd ones, which are quicker to widen than the two halves.
typedef struct {
    __m512 first, second;
} Pair;

INLINE Pair load_pair(const void *base, int64_t index, const Type type) {
    if (type == FLOAT32) return (Pair){load(base, index, type), load(base, index + 16, type)};
    __m512i bits = _mm512_loadu_si512((const bf16 *)base + index);
    __m512i odd = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
    return (Pair){_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), _mm512_castsi512_ps(odd)};
}

INLINE void store_pair(void *base, int64_t index, const Type type, Pair values) {
    if (type == FLOAT32) {
        store(base, index, type, values.first);
        store(base, index + 16, type, values.second);
    } else {
        __m512i even = _mm512_cvtepu16_epi32(narrow(values.first)), odd = _mm512_cvtepu16_epi32(narrow(values.second));
        _mm512_storeu_si512((bf16 *)base + index, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

INLINE Pair scaled(Pair values, __m512 factor) {
    return (Pair){_mm512_mul_ps(values.first, factor), _mm512_mul_ps(values.second, factor)};
}

INLINE Pair add_scaled(Pair sums, Pair values, __m512 factor) {
    return (Pair){_mm512_fmadd_ps(values.first, factor, sums.first),
                  _mm512_fmadd_ps(values.second, factor, sums.second)};
}

// The sums of four vectors, as four floats.
INLINE __m128 sum_each(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 abcd = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

// Scores of four keys at a time. The last group repeats the last key; `softmax` leaves those scores out.
INLINE void score_keys(const int pairs, const Type type, const void *query, const void *keys, int64_t stride,
                       const int32_t *entries, int length, float scale, float *scores) {
    Pair q[MOST_PAIRS];
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++) q[p] = scaled(load_pair(query, PAIR * p, type), _mm512_set1_ps(scale));
    for (int j = 0; j < length; j += KEYS) {
        __m512 sums[KEYS];
#pragma GCC unroll 4
        for (int k = 0; k < KEYS; k++) {
            int64_t key = entries[j + k < length ? j + k : length - 1] * stride;
            sums[k] = _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int p = 0; p < pairs; p++) {
                Pair values = load_pair(keys, key + PAIR * p, type);
                sums[k] = _mm512_fmadd_ps(q[p].first, values.first, sums[k]);
                sums[k] = _mm512_fmadd_ps(q[p].second, values.second, sums[k]);
            }
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

// Two keys at a time into separate sums: twice as many independent additions.
INLINE void average_values(const int pairs, const Type type, const void *values, int64_t stride,
                           const int32_t *entries, int length, const float *weights, float total, void *output) {
    Pair even[MOST_PAIRS], odd[MOST_PAIRS];
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++) even[p] = odd[p] = (Pair){_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < length; j += 2) {  // the weight after the last one is 0
        int64_t first = entries[j] * stride, second = entries[j + 1 < length ? j + 1 : j] * stride;
        __m512 weight = _mm512_set1_ps(weights[j]), next = _mm512_set1_ps(weights[j + 1]);
#pragma GCC unroll 4
        for (int p = 0; p < pairs; p++) {
            even[p] = add_scaled(even[p], load_pair(values, first + PAIR * p, type), weight);
            odd[p] = add_scaled(odd[p], load_pair(values, second + PAIR * p, type), next);
        }
    }
    __m512 factor = _mm512_set1_ps(length ? 1 / total : 0);
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++)
        store_pair(output, PAIR * p, type, scaled(add_scaled(even[p], odd[p], _mm512_set1_ps(1)), factor));
}

INLINE const void *offset(const void *base, int64_t index, const Type type) {
    return (const char *)base + index * size_of(type);
}

// Entries of a line are far apart in memory: this fetches them while another line is at work.
INLINE void prefetch_entries(const Table *table, int line, const char *cache, size_t entry_size) {
    const int32_t *entries = table->entries + line * table->stride;
    for (int j = 0; j < table->lengths[line]; j++)
        for (size_t byte = 0; byte < entry_size; byte += 64)
            _mm_prefetch(cache + entries[j] * entry_size + byte, _MM_HINT_T1);
}

INLINE void attend(const int pairs, const Type type, int rows, int heads, int width, const void *queries,
                   const void *cache, const Table *table, float scale, void *output, float *scratch) {
    for (int r = 0; r < rows; r++) {
        int line = table->line[r], length = table->lengths[line];
        const int32_t *entries = table->entries + line * table->stride;
        if (r + 1 < rows && table->line[r + 1] != line)
            prefetch_entries(table, table->line[r + 1], cache, 2 * width * size_of(type));
        for (int h = 0; h < heads; h++) {
            int64_t head = PAIR * pairs * h, place = (int64_t)r * width + head;
            const void *keys = offset(cache, head, type), *values = offset(cache, width + head, type);
            score_keys(pairs, type, offset(queries, place, type), keys, 2 * width, entries, length, scale, scratch);
            float total = softmax(scratch, length);
            average_values(pairs, type, values, 2 * width, entries, length, scratch, total,
                           (void *)offset(output, place, type));
        }
        for (int64_t i = PAIR * pairs * heads; i < width; i += PAIR)  // a linear map reads the padding, too
            store_pair(output, (int64_t)r * width + i, type, (Pair){_mm512_setzero_ps(), _mm512_setzero_ps()});
    }
}

INLINE void attend_typed(const Type type, int rows, int heads, int head_size, int width, const void *queries,
                         const void *cache, const Table *table, float scale, void *output, float *scratch) {
    switch (head_size / PAIR) {
    case 1: return attend(1, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 2: return attend(2, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    case 3: return attend(3, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    default: return attend(4, type, rows, heads, width, queries, cache, table, scale, output, scratch);
    }
}

// softmax(q K^T * scale) V for each row, over the entries of its line: cache (entries, 2 * width), keys before values.
//
// queries and output are (rows, width), of which heads * head_size count; head_size is a multiple of 32, at most 128.
// `scratch` has room for the longest line of the table, up to a multiple of 16.
WITH_AVX512 void attention(int rows, int heads, int head_size, int width, Type type, const void *queries,
                           const void *cache, const Table *table, float scale, void *output, float *scratch) {
    if (type == FLOAT32)
        attend_typed(FLOAT32, rows, heads, head_size, width, queries, cache, table, scale, output, scratch);
    else
        attend_typed(BFLOAT16, rows, heads, head_size, width, queries, cache, table, scale, output, scratch);
}
