// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Training: attention dropout(softmax(scale * q k^T)) v, forward and backward.
//
// One head of a sentence at a time, and of it QUERY_ROWS queries together. Backward computes the weights again.

#include "dropout.h"

enum { QUERY_ROWS = 64 };

// A matrix by the distances between its rows and columns.
typedef struct {
    const float *values;
    int64_t row, column;
} Matrix;

// Of c = a b or c += a b the first columns, up to 16 * vectors of them, for 8 / vectors rows of a at a time.
INLINE void multiply_columns(const int vectors, int rows, int inner, int columns, Matrix a, Matrix b, float *c,
                             int64_t c_row, int accumulate) {
    const int together = 8 / vectors;
    __mmask16 lanes[2] = {first_lanes(columns), vectors > 1 ? first_lanes(columns - 16) : 0};
    for (int i = 0; i < rows; i += together) {
        __m512 sums[8];
        const float *left[8];
#pragma GCC unroll 8
        for (int r = 0; r < together; r++) left[r] = a.values + (i + r < rows ? i + r : rows - 1) * a.row;
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++) sums[s] = _mm512_setzero_ps();
        for (int k = 0; k < inner; k++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                __m512 right = _mm512_maskz_loadu_ps(lanes[v], b.values + k * b.row + 16 * v);
#pragma GCC unroll 8
                for (int r = 0; r < together; r++) {
                    __m512 factor = _mm512_set1_ps(left[r][k * a.column]);
                    sums[r * vectors + v] = _mm512_fmadd_ps(factor, right, sums[r * vectors + v]);
                }
            }
#pragma GCC unroll 8
        for (int r = 0; r < together; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                if (i + r >= rows) continue;
                float *target = c + (i + r) * c_row + 16 * v;
                __m512 sum = sums[r * vectors + v];
                if (accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes[v], target));
                _mm512_mask_storeu_ps(target, lanes[v], sum);
            }
    }
}

// c = a b, or c += a b: a is (rows, inner), b (inner, columns) with columns next to each other.
WITH_AVX512 static void multiply(int rows, int inner, int columns, Matrix a, Matrix b, float *c, int64_t c_row,
                                 int accumulate) {
    for (int j = 0; j < columns; j += 32) {
        Matrix right = {b.values + j, b.row, 1};
        if (columns - j > 16)
            multiply_columns(2, rows, inner, columns - j, a, right, c + j, c_row, accumulate);
        else
            multiply_columns(1, rows, inner, columns - j, a, right, c + j, c_row, accumulate);
    }
}

// One head of a sentence.
typedef struct {
    const DotAttention *all;
    int64_t sentence, head;
    Matrix query, key, value;
    Dropout dropout;
    int64_t stride;             // of rows of the scratch
    float *keys, *values;       // (size, keys), transposed
    float *weights, *gradients; // (QUERY_ROWS, keys)
} Head;

static int64_t stride_of(const DotAttention *all) { return (all->keys + 15) / 16 * 16; }

static int64_t scratch_values(const DotAttention *all) { return 2 * (all->size + QUERY_ROWS) * stride_of(all); }

size_t dot_attention_scratch_size(const DotAttention *all) {
    return all->threads * scratch_values(all) * sizeof(float);
}

static Matrix matrix_of(const float *values, const int64_t strides[3], int64_t sentence, int64_t head) {
    return (Matrix){values + sentence * strides[0] + head * strides[1], strides[2], 1};
}

INLINE Head find_head(const DotAttention *all, int64_t index, int thread) {
    int64_t sentence = index / all->heads, head = index % all->heads, stride = stride_of(all);
    float *scratch = (float *)all->scratch + thread * scratch_values(all);
    return (Head){
        .all = all,
        .sentence = sentence,
        .head = head,
        .query = matrix_of(all->query, all->query_strides, sentence, head),
        .key = matrix_of(all->key, all->key_strides, sentence, head),
        .value = matrix_of(all->value, all->value_strides, sentence, head),
        .dropout = make_dropout(all->seed, all->rate),
        .stride = stride,
        .keys = scratch,
        .values = scratch + all->size * stride,
        .weights = scratch + 2 * all->size * stride,
        .gradients = scratch + (2 * all->size + QUERY_ROWS) * stride,
    };
}

