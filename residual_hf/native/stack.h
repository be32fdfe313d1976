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
} Buffers;

static inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
static inline int most(int a, int b) { return a > b ? a : b; }
static inline int least(int a, int b) { return a < b ? a : b; }

static inline size_t element_size(const Stack *s) { return s->type == FLOAT32 ? sizeof(float) : sizeof(bf16); }

void *take(char *base, size_t *used, size_t bytes);
size_t place_buffers(const Stack *s, int rows, int chunk, int longest, char *base, Buffers *b);
Buffers from_row(const Stack *s, Buffers b, int row);
void *cache_entry(const Stack *s, const void *cache, int64_t index);

int in_vocabulary(const Stack *s, int rows, const int64_t *tokens);
void embed(const Stack *s, const Buffers *b, int rows, const int64_t *tokens, const int64_t *positions);
void attend(const Stack *s, const Buffers *b, int rows, const Linear *query, const Linear *output, const void *cache,
            const Table *table, const Program *after);
void feed_forward(const Stack *s, const Buffers *b, int rows, const Layer *layer);
void update_stream(const Stack *s, const Buffers *b, int rows, const Program *program);
