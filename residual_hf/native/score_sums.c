// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Attention to the sum of the scores of all layers so far, as in RealFormer: one row and head at a time.

#include <math.h>

#include "stack.h"

// softmax(score_factor * (sums + q K^T * scale)) V for the queries of `b`, and the sums that the next layer continues.
void attention_with_sums(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of, const void *cache,
                         const Table *table, float *sums, int is_first) {
    float factor = of->score_factor;
    int64_t width = s->attention_width, size = s->head_size;
    for (int64_t row = 0; row < rows; row++) {
        int line = table->line[row], length = table->lengths[line];
        const int32_t *entries = table->entries + line * table->stride;
        for (int head = 0; head < s->heads; head++) {
            int64_t place = row * width + head * size;
            float *scores = sums + (row * s->heads + head) * b->longest;
            float largest = -INFINITY, total = 0;
            for (int j = 0; j < length; j++) {
                vec products = {0};
                int64_t key = 2 * (int64_t)entries[j] * width + head * size;
                for (int i = 0; i < size; i += LANES)
                    products += load(b->query, place + i, s->type) * load(cache, key + i, s->type);
                float score = sum(products) * of->scale;
                scores[j] = is_first ? score : scores[j] + score;
                largest = fmaxf(largest, scores[j] * factor);
            }
            for (int j = 0; j < length; j++) total += b->scores[j] = expf(scores[j] * factor - largest);
            for (int i = 0; i < size; i += LANES) {
                vec average = {0};
                for (int j = 0; j < length; j++) {
                    int64_t value = (2 * (int64_t)entries[j] + 1) * width + head * size;
                    average += b->scores[j] / total * load(cache, value + i, s->type);
                }
                store(b->context, place + i, s->type, average);
            }
        }
        for (int64_t i = s->heads * size; i < width; i += LANES)  // a linear map reads the padding, too
            store(b->context, row * width + i, s->type, (vec){0});
    }
}