// to (size, keys) from (keys, size).
WITH_AVX512 static void transpose(const DotAttention *all, Matrix from, float *to, int64_t stride) {
    for (int j = 0; j < all->keys; j += 16)
        for (int c = 0; c < all->size; c += 16) {
            __m512i tile[16];
            __mmask16 lanes = first_lanes(all->size - c);
            for (int i = 0; i < 16; i++)
                tile[i] = _mm512_castps_si512(
                    _mm512_maskz_loadu_ps(j + i < all->keys ? lanes : 0, from.values + (j + i) * from.row + c));
            transpose_tile(tile);
            for (int i = 0; i < 16 && c + i < all->size; i++) _mm512_storeu_si512(to + (c + i) * stride + j, tile[i]);
        }
}

// Which of the 16 keys from j a query may attend to.
INLINE __mmask16 visible(const Head *h, int query, int j) {
    const DotAttention *all = h->all;
    int end = all->causal && query + 1 < all->keys ? query + 1 : all->keys;
    if (j >= end) return 0;
    __mmask16 lanes = first_lanes(end - j);
    if (!all->mask) return lanes;
    const uint8_t *mask = all->mask + h->sentence * all->mask_strides[0] + query * all->mask_strides[1];
    __m128i allowed = _mm_maskz_loadu_epi8(lanes, mask + j);
    return _mm_test_epi8_mask(allowed, allowed);
}

INLINE int64_t place_of(const Head *h, int query) {
    return (h->sentence * h->all->heads + h->head) * h->all->queries + query;
}

INLINE __mmask16 kept_keys(const Head *h, int query, int j) {
    return half(kept(&h->dropout, place_of(h, query) * ((h->all->keys + BLOCK - 1) / BLOCK) + j / BLOCK), j % BLOCK);
}

// The products q k^T of `rows` queries go to the place of their weights.
INLINE void score(const Head *h, int first, int rows) {
    const DotAttention *all = h->all;
    Matrix query = h->query, keys = {h->keys, h->stride, 1};
    query.values += first * query.row;
    multiply(rows, all->size, all->keys, query, keys, h->weights, h->stride, 0);
}

// exp(scale * score - log_sum) of 16 keys, 0 of those that the query may not attend to.
INLINE __m512 weights_at(const Head *h, int query, const float *scores, int j, float log_sum) {
    __m512 shifted = _mm512_mul_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(h->all->scale));
    shifted = _mm512_sub_ps(shifted, _mm512_set1_ps(log_sum));
    return _mm512_maskz_mov_ps(visible(h, query, j), exponential(shifted));
}

// Scores of a query become its weights after dropout. A query that may attend to nothing has none.
INLINE void softmax_row(const Head *h, int query, float *scores) {
    const DotAttention *all = h->all;
    __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps(), scale = _mm512_set1_ps(all->scale);
    for (int j = 0; j < all->keys; j += 16)
        most = _mm512_mask_max_ps(most, visible(h, query, j), most, _mm512_mul_ps(_mm512_loadu_ps(scores + j), scale));
    float largest = _mm512_reduce_max_ps(most);
    for (int j = 0; j < all->keys; j += 16) {
        __m512 weights = weights_at(h, query, scores, j, largest);
        _mm512_storeu_ps(scores + j, weights);
        total = _mm512_add_ps(total, weights);
    }
    float sum = _mm512_reduce_add_ps(total);
    all->log_sums[place_of(h, query)] = sum ? largest + logf(sum) : 0;
    __m512 factor = _mm512_set1_ps(sum ? 1 / sum : 0);
    for (int j = 0; j < all->keys; j += 16) {
        __m512 weights = _mm512_mul_ps(_mm512_loadu_ps(scores + j), factor);
        if (h->dropout.active) weights = drop(&h->dropout, kept_keys(h, query, j), weights);
        _mm512_storeu_ps(scores + j, weights);
    }
}

