// The residual stream: what happens to it between two sub-layers, one row after another.

#include "vector.h"

enum { SINKHORN_ROUNDS = 20 };

typedef struct {
    float *vectors, *numbers;  // the registers
    const float *branch;       // output of the last sub-layer
} Row;

INLINE float *vector_of(const Program *p, const Row *row, int32_t source) {
    return source == BRANCH ? (float *)row->branch : row->vectors + source * p->stride;
}

static float weight_of(const Row *row, const Term *term) {
    return term->number == NOWHERE ? term->weight : term->weight * row->numbers[term->number];
}

// A weight times a number, or times the sum over a vector, or over its squares.
static float value_of(const Program *p, const Row *row, const Term *term, int squared) {
    if (term->source == NOWHERE) return weight_of(row, term);
    const float *vector = vector_of(p, row, term->source);
    vec total = {0};
    for (int i = 0; i < p->stride; i += LANES) {  // the padding adds zeros
        vec values = load_floats(vector + i);
        if (squared) values *= values;
        total += term->weights ? values * load_floats(term->weights + i) : values;
    }
    return weight_of(row, term) * sum(total);
}

// A doubly stochastic matrix from logits (n, n): columns and rows are normalized in turn, as in `sinkhorn` of the
// model. In double precision it needs no logarithms.
static void sinkhorn(int count, const float *logits, float *matrix) {
    int n = (int)lround(sqrt(count));
    double entries[count];
    for (int i = 0; i < count; i++) {
        float largest = -INFINITY;
        for (int j = i % n; j < count; j += n) largest = fmaxf(largest, logits[j]);
        double entry = (double)logits[i] - largest;
        entries[i] = exp(entry < -700 ? -700 : entry);  // NaN stays one
    }
    for (int step = 0; step < 2 * SINKHORN_ROUNDS; step++) {
        int along = step % 2 ? 1 : n, across = step % 2 ? n : 1;
        for (int line = 0; line < n; line++) {
            double total = 0;
            for (int i = 0; i < n; i++) total += entries[line * across + i * along];
            for (int i = 0; i < n; i++) entries[line * across + i * along] /= total;
        }
    }
    for (int i = 0; i < count; i++) matrix[i] = (float)entries[i];
}

// Any operation but a sum.
static void calculate(const Program *p, const Row *row, const Operation *operation) {
    int count = operation->terms;
    float values[count], total = 0, product = 1, largest = -INFINITY, exponentials = 0;
    float *result = row->numbers + operation->output;
    for (int t = 0; t < count; t++) {
        values[t] = value_of(p, row, operation->term + t, operation->function == INVERSE_LENGTH);
        total += values[t];
        product *= values[t];
        largest = fmaxf(largest, values[t]);
    }
    switch (operation->function) {
    case PRODUCT: *result = product; break;
    case TANH: *result = tanhf(total); break;
    case SIGMOID: *result = 1 / (1 + expf(-total)); break;
    case EXP: *result = expf(total); break;
    case INVERSE_LENGTH: *result = 1 / sqrtf(total); break;
    case LOG_SUM_EXP:
        for (int t = 0; t < count; t++) exponentials += expf(values[t] - largest);
        *result = largest + logf(exponentials);
        break;
    case SINKHORN: sinkhorn(count, values, result); break;
    default: *result = total;
    }
}

typedef struct {
    float weight;
    const float *weights, *vector;  // NULL: ones
} Addend;

// `hidden` is where the next sub-layer reads the row, or NULL.
static void sum_and_norm(const Program *p, const Row *row, const Operation *operation, float *work, void *hidden,
                         Type type) {
    const Norm *norm = &operation->norm;
    float *output = operation->output == NOWHERE ? NULL : vector_of(p, row, operation->output);
    float *result = operation->sum != NOWHERE ? vector_of(p, row, operation->sum) : output ? output : work;
    int count = operation->terms;
    Addend addends[count];
    for (int t = 0; t < count; t++) {
        const Term *term = operation->term + t;
        const float *vector = term->source == NOWHERE ? NULL : vector_of(p, row, term->source);
        addends[t] = (Addend){weight_of(row, term), term->weights, vector};
    }
    vec total = {0};
    for (int i = 0; i < p->stride; i += LANES) {
        vec values = {0};
        for (const Addend *a = addends; a < addends + count; a++) {
            vec weight = a->weights ? load_floats(a->weights + i) * a->weight : splat(a->weight);
            values += a->vector ? weight * load_floats(a->vector + i) : weight;
        }
        store_floats(result + i, values);
        total += values;
    }
    if (!norm->gain) {
        if (hidden)
            for (int i = 0; i < p->stride; i += LANES) store(hidden, i, type, load_floats(result + i));
        return;
    }
    float mean = norm->centered ? sum(total) / p->width : 0;
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
            else
                calculate(p, &row, o);
    }
}
