// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Attention to the sum of the scores of all layers so far, as in RealFormer: one row and head at a time.

#include <math.h>

#include "stack.h"

// softmax(score_factor * (sums + q K^T * scale)) V for the queries of `b`, and the sums that the next layer continues.
WITH_AVX512 void attention_with_sums(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of,
                                     const void *cache, const Table *table, float *sums, int is_first) {
    float factor = of->score_factor;
    int64_t width = s->attention_width, size = s->head_size;
    for (int64_t row = 0; row < rows; row++) {
        int line = table->line[row], length = table->lengths[line];
        const int32_t *entries = table->entries + line * table->stride;
        for (int head = 0; head < s->heads; head++) {
            int64_t place = row * width + head * size;
            float *sum = sums + (row * s->heads + head) * b->longest;
            float largest = -INFINITY, total = 0;
            for (int j = 0; j < length; j++) {
                __m512 products = _mm512_setzero_ps();
                int64_t key = 2 * (int64_t)entries[j] * width + head * size;
                for (int i = 0; i < size; i += 16)
                    products = _mm512_fmadd_ps(load(b->query, place + i, s->type), load(cache, key + i, s->type),
                                               products);
                float score = _mm512_reduce_add_ps(products) * of->scale;
                sum[j] = is_first ? score : sum[j] + score;
                largest = fmaxf(largest, sum[j] * factor);
            }
            for (int j = 0; j < length; j++) total += b->scores[j] = expf(sum[j] * factor - largest);
            for (int i = 0; i < size; i += 16) {
                __m512 average = _mm512_setzero_ps();
                for (int j = 0; j < length; j++)
                    average = _mm512_fmadd_ps(_mm512_set1_ps(b->scores[j] / total),
                                              load(cache, (2 * (int64_t)entries[j] + 1) * width + head * size + i, s->type),
                                              average);
                store(b->context, place + i, s->type, average);
            }
        }
        for (int64_t i = s->heads * size; i < width; i += 16)  // a linear map reads the padding, too
            store(b->context, row * width + i, s->type, _mm512_setzero_ps());
    }
}
