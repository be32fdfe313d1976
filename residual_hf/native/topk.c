// The best candidates of each row and their log probabilities, from logits that come in parts of the vocabulary.

#include <float.h>

#include "vector.h"

enum { GROUP = 64, VECTORS = GROUP / LANES };  // columns are a multiple of a group: logits of the padding are -infinity

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

static void insert(int count, float *values, int64_t *ids, Tally *tally, float value, int64_t id) {
    if (tally->found == count && value <= values[count - 1]) return;
    int at = tally->found < count ? tally->found++ : count - 1;
    for (; at > 0 && values[at - 1] < value; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
}

INLINE void add_row(int columns, int64_t first_id, const float *logits, int count, float *values, int64_t *ids,
                    Tally *tally) {
    vec maxima[VECTORS], total = {0};  // of every 64th logit: the n-th largest is a bound that at least n logits reach
    UNROLLED(v, VECTORS) maxima[v] = load_floats(logits + LANES * v);
    for (int i = GROUP; i < columns; i += GROUP)
        UNROLLED(v, VECTORS) maxima[v] = MAX(maxima[v], load_floats(logits + i + LANES * v));
    float largest = larger(tally->largest, largest_of(maxima));
    float bound = tally->found == count ? values[count - 1] : bound_of_best(count, maxima);
    for (int i = 0; i < columns; i += GROUP) {
        ivec above = {0};
        UNROLLED(v, VECTORS) {
            vec part = load_floats(logits + i + LANES * v);
            total += exponential(part - largest);
            above |= part >= splat(bound);
        }
        if (!ANY(above)) continue;
        for (int lane = i; lane < i + GROUP; lane++)
            if (logits[lane] >= bound) insert(count, values, ids, tally, logits[lane], first_id + lane);
        if (tally->found == count) bound = larger(values[count - 1], bound);
    }
    tally->total = tally->total * expf(tally->largest - largest) + sum(total);
    tally->largest = largest;
}

void start_candidates(const Candidates *best) {
    // the first logits of a row may all be minus infinity: a difference to that would not be a number
    for (int r = 0; r < best->rows; r++) best->tallies[r] = (Tally){.largest = -FLT_MAX};
    for (int i = 0; i < best->rows * best->count; i++) {  // what stays if logits are not numbers
        best->log_probs[i] = -INFINITY;
        best->ids[i] = 0;
    }
}

// Logits (rows, columns) of the tokens from `first_id`.
void add_candidates(const Candidates *best, int columns, int64_t first_id, const float *logits) {
    for (int64_t r = 0, place = 0; r < best->rows; r++, place += best->count)
        add_row(columns, first_id, logits + r * columns, best->count, best->log_probs + place, best->ids + place,
                best->tallies + r);
}

void finish_candidates(const Candidates *best) {
    for (int i = 0; i < best->rows * best->count; i++) {
        const Tally *tally = best->tallies + i / best->count;
        best->log_probs[i] = best->log_probs[i] - tally->largest - logf(tally->total);
    }
}

// In place, if the two are the same. Columns are those of logits; sums are in the order of `decode`.
void log_softmax(int rows, int columns, const float *logits, float *log_probs) {
    for (int64_t r = 0; r < rows; r++, logits += columns, log_probs += columns) {
        float largest;
        int64_t id;
        Tally tally;
        Candidates best = {1, 1, &largest, &id, &tally};
        start_candidates(&best);
        for (int i = 0; i < columns; i += COLUMNS) add_candidates(&best, least(columns - i, COLUMNS), i, logits + i);
        float log_total = logf(tally.total);
        for (int i = 0; i < columns; i++) log_probs[i] = logits[i] - tally.largest - log_total;
    }
}
