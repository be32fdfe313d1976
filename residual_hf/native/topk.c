// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The best candidates of each row and their log probabilities, from logits that come in parts of the vocabulary.

#include <math.h>

#include "simd.h"

enum { LANES = 64 };  // columns are a multiple of this: logits of the padding are -infinity

// The maximum of every 64th logit. The n-th largest of these is a bound: at least n logits reach it.
INLINE void lane_maxima(int columns, const float *logits, __m512 maxima[4]) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) maxima[v] = _mm512_loadu_ps(logits + 16 * v);
    for (int i = LANES; i < columns; i += LANES)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) maxima[v] = _mm512_max_ps(maxima[v], _mm512_loadu_ps(logits + i + 16 * v));
}

INLINE float largest_of(const __m512 maxima[4]) {
    __m512 upper = _mm512_max_ps(maxima[0], maxima[1]), lower = _mm512_max_ps(maxima[2], maxima[3]);
    return _mm512_reduce_max_ps(_mm512_max_ps(upper, lower));
}

INLINE float bound_of_best(int count, __m512 maxima[4]) {
    float bound = -INFINITY;
    for (int n = 0; n < count && count <= LANES; n++) {
        bound = largest_of(maxima);
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

INLINE void add_row(int columns, int64_t first_id, const float *logits, Tally *tally, Best *best) {
    __m512 maxima[4];
    lane_maxima(columns, logits, maxima);
    float largest = fmaxf(tally->largest, largest_of(maxima));
    float bound = best->found == best->count ? best->values[best->count - 1] : bound_of_best(best->count, maxima);
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < columns; i += 16) {
        __m512 values = _mm512_loadu_ps(logits + i);
        total = _mm512_add_ps(total, exponential(_mm512_sub_ps(values, _mm512_set1_ps(largest))));
        unsigned above = _mm512_cmp_ps_mask(values, _mm512_set1_ps(bound), _CMP_GE_OQ);
        if (!above) continue;
        for (; above; above &= above - 1) {
            int lane = __builtin_ctz(above);
            insert(best, logits[i + lane], first_id + i + lane);
        }
        if (best->found == best->count) bound = fmaxf(bound, best->values[best->count - 1]);
    }
    tally->total = tally->total * expf(tally->largest - largest) + _mm512_reduce_add_ps(total);
    tally->largest = largest;
}

void start_candidates(int rows, int count, float *log_probs, int64_t *ids, Tally *tallies) {
    for (int r = 0; r < rows; r++) tallies[r] = (Tally){.largest = -INFINITY};
    for (int i = 0; i < rows * count; i++) {  // what stays if logits are not numbers
        log_probs[i] = -INFINITY;
        ids[i] = 0;
    }
}

// Logits (rows, columns) of the tokens from `first_id`, into the `count` largest of each row so far.
WITH_AVX512 void add_candidates(int rows, int columns, int64_t first_id, const float *logits, int count,
                                float *log_probs, int64_t *ids, Tally *tallies) {
    for (int r = 0; r < rows; r++) {
        Best best = {count, tallies[r].found, log_probs + (int64_t)r * count, ids + (int64_t)r * count};
        add_row(columns, first_id, logits + (int64_t)r * columns, tallies + r, &best);
        tallies[r].found = best.found;
    }
}

// log_probs become log probabilities; until here they are logits.
void finish_candidates(int rows, int count, float *log_probs, const Tally *tallies) {
    for (int r = 0; r < rows; r++, log_probs += count)
        for (int n = 0; n < count; n++) log_probs[n] = log_probs[n] - tallies[r].largest - logf(tallies[r].total);
}
