// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: negative log-likelihood of labels, and probabilities in place of the logits, a row at a time.

#include <math.h>

#include "vector.h"

typedef struct {
    int64_t classes;
    float *logits;
    const int64_t *labels;
    float *nll, *log_prob_sums;
} Softmax;

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

static void *softmax_part(void *argument) {
    const Rows *rows = argument;
    const Softmax *softmax = rows->work;
    int64_t classes = softmax->classes;
    for (int64_t r = rows->first; r < rows->end; r++) {
        float *row = softmax->logits + r * classes;
        float most = largest(row, classes), logit_sum, label = row[softmax->labels[r]] - most;
        float total = exponentials(row, classes, most, &logit_sum);
        if (isnan(logit_sum)) total = NAN;  // the largest value and its exponential pass over it
        scale_row(row, classes, 1 / total);
        softmax->nll[r] = logf(total) - label;
        softmax->log_prob_sums[r] = logit_sum - classes * logf(total);
    }
    return NULL;
}

// logits (rows, classes) become probabilities; nll and log_prob_sums (rows) are -log p of the label and the sum of log p.
void label_softmax(int64_t rows, int64_t classes, int threads, float *logits, const int64_t *labels, float *nll,
                   float *log_prob_sums) {
    Softmax softmax = {classes, logits, labels, nll, log_prob_sums};
    run_rows(&softmax, rows, threads, softmax_part);
}
