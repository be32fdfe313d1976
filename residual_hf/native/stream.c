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
static float value_of(const Stack *s, const Row *row, const Term *term) {
    float value = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
    if (term->source == NOWHERE) return value;
    const float *vector = vector_of(s, row, term->source);
    vec total = {0};
    for (int i = 0; i < s->stride; i += LANES) {  // the padding adds zeros
        vec values = load_floats(vector + i);
        total += term->weights ? values * load_floats(term->weights + i) : values;
    }
    return value * sum(total);
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
    vec all = {0};
    for (int i = 0; i < stride; i += LANES) {
        vec total = {0};
        for (const Addend *a = addends; a < addends + count; a++) {
            vec weight = splat(a->weight);
            if (has_weights && a->weights) weight *= load_floats(a->weights + i);
            total += weight * (!has_weights || a->vector ? load_floats(a->vector + i) : splat(1));
        }
        store_floats(target + i, total);
        all += total;
    }
    return sum(all);
}

// `hidden` is where the next sub-layer reads the row, or NULL.
static void sum_and_norm(const Stack *s, const Row *row, const Operation *operation, float *work, void *hidden) {
    const Norm *norm = &operation->norm;
    float *output = operation->output == NOWHERE ? NULL : vector_of(s, row, operation->output);
    float *result = operation->sum != NOWHERE ? vector_of(s, row, operation->sum) : output ? output : work;
    int count = operation->terms, has_weights = 0;
    Addend addends[count];
    for (int t = 0; t < count; t++) {
        const Term *term = operation->term + t;
        float weight = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
        const float *vector = term->source == NOWHERE ? NULL : vector_of(s, row, term->source);
        addends[t] = (Addend){weight, term->weights, vector};
        has_weights |= term->weights != NULL;
    }
    float total = has_weights  ? add(s->stride, count, addends, 1, result)
                  : count == 2 ? add(s->stride, 2, addends, 0, result)  // the usual one, unrolled
                               : add(s->stride, count, addends, 0, result);
    if (!norm->gain) {
        if (hidden)
            for (int i = 0; i < s->stride; i += LANES) store(hidden, i, s->type, load_floats(result + i));
        return;
    }
    float mean = norm->centered ? total / s->width : 0;
    float scale = inverse_deviation(result, s->width, mean, norm->epsilon);
    for (int i = 0; i < s->stride; i += LANES) {
        vec values = (load_floats(result + i) - mean) * scale;
        values = values * load_floats(norm->gain + i) + load_floats(norm->bias + i);
        if (output) store_floats(output + i, values);
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
