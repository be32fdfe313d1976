// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What a mode does within a sub-layer: norms of queries, keys and values, and before the output of a sub-layer.

#include "stack.h"

// Values in float32 between a linear map and a program, of a row.
int wide_size(const Stack *s) { return s->inner_registers ? most(2 * s->attention_width, s->ffn_width) : 0; }

// output = program(activation(map(input))), in the type of the stack. Each of the programs, such as those of keys and
// of values, has an equal part of a row, which begins with `vectors` vectors.
void map_and_run(const Stack *s, const Buffers *b, int rows, const Linear *map, Activation activation,
                 const Program *program, int programs, int vectors, const void *input, void *output) {
    linear(map, rows, input, activation, b->wide, FLOAT32, b->linear);
    for (int64_t part = 0; part < (int64_t)rows * programs; part++) {
        int64_t place = part * map->outputs / programs;
        run_program(program + part % programs, vectors, b->inner, b->wide + place,
                    (char *)output + place * element_size(s), s->type, b->work);
    }
}

// The context without the padding of heads, then the program, in place.
WITH_AVX512 void within_heads(const Stack *s, const Buffers *b, int rows, const Program *program) {
    int size = s->width / s->heads;
    float *compact = b->wide;
    for (int64_t row = 0; row < rows; row++) {
        for (int i = 0; i < program->stride; i++) compact[i] = 0;
        for (int head = 0; head < s->heads; head++) {
            int64_t from = row * s->attention_width + head * s->head_size;
            float values[s->head_size];
            for (int i = 0; i < s->head_size; i += 16) _mm512_storeu_ps(values + i, load(b->context, from + i, s->type));
            for (int i = 0; i < size; i++) compact[head * size + i] = values[i];
        }
        char *output = (char *)b->context + row * program->stride * element_size(s);
        run_program(program, 1, b->inner, compact, output, s->type, b->work);
    }
}

size_t project_scratch_size(const Stack *s, int rows) {
    Buffers buffers;
    return place_buffers(s, rows, rows, 0, NULL, &buffers);
}

// Keys and values of source states (rows, stride) for the cache of cross-attention.
void project_source(const Stack *s, const AttentionLayer *of, int rows, const void *states, void *cache, void *scratch) {
    Buffers buffers;
    place_buffers(s, rows, rows, 0, scratch, &buffers);
    project(s, &buffers, rows, of, states, cache);
}
