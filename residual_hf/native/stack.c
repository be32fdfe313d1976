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
    b->stream = take(base, &used, all * s->start.registers * sizeof(float));
    b->hidden = take(base, &used, all * s->stride * size);
    b->branch = take(base, &used, some * s->stride * sizeof(float));
    b->work = take(base, &used, most(s->stride, s->ffn_width) * sizeof(float));
    b->query = take(base, &used, some * s->attention_width * size);
    b->context = take(base, &used, some * s->attention_width * size);
    b->ffn = take(base, &used, some * s->ffn_width * size);
    b->scores = take(base, &used, QUERIES * round_up(longest, 16) * sizeof(float));
    int widest = most(s->stride, most(s->attention_width, s->ffn_width));
    b->linear = take(base, &used, linear_scratch_size(s->type, chunk, widest));
    b->wide = take(base, &used, some * wide_size(s) * sizeof(float));
    b->inner = take(base, &used, s->inner_registers * sizeof(float));
    b->longest = longest;
    b->gated = take(base, &used, s->layer->ffn_gate.weights ? some * s->ffn_width * sizeof(float) : 0);
    b->turns = take(base, &used, s->frequencies ? all * s->head_size * sizeof(float) : 0);
    size_t sums = s->adds_scores ? all * s->heads * longest * sizeof(float) : 0;
    b->own_sums = take(base, &used, sums);
    b->cross_sums = take(base, &used, s->layer->cross.query.weights ? sums : 0);
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

// The first vector of the stream = scale * token + position, and what the first sub-layer reads.
WITH_AVX512 void embed(const Stack *s, const Buffers *b, int rows, const int64_t *tokens, const int64_t *positions) {
    for (int r = 0; r < rows; r++) {
        const float *token = s->tokens + tokens[r] * s->width;
        const float *position = s->positions ? s->positions + positions[r] * s->width : NULL;
        float *row = b->stream + (int64_t)r * s->start.registers;
        for (int i = 0; i < s->stride; i += 16) {
            __mmask16 lanes = i < s->width ? first_lanes(s->width - i) : 0;
            __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, token + i), _mm512_set1_ps(s->embedding_scale));
            if (position) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(lanes, position + i));
            _mm512_storeu_ps(row + i, values);
        }
    }
    if (s->frequencies) place_turns(s, b, rows, positions);
    update_stream(s, b, rows, &s->start);
}

// Keys and values of some states, for a cache.
void project(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of, const void *states, void *cache) {
    int is_plain = !of->inner[AT_KEY].operations;
    linear(&of->key_value, rows, states, IDENTITY, is_plain ? cache : b->wide, is_plain ? s->type : FLOAT32, b->linear);
    if (!is_plain) run_inner(s, b, rows, 2 * s->attention_width, of->inner + AT_KEY, 2, s->heads, cache);
    if (s->frequencies) rotate(s, b, rows, cache, 2 * s->attention_width);
}

void attend(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of, const void *cache,
            const Table *table, float *sums, int is_first) {
    int is_plain = !of->inner[AT_QUERY].operations;
    linear(&of->query, rows, b->hidden, IDENTITY, is_plain ? b->query : b->wide, is_plain ? s->type : FLOAT32,
           b->linear);
    if (!is_plain) run_inner(s, b, rows, s->attention_width, of->inner + AT_QUERY, 1, s->heads, b->query);
    if (s->frequencies) rotate(s, b, rows, b->query, s->attention_width);
    if (of->score_factor)
        attention_with_sums(s, b, rows, of, cache, table, sums, is_first);
    else
        attention(rows, s->heads, s->head_size, s->attention_width, s->type, b->query, cache, table, of->scale,
                  b->context, b->scores);
    if (of->inner[AT_HEADS].operations) within_heads(s, b, rows, of->inner + AT_HEADS);
    linear(&of->output, rows, b->context, IDENTITY, b->branch, FLOAT32, b->linear);
    update_stream(s, b, rows, &of->after);
}

void feed_forward(const Stack *s, const Buffers *b, int rows, const Layer *layer) {
    int is_gated = layer->ffn_gate.weights != NULL, is_plain = !layer->ffn_inner.operations;
    linear(is_gated ? &layer->ffn_gate : &layer->ffn_in, rows, b->hidden, s->activation, is_plain ? b->ffn : b->wide,
           is_plain ? s->type : FLOAT32, b->linear);
    if (is_gated) {
        linear(&layer->ffn_in, rows, b->hidden, IDENTITY, b->gated, FLOAT32, b->linear);
        for (int64_t i = 0; i < (int64_t)rows * s->ffn_width; i++) b->wide[i] *= b->gated[i];
    }
    if (!is_plain) run_inner(s, b, rows, s->ffn_width, &layer->ffn_inner, 1, 1, b->ffn);
    linear(&layer->ffn_out, rows, b->ffn, IDENTITY, b->branch, FLOAT32, b->linear);
    update_stream(s, b, rows, &layer->after_ffn);
}

Buffers from_row(const Stack *s, Buffers b, int row) {
    b.stream += (int64_t)row * s->start.registers;
    b.hidden = (char *)b.hidden + (int64_t)row * s->stride * element_size(s);
    if (s->adds_scores) b.own_sums += (int64_t)row * s->heads * b.longest;
    if (s->frequencies) b.turns += (int64_t)row * (s->width / s->heads / 2) * 2;
    return b;
}
