// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The best candidates of each row and their log probabilities, from logits that come in parts of the vocabulary.

#include <math.h>

#include "vector.h"

enum { GROUP = 64, VECTORS = GROUP / LANES };  // columns are a multiple of a group: logits of the padding are -infinity

// The maximum of every 64th logit. The n-th largest of these is a bound: at least n logits reach it.
INLINE void lane_maxima(int columns, const float *logits, vec maxima[VECTORS]) {
    UNROLLED(v, VECTORS) maxima[v] = load_floats(logits + LANES * v);
    for (int i = GROUP; i < columns; i += GROUP)
        UNROLLED(v, VECTORS) maxima[v] = MAX(maxima[v], load_floats(logits + i + LANES * v));
}

INLINE float largest_of(const vec maxima[VECTORS]) {
    vec largest = maxima[0];
    for (int v = 1; v < VECTORS; v++) largest = MAX(largest, maxima[v]);
    return largest_lane(largest);
}

INLINE float bound_of_best(int count, vec maxima[VECTORS]) {
    float bound = -INFINITY;
    for (int n = 0; n < count && count <= GROUP; n++) {
        bound = largest_of(maxima);
        for (int v = 0; v < VECTORS; v++) maxima[v] = choose(maxima[v] == splat(bound), splat(-INFINITY), maxima[v]);
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
    vec maxima[VECTORS], total = {0};
    lane_maxima(columns, logits, maxima);
    float largest = larger(tally->largest, largest_of(maxima));
    float bound = best->found == best->count ? best->values[best->count - 1] : bound_of_best(best->count, maxima);
    for (int i = 0; i < columns; i += GROUP) {
        ivec above = {0};
        UNROLLED(v, VECTORS) {
            vec values = load_floats(logits + i + LANES * v);
            total += exponential(values - largest);
            above |= values >= splat(bound);
        }
        if (!ANY(above)) continue;
        for (int lane = i; lane < i + GROUP; lane++)
            if (logits[lane] >= bound) insert(best, logits[lane], first_id + lane);
        if (best->found == best->count) bound = larger(best->values[best->count - 1], bound);
    }
    tally->total = tally->total * expf(tally->largest - largest) + sum(total);
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
void add_candidates(int rows, int columns, int64_t first_id, const float *logits, int count, float *log_probs,
                    int64_t *ids, Tally *tallies) {
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
