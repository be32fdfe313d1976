// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The best candidates of each row and their log probabilities.

#include <math.h>
#include <string.h>

#include "simd.h"

enum { LANES = 64 };  // columns are a multiple of this: logits of the padding are -infinity

// The maximum of every 64th logit. The n-th largest of these is a bound: at least n logits reach it.
INLINE float lane_maxima(int columns, const float *logits, __m512 maxima[4]) {
    for (int v = 0; v < 4; v++) maxima[v] = _mm512_loadu_ps(logits + 16 * v);
    for (int i = LANES; i < columns; i += LANES)
        for (int v = 0; v < 4; v++) maxima[v] = _mm512_max_ps(maxima[v], _mm512_loadu_ps(logits + i + 16 * v));
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(maxima[0], maxima[1]), _mm512_max_ps(maxima[2], maxima[3])));
}

INLINE float bound_of_best(int count, __m512 maxima[4]) {
    if (count > LANES) return -INFINITY;
    float bound = -INFINITY;
    for (int n = 0; n < count; n++) {
        bound = _mm512_reduce_max_ps(
            _mm512_max_ps(_mm512_max_ps(maxima[0], maxima[1]), _mm512_max_ps(maxima[2], maxima[3])));
        for (int v = 0; v < 4; v++) {
            __mmask16 taken = _mm512_cmp_ps_mask(maxima[v], _mm512_set1_ps(bound), _CMP_EQ_OQ);
            maxima[v] = _mm512_mask_mov_ps(maxima[v], taken, _mm512_set1_ps(-INFINITY));
        }
    }
    return bound;
}

typedef struct {
    int count, found;
    float *values;  // in descending order; of equal values the one of the smaller id first
    int64_t *ids;
} Best;

static void insert(Best *best, float value, int64_t id) {
    if (best->found == best->count && value <= best->values[best->count - 1]) return;
    int at = best->found < best->count ? best->found++ : best->count - 1;
    for (; at > 0 && best->values[at - 1] < value; at--) {
        best->values[at] = best->values[at - 1];
        best->ids[at] = best->ids[at - 1];
    }
    best->values[at] = value;
    best->ids[at] = id;
}

// log_probs and ids, (rows, count), of the `count` largest of the logits (rows, columns) in descending order.
WITH_AVX512 void top_candidates(int rows, int columns, const float *logits, int count, float *log_probs, int64_t *ids) {
    for (int r = 0; r < rows; r++, logits += columns, log_probs += count, ids += count) {
        __m512 maxima[4];
        float largest = lane_maxima(columns, logits, maxima);
        float bound = bound_of_best(count, maxima);
        Best best = {.count = count, .values = log_probs, .ids = ids};
        for (int n = 0; n < count; n++) {  // what stays if logits are not numbers
            log_probs[n] = -INFINITY;
            ids[n] = 0;
        }
        __m512 total = _mm512_setzero_ps();
        for (int i = 0; i < columns; i += 16) {
            __m512 values = _mm512_loadu_ps(logits + i);
            total = _mm512_add_ps(total, exponential(_mm512_sub_ps(values, _mm512_set1_ps(largest))));
            unsigned above = _mm512_cmp_ps_mask(values, _mm512_set1_ps(bound), _CMP_GE_OQ);
            for (; above; above &= above - 1) {
                int lane = __builtin_ctz(above);
                insert(&best, logits[i + lane], i + lane);
            }
            if (best.found == count && log_probs[count - 1] > bound) bound = log_probs[count - 1];
        }
        float log_total = largest + logf(_mm512_reduce_add_ps(total));
        for (int n = 0; n < count; n++) log_probs[n] -= log_total;
    }
}
