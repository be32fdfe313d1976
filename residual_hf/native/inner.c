// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What happens within a sub-layer besides products and attention: norms of queries, keys and values and before the
// output, of some modes, and rotary positions.

#include <math.h>
#include <string.h>

#include "stack.h"

// Values in float32 between a linear map and a program, of a row.
int wide_size(const Stack *s) { return s->inner_registers ? most(2 * s->attention_width, s->ffn_width) : 0; }

// From `wide` (rows, width) to output, in the type of the stack. Each of the programs, such as those of keys and of
// values, has an equal part of a row, which begins with `vectors` vectors.
void run_inner(const Stack *s, const Buffers *b, int rows, int width, const Program *program, int programs,
               int vectors, void *output) {
    for (int64_t part = 0; part < (int64_t)rows * programs; part++) {
        int64_t place = part * width / programs;
        run_program(program + part % programs, vectors, b->inner, b->wide + place,
                    (char *)output + place * element_size(s), s->type, b->work);
    }
}

// The cosines and sines of each row's position, (rows, 2, half a head).
void place_turns(const Stack *s, const Buffers *b, int rows, const int64_t *positions) {
    int half = s->width / s->heads / 2;
    for (int64_t row = 0; row < rows; row++)
        for (int i = 0; i < half; i++) {
            float angle = (float)positions[row] * s->frequencies[i];
            b->turns[2 * row * half + i] = cosf(angle);
            b->turns[(2 * row + 1) * half + i] = sinf(angle);
        }
}

INLINE float value_at(const void *base, int64_t index, Type type) {
    if (type == FLOAT32) return ((const float *)base)[index];
    uint32_t bits = (uint32_t)((const bf16 *)base)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE void set_value(void *base, int64_t index, Type type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == FLOAT32)
        ((float *)base)[index] = value;
    else
        ((bf16 *)base)[index] = (bf16)((bits + 0x8000) >> 16);
}

// Rotary positions: value i of a head turns with value i + half of it. States are the first heads of (rows, width).
void rotate(const Stack *s, const Buffers *b, int rows, void *states, int64_t width) {
    int half = s->width / s->heads / 2;
    for (int64_t row = 0; row < rows; row++)
        for (int head = 0; head < s->heads; head++)
            for (int i = 0; i < half; i++) {
                int64_t place = row * width + head * s->head_size + i;
                float first = value_at(states, place, s->type), second = value_at(states, place + half, s->type);
                float cosine = b->turns[2 * row * half + i], sine = b->turns[(2 * row + 1) * half + i];
                set_value(states, place, s->type, first * cosine - second * sine);
                set_value(states, place + half, s->type, second * cosine + first * sine);
            }
}

// The context without the padding of heads, then the program, in place.
void within_heads(const Stack *s, const Buffers *b, int rows, const Program *program) {
    int size = s->width / s->heads;
    float *compact = b->wide;
    for (int64_t row = 0; row < rows; row++) {
        for (int i = 0; i < program->stride; i++) compact[i] = 0;
        for (int head = 0; head < s->heads; head++) {
            int64_t from = row * s->attention_width + head * s->head_size;
            float values[s->head_size];
            for (int i = 0; i < s->head_size; i += LANES) store_floats(values + i, load(b->context, from + i, s->type));
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
