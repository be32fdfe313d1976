// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: dropout, and the residual connection dropout + add + norm (+ dual stream), forward and backward.

#include "dropout.h"

enum { AHEAD = 512 };  // values between the row in work and what is fetched into the cache

typedef struct {
    int64_t count;
    const float *input;
    uint64_t seed;
    float rate;
    float *output;
} Values;

static void *dropout_part(void *argument) {
    const Rows *blocks = argument;
    const Values *all = blocks->work;
    Dropout dropout = make_dropout(all->seed, all->rate);
    Mask mask;
    for (int64_t i = blocks->first * BLOCK; i < blocks->end * BLOCK && i < all->count; i += LANES) {
        if (i % BLOCK == 0) make_mask(&dropout, i / BLOCK, &mask);
        vec values = drop(&dropout, &mask, i % BLOCK, load_first(all->input + i, all->count - i));
        store_first(all->output + i, all->count - i, values);
    }
    return NULL;
}

// output = dropout(input). With the same seed it is its own gradient.
void dropout(int64_t count, int threads, const float *input, uint64_t seed, float rate, float *output) {
    Values all = {count, input, seed, rate, output};
    run_rows(&all, (count + BLOCK - 1) / BLOCK, threads, dropout_part);
}

// What one thread adds up.
typedef struct {
    const DropoutNorm *join;
    float *grad_gain, *grad_bias;
} Part;

// A row is read up to three times before the next one, so the processor does not see that arrays are read in order.
INLINE void fetch_forward(const DropoutNorm *join, int64_t row) {
    int64_t start = row * join->width + AHEAD;
    for (int64_t i = start; i < start + join->width; i += 16) {
        __builtin_prefetch(join->branch + i, 0);
        __builtin_prefetch(join->stream + i, 0);
        __builtin_prefetch(join->sum + i, 1);
        if (join->gain) __builtin_prefetch(join->output + i, 1);
        if (!join->dual) continue;
        __builtin_prefetch(join->dual + i, 0);
        __builtin_prefetch(join->dual_output + i, 1);
    }
}

INLINE void fetch_backward(const DropoutNorm *join, int64_t row) {
    int64_t start = row * join->width + AHEAD;
    for (int64_t i = start; i < start + join->width; i += 16) {
        __builtin_prefetch(join->grad_output + i, 0);
        __builtin_prefetch(join->grad_branch + i, 1);
        if (join->gain) __builtin_prefetch(join->sum + i, 0);
        if (join->grad_stream) __builtin_prefetch(join->grad_stream + i, 1);
        if (join->grad_dual) __builtin_prefetch(join->grad_dual + i, 0);
    }
}

// sum = stream + dropout(branch), dual_output = dual + dual_scale * dropout(branch); returns the mean of the sum.
INLINE float add_row(const DropoutNorm *join, const Dropout *dropout, int64_t row) {
    int width = join->width;
    int64_t start = row * width, block = row * ((width + BLOCK - 1) / BLOCK);
    vec total = {0};
    Mask mask;
    for (int i = 0; i < width; i += LANES) {
        if (i % BLOCK == 0) make_mask(dropout, block++, &mask);
        vec branch = drop(dropout, &mask, i, load_first(join->branch + start + i, width - i));
        vec values = load_first(join->stream + start + i, width - i) + branch;
        store_first(join->sum + start + i, width - i, values);
        total += values;
        if (!join->dual) continue;
        vec dual = load_first(join->dual + start + i, width - i) + branch * join->dual_scale;
        store_first(join->dual_output + start + i, width - i, dual);
    }
    return join->centered ? sum(total) / width : 0;
}

INLINE vec normalized(const float *values, int count, float mean, float scale) {
    vec centered = (load_first(values, count) - mean) * scale;
    return count < LANES ? only(first_lanes(count), centered) : centered;
}

