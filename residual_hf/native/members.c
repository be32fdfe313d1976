// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: sums of several streams or earlier outputs, the members of a row, forward and backward.

#include <math.h>

#include "vector.h"

// sum_k weights[k * stride] * members[k], LANES values from `at`.
INLINE vec combine(int members, const float *weights, int stride, const float *const *member, int64_t at, int count) {
    vec total = {0};
    for (int k = 0; k < members; k++) total += weights[k * stride] * load_first(member[k] + at, count);
    return total;
}

INLINE void sum_members(const WeightedSums *s, int64_t start, const float *weights) {
    for (int i = 0; i < s->width; i += LANES)
        for (int j = 0; j < s->outputs; j++) {
            vec sum = combine(s->members, weights + j * s->members, 1, s->member, start + i, s->width - i);
            store_first(s->output[j] + start + i, s->width - i, sum);
        }
}

INLINE void sum_gradients(const WeightedSums *s, int64_t start, const float *weights, float *gradients) {
    for (int i = 0; i < s->width; i += LANES)
        for (int k = 0; k < s->members; k++) {
            vec sum = combine(s->outputs, weights + k, s->members, s->grad_output, start + i, s->width - i);
            store_first(s->grad_member[k] + start + i, s->width - i, sum);
        }
    for (int j = 0; j < s->outputs; j++)
        for (int k = 0; k < s->members; k++)
            gradients[j * s->members + k] = dot(s->grad_output[j] + start, s->member[k] + start, s->width);
}

static void sum_rows(const void *work, int64_t first, int64_t end, int thread) {
    const WeightedSums *s = work;
    for (int64_t row = first; row < end; row++) {
        int64_t start = row * s->width, matrix = row * s->outputs * s->members;
        if (s->grad_output)
            sum_gradients(s, start, s->weights + matrix, s->grad_weights + matrix);
        else
            sum_members(s, start, s->weights + matrix);
    }
}

// output[j] = sum_k weights[j][k] * member[k], or the gradients.
void weighted_sums(const WeightedSums *sums) { run_rows(sums, sums->rows, sums->threads, sum_rows); }

// What backward needs of a member of a row.
typedef struct {
    float probability, logit, scale;
} Read;

INLINE void read_members(const DepthAttention *a, int64_t start, Read *reads) {
    float largest = -INFINITY, total = 0;
    for (int k = 0; k < a->members; k++) {
        const float *member = a->member[k] + start;
        reads[k].scale = 1 / sqrtf(dot(member, member, a->width) / a->width + a->epsilon);
        reads[k].logit = reads[k].scale * dot(a->query, member, a->width);
        largest = fmaxf(largest, reads[k].logit);
    }
    for (int k = 0; k < a->members; k++) total += reads[k].probability = expf(reads[k].logit - largest);
    for (int k = 0; k < a->members; k++) reads[k].probability /= total;
    for (int i = 0; i < a->width; i += LANES)
        store_first(a->output + start + i, a->width - i,
                    combine(a->members, &reads->probability, sizeof(Read) / sizeof(float), a->member, start + i,
                            a->width - i));
}

// d member = p * g + d logit * d logit / d member. Adds d logit * d logit / d query to the gradient of the query.
INLINE void member_gradient(const DepthAttention *a, int64_t start, int k, const Read *read, float grad_logit,
                            float *grad_query) {
    float curvature = grad_logit * read->logit * read->scale * read->scale / a->width;
    float of_query = grad_logit * read->scale;
    for (int i = 0; i < a->width; i += LANES) {
        int count = a->width - i;
        vec member = load_first(a->member[k] + start + i, count);
        vec gradient = load_first(a->grad_output + start + i, count) * read->probability;
        gradient += load_first(a->query + i, count) * of_query;
        store_first(a->grad_member[k] + start + i, count, gradient - member * curvature);
        store_floats(grad_query + i, load_floats(grad_query + i) + member * of_query);
    }
}

INLINE void gradients(const DepthAttention *a, int64_t start, const Read *reads, float *grad_query) {
    float products[a->members], mean = 0;
    for (int k = 0; k < a->members; k++) {
        products[k] = dot(a->grad_output + start, a->member[k] + start, a->width);
        mean += reads[k].probability * products[k];
    }
    for (int k = 0; k < a->members; k++)
        member_gradient(a, start, k, reads + k, reads[k].probability * (products[k] - mean), grad_query);
}

static void attend_rows(const void *work, int64_t first, int64_t end, int thread) {
    const DepthAttention *a = work;
    for (int64_t row = first; row < end; row++) {
        Read *reads = (Read *)a->reads + row * a->members;
        if (a->grad_output)
            gradients(a, row * a->width, reads, a->grad_query + thread * round_up(a->width, 16));
        else
            read_members(a, row * a->width, reads);
    }
}

// Attention over the depth, or the gradients. Of a row with members v_k, k = 0 .. n - 1:
// logit_k = scale_k * (query . v_k) with scale_k = 1 / sqrt(mean(v_k^2) + epsilon), output = sum_k softmax(logit)_k v_k.
void depth_attention(const DepthAttention *attention) {
    run_rows(attention, attention->rows, attention->threads, attend_rows);
}
