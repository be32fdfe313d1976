// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: negative log-likelihood of labels, and probabilities in place of the logits, a row at a time.

#include <math.h>

#include "simd.h"

typedef struct {
    int64_t classes;
    float *logits;
    const int64_t *labels;
    float *nll, *log_prob_sums;
} Softmax;

INLINE __m512 load_logits(const float *row, int64_t i, int64_t classes, float missing) {
    if (classes - i >= 16) return _mm512_loadu_ps(row + i);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(missing), first_lanes((int)(classes - i)), row + i);
}

INLINE float largest(const float *row, int64_t classes) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < classes; i += 16) most = _mm512_max_ps(most, load_logits(row, i, classes, -INFINITY));
    return _mm512_reduce_max_ps(most);
}

// row = exp(row - most); returns the sum of that, and in `logit_sum` the sum of row - most.
INLINE float exponentials(float *row, int64_t classes, float most, float *logit_sum) {
    __m512 total = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < classes; i += 16) {
        __mmask16 lanes = first_lanes(classes - i < 16 ? (int)(classes - i) : 16);
        __m512 shifted = _mm512_sub_ps(load_logits(row, i, classes, most), _mm512_set1_ps(most));
        __m512 values = exponential(shifted);
        sum = _mm512_add_ps(sum, shifted);
        total = _mm512_mask_add_ps(total, lanes, total, values);
        _mm512_mask_storeu_ps(row + i, lanes, values);
    }
    *logit_sum = _mm512_reduce_add_ps(sum);
    return _mm512_reduce_add_ps(total);
}

INLINE void scale_row(float *row, int64_t classes, float factor) {
    for (int64_t i = 0; i < classes; i += 16) {
        __mmask16 lanes = first_lanes(classes - i < 16 ? (int)(classes - i) : 16);
        _mm512_mask_storeu_ps(row + i, lanes, _mm512_mul_ps(load_logits(row, i, classes, 0), _mm512_set1_ps(factor)));
    }
}

WITH_AVX512 static void *softmax_part(void *argument) {
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
