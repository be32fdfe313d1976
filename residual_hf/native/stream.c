// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The residual stream: what happens to it between two sub-layers, one row after another.

#include <math.h>

#include "stack.h"

enum { SINKHORN_ROUNDS = 20 };

typedef struct {
    float *vectors, *numbers;  // the registers
    const float *branch;       // output of the last sub-layer
} Row;

INLINE float *vector_of(const Program *p, const Row *row, int32_t source) {
    return source == BRANCH ? (float *)row->branch : row->vectors + source * p->stride;
}

// A weight times a number, or times the sum over a vector.
static float value_of(const Program *p, const Row *row, const Term *term) {
    float value = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
    if (term->source == NOWHERE) return value;
    const float *vector = vector_of(p, row, term->source);
    vec total = {0};
    for (int i = 0; i < p->stride; i += LANES) {  // the padding adds zeros
        vec values = load_floats(vector + i);
        total += term->weights ? values * load_floats(term->weights + i) : values;
    }
    return value * sum(total);
}

// 1 / sqrt(sum of the squares of vectors, and of numbers as they are).
static float inverse_length(const Program *p, const Row *row, const Operation *operation) {
    float total = 0;
    for (const Term *term = operation->term; term < operation->term + operation->terms; term++) {
        float squares = 1;
        if (term->source != NOWHERE) {
            const float *vector = vector_of(p, row, term->source);
            squares = dot(vector, vector, p->width);
        }
        total += term->weight * squares;
    }
    return 1 / sqrtf(total);
}

// A doubly stochastic matrix from logits (n, n): columns and rows are normalized in turn, as in `sinkhorn` of the
// model. In double precision it needs no logarithms.
static void sinkhorn(const Program *p, const Row *row, const Operation *operation) {
    int count = operation->terms, n = (int)lround(sqrt(count));
    double entries[count], largest[n];
    for (int j = 0; j < n; j++) largest[j] = -INFINITY;
    for (int i = 0; i < count; i++) {
        entries[i] = value_of(p, row, operation->term + i);
        largest[i % n] = fmax(largest[i % n], entries[i]);
    }
    for (int i = 0; i < count; i++) entries[i] = exp(fmax(entries[i] - largest[i % n], -700));
    for (int step = 0; step < 2 * SINKHORN_ROUNDS; step++) {
        int along = step % 2 ? 1 : n, across = step % 2 ? n : 1;
        for (int line = 0; line < n; line++) {
            double total = 0;
            for (int i = 0; i < n; i++) total += entries[line * across + i * along];
            for (int i = 0; i < n; i++) entries[line * across + i * along] /= total;
        }
    }
    for (int i = 0; i < count; i++) row->numbers[operation->output + i] = (float)entries[i];
}

static float number(const Program *p, const Row *row, const Operation *operation) {
    float values[operation->terms], total = 0, largest = -INFINITY;
    for (int t = 0; t < operation->terms; t++) {
        values[t] = value_of(p, row, operation->term + t);
        total += values[t];
        largest = fmaxf(largest, values[t]);
    }
    switch (operation->function) {
    case PRODUCT:
        total = 1;
        for (int t = 0; t < operation->terms; t++) total *= values[t];
        return total;
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
static void sum_and_norm(const Program *p, const Row *row, const Operation *operation, float *work, void *hidden,
                         Type type) {
    const Norm *norm = &operation->norm;
    float *output = operation->output == NOWHERE ? NULL : vector_of(p, row, operation->output);
    float *result = operation->sum != NOWHERE ? vector_of(p, row, operation->sum) : output ? output : work;
    int count = operation->terms, has_weights = 0;
    Addend addends[count];
    for (int t = 0; t < count; t++) {
        const Term *term = operation->term + t;
        float weight = term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
        const float *vector = term->source == NOWHERE ? NULL : vector_of(p, row, term->source);
        addends[t] = (Addend){weight, term->weights, vector};
        has_weights |= term->weights != NULL;
    }
    float total = has_weights  ? add(p->stride, count, addends, 1, result)
                  : count == 2 ? add(p->stride, 2, addends, 0, result)  // the usual one, unrolled
                               : add(p->stride, count, addends, 0, result);
    if (!norm->gain) {
        if (hidden)
            for (int i = 0; i < p->stride; i += LANES) store(hidden, i, type, load_floats(result + i));
        return;
    }
    float mean = norm->centered ? total / p->width : 0;
    float scale = inverse_deviation(result, p->width, mean, norm->epsilon);
    for (int i = 0; i < p->stride; i += LANES) {
        vec values = (load_floats(result + i) - mean) * scale;
        values = values * load_floats(norm->gain + i) + load_floats(norm->bias + i);
        if (output) store_floats(output + i, values);
        if (hidden) store(hidden, i, type, values);
    }
}

// `hidden` and `branch` are (rows, stride): where the results go, and the output of a sub-layer.
void run_program(const Program *p, int rows, float *registers, const float *branch, void *hidden, Type type,
                 float *work) {
    for (int64_t r = 0; r < rows; r++) {
        float *vectors = registers + r * p->registers;
        Row row = {vectors, vectors + p->vectors * p->stride, branch + r * p->stride};
        char *output = (char *)hidden + r * p->stride * size_of(type);
        for (const Operation *o = p->operation; o < p->operation + p->operations; o++)
            if (o->function == SUM)
                sum_and_norm(p, &row, o, work, o->hidden ? output : NULL, type);
            else if (o->function == SINKHORN)
                sinkhorn(p, &row, o);
            else
                row.numbers[o->output] =
                    o->function == INVERSE_LENGTH ? inverse_length(p, &row, o) : number(p, &row, o);
    }
}

void update_stream(const Stack *s, const Buffers *b, int rows, const Program *program) {
    run_program(program, rows, b->stream, b->branch, b->hidden, s->type, b->work);
}