INLINE void norm_row(const DropoutNorm *join, int64_t row, float mean) {
    const float *sums = join->sum + row * join->width;
    float scale = inverse_deviation(sums, join->width, mean, join->epsilon);
    join->statistics[2 * row] = mean;
    join->statistics[2 * row + 1] = scale;
    for (int i = 0; i < join->width; i += LANES) {
        int count = join->width - i;
        vec values = normalized(sums + i, count, mean, scale) * load_first(join->gain + i, count);
        if (join->bias) values += load_first(join->bias + i, count);
        store_first(join->output + row * join->width + i, count, values);
    }
}

static void *forward_part(void *argument) {
    const Rows *rows = argument;
    const DropoutNorm *join = rows->work;
    Dropout dropout = make_dropout(join->seed, join->rate);
    for (int64_t row = rows->first; row < rows->end; row++) {
        fetch_forward(join, row);
        float mean = add_row(join, &dropout, row);
        if (join->gain) norm_row(join, row, mean);
    }
    return NULL;
}

// Means over a row of g = gain * d output and of g * (normalized sum). Adds to the gradients of gain and bias.
INLINE void norm_gradients(const Part *part, int64_t row, float *mean, float *projection) {
    const DropoutNorm *join = part->join;
    const float *sums = join->sum + row * join->width, *gradient = join->grad_output + row * join->width;
    vec total = {0}, product = {0};
    for (int i = 0; i < join->width; i += LANES) {
        int count = join->width - i;
        vec state = normalized(sums + i, count, join->statistics[2 * row], join->statistics[2 * row + 1]);
        vec values = load_first(gradient + i, count);
        store_floats(part->grad_gain + i, load_floats(part->grad_gain + i) + values * state);
        store_floats(part->grad_bias + i, load_floats(part->grad_bias + i) + values);
        values *= load_first(join->gain + i, count);
        total += values;
        product += values * state;
    }
    *mean = join->centered ? sum(total) / join->width : 0;
    *projection = sum(product) / join->width;
}

// d sum, from the gradient of the output through the norm.
INLINE vec sum_gradient(const DropoutNorm *join, int64_t row, int i, float mean, float projection) {
    int count = join->width - i;
    int64_t at = row * join->width + i;
    vec gradient = load_first(join->grad_output + at, count);
    if (!join->gain) return gradient;
    float scale = join->statistics[2 * row + 1];
    vec state = normalized(join->sum + at, count, join->statistics[2 * row], scale);
    return ((gradient * load_first(join->gain + i, count) - mean) - state * projection) * scale;
}

INLINE void backward_row(const Part *part, const Dropout *dropout, int64_t row) {
    const DropoutNorm *join = part->join;
    int width = join->width;
    int64_t start = row * width, block = row * ((width + BLOCK - 1) / BLOCK);
    float mean = 0, projection = 0;
    if (join->gain) norm_gradients(part, row, &mean, &projection);
    Mask mask;
    for (int i = 0; i < width; i += LANES) {
        if (i % BLOCK == 0) make_mask(dropout, block++, &mask);
        vec gradient = sum_gradient(join, row, i, mean, projection);
        if (join->grad_stream) store_first(join->grad_stream + start + i, width - i, gradient);
        if (join->grad_dual) gradient += load_first(join->grad_dual + start + i, width - i) * join->dual_scale;
        store_first(join->grad_branch + start + i, width - i, drop(dropout, &mask, i, gradient));
    }
}

static void *backward_part(void *argument) {
    const Rows *rows = argument;
    const DropoutNorm *join = rows->work;
    int64_t offset = rows->thread * ((join->width + 15) / 16 * 16);
    Part part = {join, join->grad_gain ? join->grad_gain + offset : NULL, join->grad_bias ? join->grad_bias + offset : NULL};
    Dropout dropout = make_dropout(join->seed, join->rate);
    for (int64_t row = rows->first; row < rows->end; row++) {
        fetch_backward(join, row);
        backward_row(&part, &dropout, row);
    }
    return NULL;
}

void dropout_norm_forward(const DropoutNorm *join) { run_rows(join, join->rows, join->threads, forward_part); }

void dropout_norm_backward(const DropoutNorm *join) { run_rows(join, join->rows, join->threads, backward_part); }
