// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: sums of several streams with weights that differ from row to row, forward and backward.

#include "vector.h"

static void *forward_part(void *argument) {
    const Rows *rows = argument;
    const WeightedSums *sums = rows->work;
    for (int64_t row = rows->first; row < rows->end; row++) {
        const float *weights = sums->weights + row * sums->outputs * sums->members;
        for (int i = 0; i < sums->width; i += LANES) {
            int count = sums->width - i;
            int64_t at = row * sums->width + i;
            for (int j = 0; j < sums->outputs; j++) {
                vec sum = combine(sums->members, weights + j * sums->members, 1, sums->member, at, count);
                store_first(sums->output[j] + at, count, sum);
            }
        }
    }
    return NULL;
}

static void *backward_part(void *argument) {
    const Rows *rows = argument;
    const WeightedSums *sums = rows->work;
    int members = sums->members, outputs = sums->outputs;
    for (int64_t row = rows->first; row < rows->end; row++) {
        const float *weights = sums->weights + row * outputs * members;
        float *gradients = sums->grad_weights + row * outputs * members;
        int64_t start = row * sums->width;
        for (int i = 0; i < sums->width; i += LANES) {
            int count = sums->width - i;
            for (int k = 0; k < members; k++) {
                vec gradient = combine(outputs, weights + k, members, sums->grad_output, start + i, count);
                store_first(sums->grad_member[k] + start + i, count, gradient);
            }
        }
        for (int j = 0; j < outputs; j++)
            for (int k = 0; k < members; k++)
                gradients[j * members + k] = dot(sums->grad_output[j] + start, sums->member[k] + start, sums->width);
    }
    return NULL;
}

void weighted_sums_forward(const WeightedSums *sums) { run_rows(sums, sums->rows, sums->threads, forward_part); }

void weighted_sums_backward(const WeightedSums *sums) { run_rows(sums, sums->rows, sums->threads, backward_part); }
