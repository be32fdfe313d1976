// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// A linear map: inputs in the form that the matrix product takes, the product, and outputs from its sums.

#include "gemm.h"

// Magnitudes of bfloat16 have the order of their bits.
INLINE float largest_magnitude(const bf16 *row, int width) {
    typedef int16_t shorts __attribute__((vector_size(VECTOR_BYTES)));
    shorts largest = {0};
    for (int i = 0; i < width; i += 2 * LANES) {
        shorts bits = (shorts)load_bits(row + i) & 0x7fff, larger = bits > largest;
        largest = (larger & bits) | (~larger & largest);
    }
    ivec pairs = (ivec)largest;
    return largest_lane(MAX((vec)(pairs << 16), (vec)(pairs & (int32_t)0xffff0000)));
}

// With two steps, the product reads the even ones of four inputs before the odd ones.
INLINE ivec in_steps(ivec inputs) {
#if LANES == 8
    if (INT8_STEPS == 2) return SHUFFLE(inputs, inputs, 0, 2, 1, 3, 4, 6, 5, 7);
#endif
    return inputs;
}

// Rows of INT8_OFFSET + x / scale, with scale = max|x| / 127.
static void quantize(int rows, int width, const bf16 *input, Byte *output, float *scales) {
    typedef Byte Bytes __attribute__((vector_size(LANES * sizeof(Byte))));
    for (int r = 0; r < rows; r++, input += width, output += width) {
        float largest = largest_magnitude(input, width);
        float factor = largest > 0 ? 127 / largest : 0;
        scales[r] = largest / 127;
        for (int i = 0; i < width; i += LANES) {
            ivec values = NEAREST(load(input, i, BFLOAT16) * factor) + INT8_OFFSET;
            Bytes bytes = __builtin_convertvector(in_steps(values), Bytes);
            memcpy(output + i, &bytes, sizeof bytes);
        }
    }
}

static void widen_rows(int64_t count, const bf16 *input, float *output) {
    for (int64_t i = 0; i < count; i += LANES) store_floats(output + i, load(input, i, BFLOAT16));
}

INLINE void finish(const Linear *linear, const Output *output, int row, int rows, int column,
                   const ivec sums[][VECTORS], const Type type) {
    const Activation activation = output->activation;
    vec bias[VECTORS], scales[VECTORS], smallest = splat(activation == RELU ? 0 : -INFINITY);
    ivec offsets[VECTORS];
    UNROLLED(v, VECTORS) {
        int at = column + v * LANES;
        bias[v] = load_floats(linear->bias + at);
        if (type == INT8) scales[v] = load_floats(linear->scales + at);
        if (type == INT8 && INT8_OFFSET) offsets[v] = load_bits(linear->offsets + at);
    }
    for (int r = 0; r < rows; r++) {
        int64_t at = (int64_t)(row + r) * linear->outputs + column;
        UNROLLED(v, VECTORS) {
            vec values = (vec)sums[r][v];
            if (type == INT8) {
                if (INT8_STEPS < 4) values = __builtin_convertvector(INT8_OFFSET ? sums[r][v] - offsets[v] : sums[r][v], vec);
                values *= output->row_scales[row + r] * scales[v];
            }
            values += bias[v];
            values = activation > RELU ? curved(values, activation) : MAX(smallest, values);
            store(output->values, at + v * LANES, output->type, values);
        }
    }
}

void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                  const ivec sums[][VECTORS]) {
    if (linear->type == INT8)
        finish(linear, output, row, rows, column, sums, INT8);
    else
        finish(linear, output, row, rows, column, sums, FLOAT32);
}

// Room for inputs in another form than they come in.
size_t linear_scratch_size(Type type, int rows, int inputs) {
    return type == FLOAT32 ? 0 : round_up(rows, ROW_PADDING) * (inputs + 1) * sizeof(float);
}

// output = activation(input W^T + b), (rows, outputs) of FLOAT32 or BFLOAT16, from (rows, inputs).
void linear(const Linear *linear, int rows, const void *input, Activation activation, void *output, Type output_type,
            void *scratch) {
    Output result = {.values = output, .type = output_type, .activation = activation};
    if (linear->type == INT8) {
        float *scales = scratch;
        Byte *quantized = (Byte *)(scales + round_up(rows, ROW_PADDING));
        quantize(rows, linear->inputs, input, quantized, scales);
        result.row_scales = scales;
        input = quantized;
    } else if (linear->type == BFLOAT16 && BF16_STEPS > 1) {
        widen_rows((int64_t)rows * linear->inputs, input, scratch);
        input = scratch;
    }
#if defined(__AMX_TILE__)
    if (linear->type != FLOAT32) return gemm_amx(linear, rows, input, &result);
#endif
    gemm(linear, rows, input, &result);
}
