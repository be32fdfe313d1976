// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Sub-layers and residual connections on the activations of some rows: what encoder and decoder share.
#pragma once

#include "gemm.h"

typedef struct {
    float *stream;          // (rows, registers)
    void *hidden;           // (rows, stride), what the next sub-layer reads
    float *branch;          // (rows, stride), what it returns
    float *work;            // (stride)
    void *query, *context;  // (rows, attention_width)
    void *ffn;              // (rows, ffn_width)
    float *scores;
    void *linear;
    float *wide, *inner;           // (rows, `wide_size`), and registers of a row, for the programs within sub-layers
    float *own_sums, *cross_sums;  // of scores, (rows, heads, longest)
    int longest;
    float *gated, *turns;          // (rows, ffn_width), and (rows, size of a head)
} Buffers;

static inline size_t element_size(const Stack *s) { return s->type == FLOAT32 ? sizeof(float) : sizeof(bf16); }

void *take(char *base, size_t *used, size_t bytes);
size_t place_buffers(const Stack *s, int rows, int chunk, int longest, char *base, Buffers *b);
Buffers from_row(const Stack *s, Buffers b, int row);
void *cache_entry(const Stack *s, const void *cache, int64_t index);

int in_vocabulary(const Stack *s, int rows, const int64_t *tokens);
void embed(const Stack *s, const Buffers *b, int rows, const int64_t *tokens, const int64_t *positions);
void project(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of, const void *states, void *cache);
void attend(const Stack *s, const Buffers *b, int rows, const AttentionLayer *of, const void *cache, const Table *table,
            float *sums, int is_first);
void feed_forward(const Stack *s, const Buffers *b, int rows, const Layer *layer);
void run_program(const Program *program, int rows, float *registers, const float *branch, void *hidden, Type type,
                 float *work);
