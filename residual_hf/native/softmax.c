// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: negative log-likelihood of labels, and probabilities in place of the logits, a row at a time.

#include <math.h>

#include "vector.h"

INLINE vec load_logits(const float *row, int64_t count, float missing) {
    if (count >= LANES) return load_floats(row);
    return choose(first_lanes(count), load_first(row, count), splat(missing));
}

INLINE float largest(const float *row, int64_t classes) {
    vec most = splat(-INFINITY);
    for (int64_t i = 0; i < classes; i += LANES) most = MAX(most, load_logits(row + i, classes - i, -INFINITY));
    return largest_lane(most);
}

// row = exp(row - most); returns the sum of that, and in `logit_sum` the sum of row - most.
INLINE float exponentials(float *row, int64_t classes, float most, float *logit_sum) {
    vec total = {0}, all = {0};
    for (int64_t i = 0; i < classes; i += LANES) {
        vec shifted = load_logits(row + i, classes - i, most) - most, values = exponential(shifted);
        if (classes - i < LANES) values = only(first_lanes(classes - i), values);
        all += shifted;
        total += values;
        store_first(row + i, classes - i, values);
    }
    *logit_sum = sum(all);
    return sum(total);
}

INLINE void scale_row(float *row, int64_t classes, float factor) {
    for (int64_t i = 0; i < classes; i += LANES)
        store_first(row + i, classes - i, load_first(row + i, classes - i) * factor);
}

static void softmax_rows(const void *work, int64_t first, int64_t end, int thread) {
    const LabelSoftmax *softmax = work;
    int64_t classes = softmax->width;
    for (int64_t r = first; r < end; r++) {
        float *row = softmax->logits + r * classes;
        float most = largest(row, classes), logit_sum, label = row[softmax->labels[r]] - most;
        float total = exponentials(row, classes, most, &logit_sum);
        if (isnan(logit_sum)) total = NAN;  // the largest value and its exponential pass over it
        scale_row(row, classes, 1 / total);
        softmax->nll[r] = logf(total) - label;
        softmax->log_prob_sums[r] = logit_sum - classes * logf(total);
    }
}

void label_softmax(const LabelSoftmax *softmax) { run_rows(softmax, softmax->rows, softmax->threads, softmax_rows); }
