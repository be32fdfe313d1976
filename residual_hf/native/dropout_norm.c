// Training: the residual connection dropout + add + norm (+ dual stream), or parts of it, forward and backward.

#include "dropout.h"

enum { AHEAD = 512 };  // values between the row in work and what is fetched into the cache

// For a norm, a row is read up to three times before the next one: the processor does not see that arrays are read in
// order.
INLINE void fetch(const float *values, int64_t row, int64_t width) {
    if (!values) return;
    for (int64_t i = row * width; i < (row + 1) * width; i += 16) __builtin_prefetch(values + i + AHEAD);
}

// sum = stream + dropout(branch), dual_output = dual + dual_scale * dropout(branch); returns the mean of the sum.
INLINE float add_row(const DropoutNorm *join, const Dropout *dropout, int64_t row) {
    int width = join->width;
    int64_t start = row * width, block = row * round_up(width, BLOCK) / BLOCK;
    vec total = {0};
    Mask mask;
    for (int i = 0; i < width; i += LANES) {
        if (i % BLOCK == 0) make_mask(dropout, block++, &mask);
        vec branch = drop(dropout, &mask, i, load_first(join->branch + start + i, width - i)), values = branch;
        if (join->stream) values += load_first(join->stream + start + i, width - i);
        store_first(join->sum + start + i, width - i, values);
        total += values;
        if (!join->dual) continue;
        vec dual = load_first(join->dual + start + i, width - i) + branch * join->dual_scale;
        store_first(join->dual_output + start + i, width - i, dual);
    }
    return join->centered ? sum(total) / width : 0;
}

INLINE vec normalized(const float *values, int count, float mean, float scale) {
    vec centered = (load_first(values, count) - mean) * scale;
    return count < LANES ? only(first_lanes(count), centered) : centered;
}

INLINE void norm_row(const DropoutNorm *join, int64_t row, float mean) {
    const float *sums = join->sum + row * join->width;
    float scale = inverse_deviation(sums, join->width, mean, join->epsilon);
    join->statistics[2 * row] = mean;
    join->statistics[2 * row + 1] = scale;
    for (int i = 0; i < join->width; i += LANES) {
        int count = join->width - i;
        vec values = normalized(sums + i, count, mean, scale) * load_first(join->gain + i, count);
        if (join->bias) values += load_first(join->bias + i, count);
        store_first(join->output + row * join->width + i, count, values);
    }
}

// Means over a row of g = gain * d output and of g * (normalized sum). Adds to the gradients of gain and bias.
INLINE void norm_gradients(const DropoutNorm *join, int64_t row, int thread, float *mean, float *projection) {
    int64_t own = thread * round_up(join->width, 16);
    float *grad_gain = join->grad_gain + own, *grad_bias = join->grad_bias + own;
    const float *sums = join->sum + row * join->width, *gradient = join->grad_output + row * join->width;
    vec total = {0}, product = {0};
    for (int i = 0; i < join->width; i += LANES) {
        int count = join->width - i;
        vec state = normalized(sums + i, count, join->statistics[2 * row], join->statistics[2 * row + 1]);
        vec values = load_first(gradient + i, count);
        store_floats(grad_gain + i, load_floats(grad_gain + i) + values * state);
        store_floats(grad_bias + i, load_floats(grad_bias + i) + values);
        values *= load_first(join->gain + i, count);
        total += values;
        product += values * state;
    }
    *mean = join->centered ? sum(total) / join->width : 0;
    *projection = sum(product) / join->width;
}

INLINE void backward_row(const DropoutNorm *join, const Dropout *dropout, int64_t row, int thread) {
    int width = join->width;
    int64_t start = row * width, block = row * round_up(width, BLOCK) / BLOCK;
    float mean, projection, scale = join->statistics[2 * row + 1];
    norm_gradients(join, row, thread, &mean, &projection);
    Mask mask;
    for (int i = 0; i < width; i += LANES) {
        if (i % BLOCK == 0) make_mask(dropout, block++, &mask);
        vec state = normalized(join->sum + start + i, width - i, join->statistics[2 * row], scale);
        vec gradient = load_first(join->grad_output + start + i, width - i) * load_first(join->gain + i, width - i);
        gradient = ((gradient - mean) - state * projection) * scale;
        store_first(join->grad_stream + start + i, width - i, gradient);
        if (join->grad_dual) gradient += load_first(join->grad_dual + start + i, width - i) * join->dual_scale;
        store_first(join->grad_branch + start + i, width - i, drop(dropout, &mask, i, gradient));
    }
}

static void join_rows(const void *work, int64_t first, int64_t end, int thread) {
    const DropoutNorm copy = *(const DropoutNorm *)work, *join = &copy;  // no store changes it: it stays in registers
    const float *inputs[] = {join->branch, join->stream, join->dual, join->grad_output, join->grad_dual};
    const float *outputs[] = {join->sum, join->output, join->dual_output, join->grad_branch, join->grad_stream};
    Dropout dropout = make_dropout(join->seed, join->rate);
    for (int64_t row = first; row < end; row++) {
        for (int i = 0; i < 5 && join->gain; i++) {
            fetch(inputs[i], row, join->width);
            fetch(outputs[i], row, join->width);
        }
        if (join->grad_output) {
            backward_row(join, &dropout, row, thread);
        } else {
            float mean = add_row(join, &dropout, row);
            if (join->gain) norm_row(join, row, mean);
        }
    }
}

// The outputs, or with grad_output the gradients.
void dropout_norm(const DropoutNorm *join) { run_rows(join, join->rows, join->threads, join_rows); }
