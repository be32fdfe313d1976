// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The residual stream: what happens to it between two sub-layers, one row after another.

#include <math.h>

#include "stack.h"

typedef struct {
    float *vectors, *numbers;  // the registers
    const float *branch;       // output of the last sub-layer
} Row;

INLINE float *vector_of(const Stack *s, const Row *row, int32_t source) {
    return source == BRANCH ? (float *)row->branch : row->vectors + source * s->stride;
}

// A weight times a number, or times the sum over a vector.
WITH_AVX512 static float value_of(const Stack *s, const Row *row, const Term *term) {
    float value = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
    if (term->source == NOWHERE) return value;
    const float *vector = vector_of(s, row, term->source);
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < s->stride; i += 16) {  // the padding adds zeros
        __m512 values = _mm512_loadu_ps(vector + i);
        if (term->weights) values = _mm512_mul_ps(values, _mm512_loadu_ps(term->weights + i));
        total = _mm512_add_ps(total, values);
    }
    return value * _mm512_reduce_add_ps(total);
}

static float number(const Stack *s, const Row *row, const Operation *operation) {
    float values[operation->terms], total = 0, largest = -INFINITY;
    for (int t = 0; t < operation->terms; t++) {
        values[t] = value_of(s, row, operation->term + t);
        total += values[t];
        largest = fmaxf(largest, values[t]);
    }
    switch (operation->function) {
    case TANH:
        return tanhf(total);
    case SIGMOID:
        return 1 / (1 + expf(-total));
    case EXP:
        return expf(total);
    case LOG_SUM_EXP:
        total = 0;
        for (int t = 0; t < operation->terms; t++) total += expf(values[t] - largest);
        return largest + logf(total);
    default:
        return total;
    }
}

typedef struct {
    float weight;
    const float *weights, *vector;  // NULL: ones
} Addend;

// target = sum of the addends; returns the sum over its values. Where none has weights, all have vectors.
INLINE float add(int stride, const int count, const Addend *addends, const int has_weights, float *target) {
    __m512 all = _mm512_setzero_ps();
    for (int i = 0; i < stride; i += 16) {
        __m512 total = _mm512_setzero_ps();
        for (const Addend *a = addends; a < addends + count; a++) {
            __m512 weight = _mm512_set1_ps(a->weight), values = _mm512_set1_ps(1);
            if (has_weights && a->weights) weight = _mm512_mul_ps(weight, _mm512_loadu_ps(a->weights + i));
            if (!has_weights || a->vector) values = _mm512_loadu_ps(a->vector + i);
            total = _mm512_fmadd_ps(weight, values, total);
        }
        _mm512_storeu_ps(target + i, total);
        all = _mm512_add_ps(all, total);
    }
    return _mm512_reduce_add_ps(all);
}

// `hidden` is where the next sub-layer reads the row, or NULL.
WITH_AVX512 static void sum_and_norm(const Stack *s, const Row *row, const Operation *operation, float *work,
                                     void *hidden) {
    const Norm *norm = &operation->norm;
    float *output = operation->output == NOWHERE ? NULL : vector_of(s, row, operation->output);
    float *sum = operation->sum != NOWHERE ? vector_of(s, row, operation->sum) : output ? output : work;
    int count = operation->terms, has_weights = 0;
    Addend addends[count];
    for (int t = 0; t < count; t++) {
        const Term *term = operation->term + t;
        float weight = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
        const float *vector = term->source == NOWHERE ? NULL : vector_of(s, row, term->source);
        addends[t] = (Addend){weight, term->weights, vector};
        has_weights |= term->weights != NULL;
    }
    float total = has_weights  ? add(s->stride, count, addends, 1, sum)
                  : count == 2 ? add(s->stride, 2, addends, 0, sum)  // the usual one, unrolled
                               : add(s->stride, count, addends, 0, sum);
    if (!norm->gain) {
        if (hidden)
            for (int i = 0; i < s->stride; i += 16) store(hidden, i, s->type, _mm512_loadu_ps(sum + i));
        return;
    }
    float mean = norm->centered ? total / s->width : 0;
    float scale = inverse_deviation(sum, s->width, mean, norm->epsilon);
    for (int i = 0; i < s->stride; i += 16) {
        __m512 values = _mm512_sub_ps(_mm512_loadu_ps(sum + i), _mm512_set1_ps(mean));
        values = _mm512_mul_ps(values, _mm512_set1_ps(scale));
        values = _mm512_fmadd_ps(values, _mm512_loadu_ps(norm->gain + i), _mm512_loadu_ps(norm->bias + i));
        if (output) _mm512_storeu_ps(output + i, values);
        if (hidden) store(hidden, i, s->type, values);
    }
}

void update_stream(const Stack *s, const Buffers *b, int rows, const Program *program) {
    for (int64_t r = 0; r < rows; r++) {
        float *state = b->stream + r * s->registers;
        Row row = {state, state + s->vectors * s->stride, b->branch + r * s->stride};
        char *hidden = (char *)b->hidden + r * s->stride * element_size(s);
        for (const Operation *o = program->operation; o < program->operation + program->operations; o++)
            if (o->function == SUM)
                sum_and_norm(s, &row, o, b->work, o->hidden ? hidden : NULL);
            else
                row.numbers[o->output] = number(s, &row, o);
    }
}
