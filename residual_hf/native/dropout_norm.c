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

WITH_AVX512 static void *dropout_part(void *argument) {
    const Rows *blocks = argument;
    const Values *all = blocks->work;
    Dropout dropout = make_dropout(all->seed, all->rate);
    __mmask32 mask = 0;
    for (int64_t i = blocks->first * BLOCK; i < blocks->end * BLOCK && i < all->count; i += 16) {
        if (i % BLOCK == 0) mask = kept(&dropout, i / BLOCK);
        __mmask16 lanes = all->count - i < 16 ? first_lanes((int)(all->count - i)) : 0xffff;
        __m512 values = drop(&dropout, half(mask, (int)(i % BLOCK)), _mm512_maskz_loadu_ps(lanes, all->input + i));
        _mm512_mask_storeu_ps(all->output + i, lanes, values);
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
    __m512 total = _mm512_setzero_ps(), dual_scale = _mm512_set1_ps(join->dual_scale);
    __mmask32 mask = 0;
    for (int i = 0; i < width; i += 16) {
        if (i % BLOCK == 0) mask = kept(dropout, block++);
        __mmask16 lanes = first_lanes(width - i);
        __m512 branch = _mm512_maskz_loadu_ps(lanes, join->branch + start + i);
        branch = drop(dropout, half(mask, i), branch);
        __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, join->stream + start + i), branch);
        _mm512_mask_storeu_ps(join->sum + start + i, lanes, sum);
        total = _mm512_add_ps(total, sum);
        if (!join->dual) continue;
        __m512 dual = _mm512_maskz_loadu_ps(lanes, join->dual + start + i);
        _mm512_mask_storeu_ps(join->dual_output + start + i, lanes, _mm512_fmadd_ps(branch, dual_scale, dual));
    }
    return join->centered ? _mm512_reduce_add_ps(total) / width : 0;
}

INLINE __m512 normalized(const float *values, __mmask16 lanes, float mean, float scale) {
    __m512 centered = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, values), _mm512_set1_ps(mean));
    return _mm512_maskz_mul_ps(lanes, centered, _mm512_set1_ps(scale));
}

INLINE void norm_row(const DropoutNorm *join, int64_t row, float mean) {
    const float *sum = join->sum + row * join->width;
    float scale = inverse_deviation(sum, join->width, mean, join->epsilon);
    join->statistics[2 * row] = mean;
    join->statistics[2 * row + 1] = scale;
    for (int i = 0; i < join->width; i += 16) {
        __mmask16 lanes = first_lanes(join->width - i);
        __m512 bias = join->bias ? _mm512_maskz_loadu_ps(lanes, join->bias + i) : _mm512_setzero_ps();
        __m512 values = normalized(sum + i, lanes, mean, scale);
        values = _mm512_fmadd_ps(values, _mm512_maskz_loadu_ps(lanes, join->gain + i), bias);
        _mm512_mask_storeu_ps(join->output + row * join->width + i, lanes, values);
    }
}

WITH_AVX512 static void *forward_part(void *argument) {
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
    const float *sum = join->sum + row * join->width, *gradient = join->grad_output + row * join->width;
    __m512 total = _mm512_setzero_ps(), product = _mm512_setzero_ps();
    for (int i = 0; i < join->width; i += 16) {
        __mmask16 lanes = first_lanes(join->width - i);
        __m512 state = normalized(sum + i, lanes, join->statistics[2 * row], join->statistics[2 * row + 1]);
        __m512 values = _mm512_maskz_loadu_ps(lanes, gradient + i);
        _mm512_storeu_ps(part->grad_gain + i, _mm512_fmadd_ps(values, state, _mm512_loadu_ps(part->grad_gain + i)));
        _mm512_storeu_ps(part->grad_bias + i, _mm512_add_ps(values, _mm512_loadu_ps(part->grad_bias + i)));
        values = _mm512_mul_ps(values, _mm512_maskz_loadu_ps(lanes, join->gain + i));
        total = _mm512_add_ps(total, values);
        product = _mm512_fmadd_ps(values, state, product);
    }
    *mean = join->centered ? _mm512_reduce_add_ps(total) / join->width : 0;
    *projection = _mm512_reduce_add_ps(product) / join->width;
}

// d sum, from the gradient of the output through the norm.
INLINE __m512 sum_gradient(const DropoutNorm *join, int64_t row, int i, __mmask16 lanes, float mean, float projection) {
    int64_t at = row * join->width + i;
    __m512 gradient = _mm512_maskz_loadu_ps(lanes, join->grad_output + at);
    if (!join->gain) return gradient;
    float scale = join->statistics[2 * row + 1];
    __m512 state = normalized(join->sum + at, lanes, join->statistics[2 * row], scale);
    gradient = _mm512_mul_ps(gradient, _mm512_maskz_loadu_ps(lanes, join->gain + i));
    gradient = _mm512_sub_ps(gradient, _mm512_set1_ps(mean));
    gradient = _mm512_fnmadd_ps(state, _mm512_set1_ps(projection), gradient);
    return _mm512_mul_ps(gradient, _mm512_set1_ps(scale));
}

INLINE void backward_row(const Part *part, const Dropout *dropout, int64_t row) {
    const DropoutNorm *join = part->join;
    int64_t start = row * join->width, block = row * ((join->width + BLOCK - 1) / BLOCK);
    float mean = 0, projection = 0;
    if (join->gain) norm_gradients(part, row, &mean, &projection);
    __mmask32 mask = 0;
    for (int i = 0; i < join->width; i += 16) {
        if (i % BLOCK == 0) mask = kept(dropout, block++);
        __mmask16 lanes = first_lanes(join->width - i);
        __m512 gradient = sum_gradient(join, row, i, lanes, mean, projection);
        if (join->grad_stream) _mm512_mask_storeu_ps(join->grad_stream + start + i, lanes, gradient);
        if (join->grad_dual) {
            __m512 dual = _mm512_maskz_loadu_ps(lanes, join->grad_dual + start + i);
            gradient = _mm512_fmadd_ps(dual, _mm512_set1_ps(join->dual_scale), gradient);
        }
        _mm512_mask_storeu_ps(join->grad_branch + start + i, lanes, drop(dropout, half(mask, i), gradient));
    }
}

WITH_AVX512 static void *backward_part(void *argument) {
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
