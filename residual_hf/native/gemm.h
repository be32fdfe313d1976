// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What the two matrix products share: how sums become outputs.
#pragma once

#include "simd.h"

enum { AHEAD = 4096 };  // bytes by which weights are fetched before their use: they come from far

typedef struct {
    void *values;  // (rows, linear->outputs)
    Type type;
    Activation activation;
    const float *row_scales;  // INT8: what one unit of an input row is worth
} Output;

void gemm_avx512(const Linear *linear, int rows, const void *input, const Output *output);
void gemm_amx(const Linear *linear, int rows, const void *input, const Output *output);

// Of the weights of one output, and of one input row if it has their type.
static inline size_t weight_bytes(const Linear *linear) {
    return (size_t)linear->inputs * (linear->type == FLOAT32 ? 4 : linear->type == BFLOAT16 ? 2 : 1);
}

// Outputs from a block of sums, (rows, PANEL): integers for INT8, else floats.
void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                  const int32_t sums[][PANEL]);
