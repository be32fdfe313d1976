// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Attention of single queries over those rows of a key/value cache that a table names.
//
// Beams share what they have in common: a reordered beam is another line of the table, and nothing is copied.

#include <math.h>

#include "simd.h"

enum { PAIR = HEAD_PADDING, MOST_PAIRS = 4 };

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

// A line of the table.
typedef struct {
    const int32_t *entries;
    int length;
} Line;

// Entry j of the line that follows: fetched in small portions between products, it costs no time.
INLINE void fetch(const void *base, const Line *next, int j, int64_t stride, int pairs, const Type type) {
    if (j >= next->length) return;
    const char *place = (const char *)base + next->entries[j] * stride * size_of(type);
    for (size_t byte = 0; byte < PAIR * pairs * size_of(type); byte += 64) _mm_prefetch(place + byte, _MM_HINT_T0);
}

// Scores of `queries` rows for each key, (keys, queries): four at a time, of four keys or of four rows. The last group
// of keys repeats the last one; `softmax` leaves those scores out.
INLINE void score_keys(const int queries, const int pairs, const Type type, const void *query, int64_t query_stride,
                       const void *keys, int64_t stride, const Line *line, const Line *next, float scale,
                       float *scores) {
    const int32_t *entries = line->entries;
    int length = line->length;
    Pair q[QUERIES][MOST_PAIRS];
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int p = 0; p < pairs; p++)
            q[i][p] = scaled(load_pair(query, i * query_stride + PAIR * p, type), _mm512_set1_ps(scale));
    const int keys_together = 4 / queries;
    for (int j = 0; j < length; j += keys_together) {
        __m512 sums[4];
#pragma GCC unroll 4
        for (int k = 0; k < keys_together; k++) {
            int64_t key = entries[j + k < length ? j + k : length - 1] * stride;
            fetch(keys, next, j + k, stride, pairs, type);
#pragma GCC unroll 4
            for (int i = 0; i < queries; i++) sums[k * queries + i] = _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int p = 0; p < pairs; p++) {
                Pair values = load_pair(keys, key + PAIR * p, type);
#pragma GCC unroll 4
                for (int i = 0; i < queries; i++) {
                    __m512 *sum = &sums[k * queries + i];
                    *sum = _mm512_fmadd_ps(q[i][p].first, values.first, *sum);
                    *sum = _mm512_fmadd_ps(q[i][p].second, values.second, *sum);
                }
            }
        }
        _mm_storeu_ps(scores + j * queries, sum_each(sums[0], sums[1], sums[2], sums[3]));
    }
}

// The largest score of each row, in every lane of that row: lanes are (keys, queries) like scores.
INLINE __m512 largest_of_rows(const int queries, __m512 x) {
    x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    if (queries == 4) return x;
    x = _mm512_max_ps(x, _mm512_permute_ps(x, 0x4e));
    return _mm512_max_ps(x, _mm512_permute_ps(x, 0xb1));
}

// The sum of each row's weights, as four floats, from `count` weights and zeros up to a multiple of 16. Whatever
// `queries` is, it adds every fourth key first: a row has the same result in any company.
INLINE __m128 sum_of_rows(const int queries, const float *weights, int count) {
    if (queries == 1) {
        __m128 sums = _mm_setzero_ps();
        for (int j = 0; j < count; j += 4) sums = _mm_add_ps(sums, _mm_loadu_ps(weights + j));
        sums = _mm_add_ps(sums, _mm_permute_ps(sums, 0x4e));
        return _mm_add_ps(sums, _mm_permute_ps(sums, 0xb1));
    }
    __m512 sums = _mm512_setzero_ps();
    for (int j = 0; j < count; j += 16) sums = _mm512_add_ps(sums, _mm512_loadu_ps(weights + j));
    sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4(sums, sums, 0x4e));
    return _mm512_castps512_ps128(_mm512_add_ps(sums, _mm512_shuffle_f32x4(sums, sums, 0xb1)));
}

// exp(score - largest) in place, and zeros up to a multiple of 16; returns the sum of each row, as four floats.
INLINE __m128 softmax(const int queries, float *scores, int length) {
    int count = length * queries;
    __m512 largest = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < count; j += 16)
        largest = _mm512_mask_max_ps(largest, first_lanes(count - j), largest, _mm512_loadu_ps(scores + j));
    largest = largest_of_rows(queries, largest);
    for (int j = 0; j < count; j += 16) {
        __m512 weights = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), largest));
        _mm512_storeu_ps(scores + j, _mm512_maskz_mov_ps(first_lanes(count - j), weights));
    }
    return sum_of_rows(queries, scores, count);
}

