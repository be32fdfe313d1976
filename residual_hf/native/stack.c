// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Sub-layers and residual connections on the activations of some rows: what encoder and decoder share.

#include "stack.h"

// The next `bytes` of scratch memory; with `base` NULL they are only counted.
void *take(char *base, size_t *used, size_t bytes) {
    void *taken = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return taken;
}

// Buffers for `rows` rows, of which sub-layers see `chunk` at a time; returns the memory that they need.
size_t place_buffers(const Stack *s, int rows, int chunk, int longest, char *base, Buffers *b) {
    size_t used = 0, size = element_size(s);
    size_t all = round_up(rows, ROW_PADDING), some = round_up(chunk, ROW_PADDING);
    b->stream = take(base, &used, all * s->stride * sizeof(float));
    b->dual = s->dual_scale ? take(base, &used, all * s->stride * sizeof(float)) : NULL;
    b->hidden = take(base, &used, all * s->stride * size);
    b->branch = take(base, &used, some * s->stride * sizeof(float));
    b->query = take(base, &used, some * s->attention_width * size);
    b->context = take(base, &used, some * s->attention_width * size);
    b->ffn = take(base, &used, some * s->ffn_width * size);
    b->scores = take(base, &used, QUERIES * round_up(longest, 16) * sizeof(float));
    int widest = most(s->stride, most(s->attention_width, s->ffn_width));
    b->linear = take(base, &used, linear_scratch_size(s->type, chunk, widest));
    return used;
}

void *cache_entry(const Stack *s, const void *cache, int64_t index) {
    return (char *)cache + index * 2 * s->attention_width * element_size(s);
}

int in_vocabulary(const Stack *s, int rows, const int64_t *tokens) {
    for (int r = 0; r < rows; r++)
        if (tokens[r] < 0 || tokens[r] >= s->vocabulary) return 0;
    return 1;
}

// stream = scale * token + position (normalized in BART), dual = dual_scale * stream, and what the first layer reads.
WITH_AVX512 void embed(const Stack *s, const Buffers *b, int rows, const int64_t *tokens, const int64_t *positions) {
    for (int r = 0; r < rows; r++) {
        const float *token = s->tokens + tokens[r] * s->width;
        const float *position = s->positions ? s->positions + positions[r] * s->width : NULL;
        float *row = b->stream + (int64_t)r * s->stride;
        for (int i = 0; i < s->stride; i += 16) {
            __mmask16 lanes = i < s->width ? first_lanes(s->width - i) : 0;
            __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, token + i), _mm512_set1_ps(s->embedding_scale));
            if (position) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(lanes, position + i));
            _mm512_storeu_ps(row + i, values);
        }
    }
    if (s->embedding_norm.gain)
        add_norm(rows, s->width, s->stride, b->stream, NULL, &s->embedding_norm, 0, NULL, 0, NULL, s->type);
    if (b->dual)
        for (int64_t i = 0; i < (int64_t)rows * s->stride; i++) b->dual[i] = s->dual_scale * b->stream[i];
    add_norm(rows, s->width, s->stride, b->stream, NULL, &s->first_norm, s->keep_sum, NULL, 0, b->hidden, s->type);
}

static void join(const Stack *s, const Buffers *b, int rows, const Join *after) {
    if (after->output.gain)
        add_norm(rows, s->width, s->stride, b->branch, NULL, &after->output, 0, NULL, 0, NULL, s->type);
    add_norm(rows, s->width, s->stride, b->stream, b->branch, &after->sum, s->keep_sum, b->dual, s->dual_scale,
             b->hidden, s->type);
}

void attend(const Stack *s, const Buffers *b, int rows, const Linear *query, const Linear *output, const void *cache,
            const Table *table, const Join *after) {
    linear(query, rows, b->hidden, IDENTITY, b->query, s->type, b->linear);
    attention(rows, s->heads, s->head_size, s->attention_width, s->type, b->query, cache, table, s->attention_scale,
              b->context, b->scores);
    linear(output, rows, b->context, IDENTITY, b->branch, FLOAT32, b->linear);
    join(s, b, rows, after);
}

void feed_forward(const Stack *s, const Buffers *b, int rows, const Layer *layer) {
    linear(&layer->ffn_in, rows, b->hidden, s->activation, b->ffn, s->type, b->linear);
    linear(&layer->ffn_out, rows, b->ffn, IDENTITY, b->branch, FLOAT32, b->linear);
    join(s, b, rows, &layer->after_ffn);
}

// ResiDual: hidden = main_scale * stream + norm(dual). Elsewhere the last join has left the output in `hidden`.
WITH_AVX512 void end_stream(const Stack *s, const Buffers *b, int rows) {
    if (!b->dual) return;
    add_norm(rows, s->width, s->stride, b->dual, NULL, &s->dual_norm, 0, NULL, 0, NULL, s->type);
    for (int64_t i = 0; i < (int64_t)rows * s->stride; i += 16) {
        __m512 main = _mm512_mul_ps(_mm512_loadu_ps(b->stream + i), _mm512_set1_ps(s->main_scale));
        store(b->hidden, i, s->type, _mm512_add_ps(main, _mm512_loadu_ps(b->dual + i)));
    }
}

Buffers from_row(const Stack *s, Buffers b, int row) {
    int64_t start = (int64_t)row * s->stride;
    b.stream += start;
    if (b.dual) b.dual += start;
    b.hidden = (char *)b.hidden + start * element_size(s);
    return b;
}
