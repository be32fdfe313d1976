// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// A linear map: inputs in the form that the matrix product takes, the product, and outputs from its sums.

#include "gemm.h"

static int padded_rows(int rows) { return (rows + ROW_PADDING - 1) / ROW_PADDING * ROW_PADDING; }

INLINE float largest_magnitude(const bf16 *row, int width) {
    __m512 largest = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) largest = _mm512_max_ps(largest, _mm512_abs_ps(load(row, i, BFLOAT16)));
    return _mm512_reduce_max_ps(largest);
}

// Rows of bytes, 128 + x / scale, with scale = max|x| / 127. The instructions take unsigned inputs, hence the 128;
// `finish` subtracts what it adds to a sum.
WITH_AVX512 static void quantize(int rows, int width, const bf16 *input, uint8_t *output, float *scales) {
    for (int r = 0; r < rows; r++, input += width, output += width) {
        float largest = largest_magnitude(input, width);
        __m512 factor = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
        scales[r] = largest / 127;
        for (int i = 0; i < width; i += 16) {
            __m512i values = _mm512_cvtps_epi32(_mm512_mul_ps(load(input, i, BFLOAT16), factor));
            values = _mm512_add_epi32(values, _mm512_set1_epi32(128));
            _mm_storeu_si128((__m128i *)(output + i), _mm512_cvtepi32_epi8(values));
        }
    }
}

WITH_AVX512 static void widen_rows(int64_t count, const bf16 *input, float *output) {
    for (int64_t i = 0; i < count; i += 16) _mm512_storeu_ps(output + i, load(input, i, BFLOAT16));
}

INLINE void finish(const Linear *linear, const Output *output, int row, int rows, int column,
                   const int32_t sums[][PANEL], const Type type) {
    for (int i = column; i < column + PANEL; i += 16) {
        __m512 bias = _mm512_loadu_ps(linear->bias + i);
        for (int r = 0; r < rows; r++) {
            __m512i sum = _mm512_loadu_si512(&sums[r][i - column]);
            __m512 values = _mm512_castsi512_ps(sum);
            if (type == INT8) {
                values = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_loadu_si512(linear->offsets + i)));
                __m512 row_scale = _mm512_set1_ps(output->row_scales[row + r]);
                values = _mm512_mul_ps(values, _mm512_mul_ps(row_scale, _mm512_loadu_ps(linear->scales + i)));
            }
            values = activate(_mm512_add_ps(values, bias), output->activation);
            store(output->values, (int64_t)(row + r) * linear->outputs + i, output->type, values);
        }
    }
}

WITH_AVX512 void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                         const int32_t sums[][PANEL]) {
    if (linear->type == INT8)
        finish(linear, output, row, rows, column, sums, INT8);
    else
        finish(linear, output, row, rows, column, sums, FLOAT32);
}

// Room for inputs in another form than they come in.
size_t linear_scratch_size(Type type, int rows, int inputs) {
    return type == FLOAT32 ? 0 : (size_t)padded_rows(rows) * (inputs + 1) * sizeof(float);
}

// output = activation(input W^T + b), (rows, outputs) of FLOAT32 or BFLOAT16, from (rows, inputs).
void linear(const Linear *linear, int rows, const void *input, Activation activation, void *output, Type output_type,
            void *scratch) {
    Output result = {.values = output, .type = output_type, .activation = activation};
    InstructionSet instructions = instruction_set();
    if (linear->type == INT8) {
        float *scales = scratch;
        uint8_t *quantized = (uint8_t *)(scales + padded_rows(rows));
        quantize(rows, linear->inputs, input, quantized, scales);
        result.row_scales = scales;
        input = quantized;
    } else if (linear->type == BFLOAT16 && instructions == AVX512) {
        widen_rows((int64_t)rows * linear->inputs, input, scratch);
        input = scratch;
    }
    if (linear->type != FLOAT32 && instructions == AMX)
        gemm_amx(linear, rows, input, &result);
    else if (linear->type == BFLOAT16 && instructions == AVX512_BF16)
        gemm_bf16(linear, rows, input, &result);
    else
        gemm_avx512(linear, rows, input, &result);
}