// Averages of 32 values for each row. Keys take turns with two sums: twice as many independent additions.
INLINE void average_values(const int queries, const Type type, const void *values, int64_t stride,
                           const Line *line, const Line *next, const float *weights, const float *totals,
                           void *output, int64_t output_stride) {
    const int32_t *entries = line->entries;
    int length = line->length;
    Pair sums[QUERIES][2];
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++) sums[i][0] = sums[i][1] = (Pair){_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < length; j += 2)
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {  // the weights of a key after the last one are 0
            Pair pair = load_pair(values, entries[j + k < length ? j + k : j] * stride, type);
            fetch(values, next, j + k, stride, 1, type);
#pragma GCC unroll 4
            for (int i = 0; i < queries; i++)
                sums[i][k] = add_scaled(sums[i][k], pair, _mm512_set1_ps(weights[(j + k) * queries + i]));
        }
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++) {
        Pair sum = add_scaled(sums[i][0], sums[i][1], _mm512_set1_ps(1));
        store_pair(output, i * output_stride, type, scaled(sum, _mm512_set1_ps(length ? 1 / totals[i] : 0)));
    }
}

INLINE const void *offset(const void *base, int64_t index, const Type type) {
    return (const char *)base + index * size_of(type);
}

typedef struct {
    int heads, head_size, width;
    const void *queries, *cache;
    const Table *table;
    float scale;
    void *output;
    float *scratch;
} Attention;

INLINE Line line_of(const Table *table, int row) {
    int line = table->line[row];
    return (Line){table->entries + line * table->stride, table->lengths[line]};
}

// `queries` rows from `row`, which share a line of the table. The line of the next rows is fetched meanwhile.
INLINE void attend(const int queries, const int pairs, const Type type, const Attention *a, int row, const Line *next) {
    Line line = line_of(a->table, row);
    int64_t width = a->width, stride = 2 * width;
    for (int64_t head = 0; head < PAIR * pairs * a->heads; head += PAIR * pairs) {
        int64_t place = row * width + head;
        score_keys(queries, pairs, type, offset(a->queries, place, type), width, offset(a->cache, head, type), stride,
                   &line, next, a->scale, a->scratch);
        float totals[4];
        _mm_storeu_ps(totals, softmax(queries, a->scratch, line.length));
        for (int64_t i = 0; i < PAIR * pairs; i += PAIR)
            average_values(queries, type, offset(a->cache, width + head + i, type), stride, &line, next, a->scratch,
                           totals, (void *)offset(a->output, place + i, type), width);
    }
    for (int i = 0; i < queries; i++)  // a linear map reads the padding, too
        for (int64_t j = PAIR * pairs * a->heads; j < width; j += PAIR)
            store_pair(a->output, (row + i) * width + j, type, (Pair){_mm512_setzero_ps(), _mm512_setzero_ps()});
}

INLINE void attend_rows(const int pairs, const Type type, const Attention *a, int rows) {
    const int32_t *line = a->table->line;
    for (int r = 0; r < rows;) {
        int together = 1;
        while (r + together < rows && together < QUERIES && line[r + together] == line[r]) together++;
        int end = r + together;
        Line next = {NULL, 0};
        if (end < rows && line[end] != line[r]) next = line_of(a->table, end);
        if (together == QUERIES)
            attend(QUERIES, pairs, type, a, r, &next);
        else
            for (int i = r; i < end; i++) attend(1, pairs, type, a, i, &next);
        r = end;
    }
}

INLINE void attend_typed(const Type type, const Attention *a, int rows) {
    switch (a->head_size / PAIR) {
    case 1: return attend_rows(1, type, a, rows);
    case 2: return attend_rows(2, type, a, rows);
    case 3: return attend_rows(3, type, a, rows);
    default: return attend_rows(4, type, a, rows);
    }
}

// softmax(q K^T * scale) V for each row, over the entries of its line: cache (entries, 2 * width), keys before values.
//
// queries and output are (rows, width), of which heads * head_size count; head_size is a multiple of HEAD_PADDING, at most 128.
// `scratch` has room for QUERIES times the longest line of the table, up to a multiple of 16.
WITH_AVX512 void attention(int rows, int heads, int head_size, int width, Type type, const void *queries,
                           const void *cache, const Table *table, float scale, void *output, float *scratch) {
    Attention a = {heads, head_size, width, queries, cache, table, scale, output, scratch};
    if (type == FLOAT32)
        attend_typed(FLOAT32, &a, rows);
    else
        attend_typed(BFLOAT16, &a, rows);
}
