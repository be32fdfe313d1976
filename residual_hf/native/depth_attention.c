// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: attention over the depth, forward and backward. Of a row with members v_k, k = 0 .. n - 1:
// logit_k = scale_k * (query . v_k) with scale_k = 1 / sqrt(mean(v_k^2) + epsilon), output = sum_k softmax(logit)_k v_k.

#include <math.h>

#include "vector.h"

// What backward needs of a member of a row.
typedef struct {
    float probability, logit, scale;
} Read;

INLINE void read_members(const DepthAttention *attention, int64_t start, Read *reads) {
    float largest = -INFINITY, total = 0;
    for (int k = 0; k < attention->members; k++) {
        const float *member = attention->member[k] + start;
        float scale = 1 / sqrtf(dot(member, member, attention->width) / attention->width + attention->epsilon);
        reads[k].scale = scale;
        reads[k].logit = scale * dot(attention->query, member, attention->width);
        largest = fmaxf(largest, reads[k].logit);
    }
    for (int k = 0; k < attention->members; k++) total += reads[k].probability = expf(reads[k].logit - largest);
    for (int k = 0; k < attention->members; k++) reads[k].probability /= total;
}

static void *forward_part(void *argument) {
    const Rows *rows = argument;
    const DepthAttention *attention = rows->work;
    for (int64_t row = rows->first; row < rows->end; row++) {
        int64_t start = row * attention->width;
        Read *reads = (Read *)attention->reads + row * attention->members;
        read_members(attention, start, reads);
        for (int i = 0; i < attention->width; i += LANES) {
            int count = attention->width - i;
            vec values = combine(attention->members, &reads->probability, sizeof(Read) / sizeof(float),
                                 attention->member, start + i, count);
            store_first(attention->output + start + i, count, values);
        }
    }
    return NULL;
}

// d member = p * g + d logit * d logit / d member. Adds d logit * d logit / d query to the gradient of the query.
INLINE void member_gradient(const DepthAttention *attention, int64_t start, int k, const Read *read, float grad_logit,
                            float *grad_query) {
    float curvature = grad_logit * read->logit * read->scale * read->scale / attention->width;
    float of_query = grad_logit * read->scale;
    for (int i = 0; i < attention->width; i += LANES) {
        int count = attention->width - i;
        vec member = load_first(attention->member[k] + start + i, count);
        vec gradient = load_first(attention->grad_output + start + i, count) * read->probability;
        gradient += load_first(attention->query + i, count) * of_query;
        store_first(attention->grad_member[k] + start + i, count, gradient - member * curvature);
        store_floats(grad_query + i, load_floats(grad_query + i) + member * of_query);
    }
}

static void *backward_part(void *argument) {
    const Rows *rows = argument;
    const DepthAttention *attention = rows->work;
    int members = attention->members;
    float *grad_query = attention->grad_query + rows->thread * ((attention->width + 15) / 16 * 16);
    for (int64_t row = rows->first; row < rows->end; row++) {
        int64_t start = row * attention->width;
        const Read *reads = (const Read *)attention->reads + row * members;
        const float *gradient = attention->grad_output + start;
        float *products = attention->products + row * members, mean = 0;
        for (int k = 0; k < members; k++) {
            products[k] = dot(gradient, attention->member[k] + start, attention->width);
            mean += reads[k].probability * products[k];
        }
        for (int k = 0; k < members; k++)
            member_gradient(attention, start, k, &reads[k], reads[k].probability * (products[k] - mean), grad_query);
    }
    return NULL;
}

void depth_attention_forward(const DepthAttention *attention) {
    run_rows(attention, attention->rows, attention->threads, forward_part);
}

void depth_attention_backward(const DepthAttention *attention) {
    run_rows(attention, attention->rows, attention->threads, backward_part);
}
