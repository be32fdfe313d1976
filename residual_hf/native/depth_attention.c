// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: attention over the depth, forward and backward. Of a row with members v_k, k = 0 .. n - 1:
// logit_k = scale_k * (query . v_k) with scale_k = 1 / sqrt(mean(v_k^2) + epsilon), output = sum_k softmax(logit)_k v_k.

#include <math.h>

#include "simd.h"

// Rows of one thread.
typedef struct {
    const DepthAttention *attention;
    int64_t first, end;
    float *grad_query;
} Part;

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

WITH_AVX512 static void *forward_part(void *argument) {
    const Part *part = argument;
    const DepthAttention *attention = part->attention;
    for (int64_t row = part->first; row < part->end; row++) {
        int64_t start = row * attention->width;
        Read *reads = (Read *)attention->reads + row * attention->members;
        read_members(attention, start, reads);
        for (int i = 0; i < attention->width; i += 16) {
            __mmask16 lanes = first_lanes(attention->width - i);
            __m512 sum = _mm512_setzero_ps();
            for (int k = 0; k < attention->members; k++) {
                __m512 member = _mm512_maskz_loadu_ps(lanes, attention->member[k] + start + i);
                sum = _mm512_fmadd_ps(_mm512_set1_ps(reads[k].probability), member, sum);
            }
            _mm512_mask_storeu_ps(attention->output + start + i, lanes, sum);
        }
    }
    return NULL;
}

// d member = p * g + d logit * d logit / d member. Adds d logit * d logit / d query to the gradient of the query.
INLINE void member_gradient(const Part *part, int64_t start, int k, const Read *read, float grad_logit) {
    const DepthAttention *attention = part->attention;
    float curvature = grad_logit * read->logit * read->scale * read->scale / attention->width;
    __m512 probability = _mm512_set1_ps(read->probability), of_query = _mm512_set1_ps(grad_logit * read->scale);
    for (int i = 0; i < attention->width; i += 16) {
        __mmask16 lanes = first_lanes(attention->width - i);
        __m512 member = _mm512_maskz_loadu_ps(lanes, attention->member[k] + start + i);
        __m512 gradient = _mm512_mul_ps(probability, _mm512_maskz_loadu_ps(lanes, attention->grad_output + start + i));
        gradient = _mm512_fmadd_ps(of_query, _mm512_maskz_loadu_ps(lanes, attention->query + i), gradient);
        gradient = _mm512_fnmadd_ps(_mm512_set1_ps(curvature), member, gradient);
        _mm512_mask_storeu_ps(attention->grad_member[k] + start + i, lanes, gradient);
        __m512 query = _mm512_fmadd_ps(of_query, member, _mm512_loadu_ps(part->grad_query + i));
        _mm512_storeu_ps(part->grad_query + i, query);
    }
}

WITH_AVX512 static void *backward_part(void *argument) {
    const Part *part = argument;
    const DepthAttention *attention = part->attention;
    int members = attention->members;
    for (int64_t row = part->first; row < part->end; row++) {
        int64_t start = row * attention->width;
        const Read *reads = (const Read *)attention->reads + row * members;
        const float *gradient = attention->grad_output + start;
        float *products = attention->products + row * members, mean = 0;
        for (int k = 0; k < members; k++) {
            products[k] = dot(gradient, attention->member[k] + start, attention->width);
            mean += reads[k].probability * products[k];
        }
        for (int k = 0; k < members; k++)
            member_gradient(part, start, k, &reads[k], reads[k].probability * (products[k] - mean));
    }
    return NULL;
}

static void run_rows(const DepthAttention *attention, void *(*run)(void *part)) {
    Part parts[MOST_THREADS];
    int count = attention->threads < MOST_THREADS ? attention->threads : MOST_THREADS;
    int64_t stride = (attention->width + 15) / 16 * 16;
    for (int i = 0; i < count; i++)
        parts[i] = (Part){
            .attention = attention,
            .first = attention->rows * i / count,
            .end = attention->rows * (i + 1) / count,
            .grad_query = attention->grad_query ? attention->grad_query + i * stride : NULL,
        };
    run_parts(count, parts, sizeof(Part), run);
}

void depth_attention_forward(const DepthAttention *attention) { run_rows(attention, forward_part); }

void depth_attention_backward(const DepthAttention *attention) { run_rows(attention, backward_part); }