WITH_AVX512 static void forward_block(const Head *h, int first, int rows) {
    const DotAttention *all = h->all;
    int64_t width = (int64_t)all->heads * all->size;
    score(h, first, rows);
    for (int i = 0; i < rows; i++) softmax_row(h, first + i, h->weights + i * h->stride);
    float *output = all->output + (h->sentence * all->queries + first) * width + h->head * all->size;
    multiply(rows, all->keys, all->size, (Matrix){h->weights, h->stride, 1}, h->value, output, width, 0);
}

// From the scores of a query and the gradients of its weights: the weights after dropout, and the gradients of q k^T.
INLINE void softmax_gradient(const Head *h, int query, float *scores, float *gradients) {
    const DotAttention *all = h->all;
    float log_sum = all->log_sums[place_of(h, query)];
    __m512 total = _mm512_setzero_ps();
    for (int j = 0; j < all->keys; j += 16) {
        __m512 weights = weights_at(h, query, scores, j, log_sum), gradient = _mm512_loadu_ps(gradients + j);
        if (h->dropout.active) gradient = drop(&h->dropout, kept_keys(h, query, j), gradient);
        total = _mm512_mask_add_ps(total, visible(h, query, j), total, _mm512_mul_ps(weights, gradient));
        _mm512_storeu_ps(scores + j, weights);
        _mm512_storeu_ps(gradients + j, gradient);
    }
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total)), scale = _mm512_set1_ps(all->scale);
    for (int j = 0; j < all->keys; j += 16) {
        __m512 weights = _mm512_loadu_ps(scores + j), gradient = _mm512_loadu_ps(gradients + j);
        gradient = _mm512_mul_ps(_mm512_mul_ps(weights, scale), _mm512_sub_ps(gradient, mean));
        _mm512_storeu_ps(gradients + j, gradient);
        if (h->dropout.active)
            _mm512_storeu_ps(scores + j, drop(&h->dropout, kept_keys(h, query, j), weights));
    }
}

WITH_AVX512 static void backward_block(const Head *h, int first, int rows) {
    const DotAttention *all = h->all;
    int64_t width = (int64_t)all->heads * all->size;
    int64_t of_queries = (h->sentence * all->queries + first) * width + h->head * all->size;
    int64_t of_keys = h->sentence * all->keys * width + h->head * all->size;
    Matrix grad_output = {all->grad_output + of_queries, width, 1}, query = h->query;
    query.values += first * query.row;
    score(h, first, rows);
    multiply(rows, all->size, all->keys, grad_output, (Matrix){h->values, h->stride, 1}, h->gradients, h->stride, 0);
    for (int i = 0; i < rows; i++)
        softmax_gradient(h, first + i, h->weights + i * h->stride, h->gradients + i * h->stride);
    Matrix weights = {h->weights, 1, h->stride}, gradients = {h->gradients, 1, h->stride};  // transposed
    multiply(all->keys, rows, all->size, weights, grad_output, all->grad_value + of_keys, width, first > 0);
    multiply(all->keys, rows, all->size, gradients, query, all->grad_key + of_keys, width, first > 0);
    multiply(rows, all->keys, all->size, (Matrix){h->gradients, h->stride, 1}, h->key, all->grad_query + of_queries,
             width, 0);
}

WITH_AVX512 static void run_heads(const Rows *heads, void (*run)(const Head *h, int first, int rows)) {
    const DotAttention *all = heads->work;
    for (int64_t index = heads->first; index < heads->end; index++) {
        Head h = find_head(all, index, heads->thread);
        transpose(all, h.key, h.keys, h.stride);
        if (all->grad_output) transpose(all, h.value, h.values, h.stride);
        for (int first = 0; first < all->queries; first += QUERY_ROWS)
            run(&h, first, all->queries - first < QUERY_ROWS ? all->queries - first : QUERY_ROWS);
    }
}

static void *forward_part(void *heads) {
    run_heads(heads, forward_block);
    return NULL;
}

static void *backward_part(void *heads) {
    run_heads(heads, backward_block);
    return NULL;
}

void dot_attention_forward(const DotAttention *all) {
    run_rows(all, (int64_t)all->sentences * all->heads, all->threads, forward_part);
}

void dot_attention_backward(const DotAttention *all) {
    run_rows(all, (int64_t)all->sentences * all->heads, all->threads, backward_part);
}
