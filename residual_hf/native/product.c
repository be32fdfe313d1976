// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: products of matrices in fp32 whose values are rounded to bfloat16 on the way into the kernel's layouts.
//
// The right matrix becomes panels (pairs, 32 columns), the left one rows of pairs. INNER values of the inner dimension
// are multiplied at a time, so that a panel and 12 rows fit the first cache, and GROUP rows, which fit the second.
// Every sum is made in the same order with any number of threads.

#include "pairs.h"

enum { TILE = 16, INNER = 256, PAIRS = INNER / 2, GROUP = 480 };
enum { PANEL_SIZE = PAIRS * PANEL, ROW_SIZE = PAIRS + TILE, GROUP_SIZE = GROUP * ROW_SIZE };  // in pairs

// Lines are the rows of the left matrix or the columns of the right one.
typedef struct {
    const float *values;
    int64_t line_stride, inner_stride, lines, inner;
} Matrix;

static Matrix left_of(const Product *p) {
    return (Matrix){p->left, p->left_strides[0], p->left_strides[1], p->rows, p->inner};
}

static Matrix right_of(const Product *p) {
    return (Matrix){p->right, p->right_strides[0], p->right_strides[1], p->columns, p->inner};
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t panels(const Product *p) { return (p->columns + PANEL - 1) / PANEL; }
static int64_t inner_blocks(const Product *p) { return (p->inner + INNER - 1) / INNER; }

INLINE __mmask16 lanes_of(int64_t count) { return count <= 0 ? 0 : first_lanes((int)least(count, 16)); }

// Pairs along the inner dimension of one line, of which `count` values exist.
INLINE_BF16 __m512i pairs_of_line(const float *values, int64_t count) {
    __m512 low = _mm512_maskz_loadu_ps(lanes_of(count), values);
    __m512 high = _mm512_maskz_loadu_ps(lanes_of(count - 16), values + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// One pair of each of 16 lines.
INLINE_BF16 __m512i pair_of_lines(const float *values, int64_t stride, int64_t count, __mmask16 lanes) {
    __m512 first = _mm512_maskz_loadu_ps(count > 0 ? lanes : 0, values);
    __m512 second = _mm512_maskz_loadu_ps(count > 1 ? lanes : 0, values + stride);
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(first));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(second));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// 16 lines of 16 pairs, zero where the matrix has ended: target (lines, pairs) if `by_line`, else (pairs, lines).
INLINE_BF16 void pack_tile(const Matrix *m, int64_t line, int64_t inner, const int by_line, int32_t *target,
                           int64_t target_stride) {
    __m512i tile[TILE];
    const float *values = m->values + line * m->line_stride + inner * m->inner_stride;
    int64_t lines = m->lines - line, count = m->inner - inner;
    int along = m->inner_stride == 1;
    for (int i = 0; i < TILE; i++)
        if (along)
            tile[i] = pairs_of_line(values + (i < lines ? i : 0) * m->line_stride, i < lines ? count : 0);
        else
            tile[i] = pair_of_lines(values + 2 * i * m->inner_stride, m->inner_stride, count - 2 * i, lanes_of(lines));
    if (along != by_line) transpose_tile(tile);
    for (int i = 0; i < TILE; i++) _mm512_storeu_si512(target + i * target_stride, tile[i]);
}

WITH_BF16 static void *pack_panels(void *argument) {
    const Rows *part = argument;
    const Product *p = part->work;
    Matrix right = right_of(p);
    for (int64_t panel = part->first; panel < part->end; panel++)
        for (int64_t inner = 0; inner < p->inner; inner += 2 * TILE) {
            int64_t block = inner / INNER, pair = inner % INNER / 2;
            int32_t *target = (int32_t *)p->scratch + (block * panels(p) + panel) * PANEL_SIZE + pair * PANEL;
            for (int half = 0; half < PANEL; half += TILE)
                pack_tile(&right, panel * PANEL + half, inner, 0, target + half, PANEL);
        }
    return NULL;
}

WITH_BF16 static void pack_group(const Matrix *left, int64_t row, int64_t rows, int64_t inner, int32_t *target) {
    int64_t end = least(inner + INNER, left->inner);
    for (int64_t line = 0; line < rows; line += TILE)
        for (int64_t i = inner; i < end; i += 2 * TILE)
            pack_tile(left, row + line, i, 1, target + line * ROW_SIZE + (i - inner) / 2, ROW_SIZE);
}

typedef struct {
    const Product *product;
    const int32_t *left, *panel;
    int64_t row, column, pairs;
    int first;  // of the inner blocks
} Block;

INLINE_BF16 void multiply_block(const int rows, const Block *b) {
    const Product *p = b->product;
    __m512 sums[MOST_ROWS][2];
    float *output = p->output + b->row * p->columns + b->column;
    __mmask16 lanes[2] = {lanes_of(p->columns - b->column), lanes_of(p->columns - b->column - 16)};
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            const float *start = output + r * p->columns + 16 * half;
            if (b->first && !p->accumulate) start = p->bias ? p->bias + b->column + 16 * half : NULL;
            sums[r][half] = start ? _mm512_maskz_loadu_ps(lanes[half], start) : _mm512_setzero_ps();
        }
    multiply_pairs(rows, b->pairs, (const char *)b->left, ROW_SIZE * 4, (const char *)b->panel, 0, sums);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            _mm512_mask_storeu_ps(output + r * p->columns + 16 * half, lanes[half], sums[r][half]);
}

WITH_BF16 static void *multiply_rows(void *argument) {
    const Rows *part = argument;
    const Product *p = part->work;
    Matrix left = left_of(p);
    const int32_t *right = p->scratch;
    int32_t *group = (int32_t *)p->scratch + inner_blocks(p) * panels(p) * PANEL_SIZE + part->thread * GROUP_SIZE;
    for (int64_t start = part->first; start < part->end; start += GROUP) {
        int64_t rows = least(GROUP, part->end - start);
        for (int64_t inner = 0; inner < p->inner; inner += INNER) {
            int64_t pairs = (least(INNER, p->inner - inner) + 1) / 2;
            pack_group(&left, start, rows, inner, group);
            for (int64_t panel = 0; panel < panels(p); panel++)
                for (int64_t row = 0; row < rows; row += MOST_ROWS) {
                    const int32_t *weights = right + (inner / INNER * panels(p) + panel) * PANEL_SIZE;
                    Block block = {p, group + row * ROW_SIZE, weights, start + row, panel * PANEL, pairs, inner == 0};
                    WITH_CONSTANT_ROWS(least(MOST_ROWS, rows - row), multiply_block, &block)
                }
        }
    }
    return NULL;
}

size_t product_scratch_size(const Product *p) {
    return 4 * ((size_t)inner_blocks(p) * panels(p) * PANEL_SIZE + (size_t)p->threads * GROUP_SIZE);
}

void product(const Product *p) {
    run_rows(p, panels(p), p->threads, pack_panels);
    run_rows(p, p->rows, p->threads, multiply_rows);
}
