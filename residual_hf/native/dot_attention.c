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

// Of c = a b or c += a b the first columns, up to LANES * vectors of them, for 8 / vectors rows of a at a time.
INLINE void multiply_columns(const int vectors, int rows, int inner, int columns, Matrix a, Matrix b, float *c,
                             int64_t c_row, int accumulate) {
    const int together = 8 / vectors;
    for (int i = 0; i < rows; i += together) {
        vec sums[8];
        const float *left[8];
        UNROLLED(r, together) left[r] = a.values + least(i + r, rows - 1) * a.row;
        UNROLLED(s, 8) sums[s] = (vec){0};
        for (int k = 0; k < inner; k++)
            UNROLLED(v, vectors) {
                vec right = load_first(b.values + k * b.row + LANES * v, columns - LANES * v);
                UNROLLED(r, together) sums[r * vectors + v] += left[r][k * a.column] * right;
            }
        UNROLLED(r, together)
            UNROLLED(v, vectors) {
                if (i + r >= rows) continue;
                float *target = c + (i + r) * c_row + LANES * v;
                int count = columns - LANES * v;
                if (accumulate) sums[r * vectors + v] += load_first(target, count);
                store_first(target, count, sums[r * vectors + v]);
            }
    }
}

// c = a b, or c += a b: a is (rows, inner), b (inner, columns) with columns next to each other.
static void multiply(int rows, int inner, int columns, Matrix a, Matrix b, float *c, int64_t c_row, int accumulate) {
    for (; columns >= 2 * LANES; columns -= 2 * LANES, b.values += 2 * LANES, c += 2 * LANES)
        multiply_columns(2, rows, inner, 2 * LANES, a, b, c, c_row, accumulate);  // a constant: no branches
    for (; columns > 0; columns -= LANES, b.values += LANES, c += LANES)
        multiply_columns(1, rows, inner, columns, a, b, c, c_row, accumulate);
}

// One head of a sentence.
typedef struct {
    const DotAttention *all;
    int64_t sentence, head;
    Dropout dropout;
    Matrix query, key, value;
    int64_t stride;              // of rows of the scratch
    float *keys, *values;        // (size, keys), transposed
    float *weights, *gradients;  // (QUERY_ROWS, keys)
} Head;

static int64_t stride_of(const DotAttention *all) { return round_up(all->keys, 16); }

static int64_t scratch_values(const DotAttention *all) { return 2 * (all->size + QUERY_ROWS) * stride_of(all); }

size_t dot_attention_scratch_size(const DotAttention *all) {
    return all->threads * scratch_values(all) * sizeof(float);
}

static Matrix matrix_of(const float *values, const int64_t strides[3], int64_t sentence, int64_t head) {
    return (Matrix){values + sentence * strides[0] + head * strides[1], strides[2], 1};
}

INLINE Head find_head(const DotAttention *all, int64_t index, int thread) {
    int64_t sentence = index / all->heads, head = index % all->heads, stride = stride_of(all);
    float *keys = (float *)all->scratch + thread * scratch_values(all), *values = keys + all->size * stride;
    float *weights = values + all->size * stride, *gradients = weights + QUERY_ROWS * stride;
    Matrix query = matrix_of(all->query, all->query_strides, sentence, head);
    Matrix key = matrix_of(all->key, all->key_strides, sentence, head);
    Matrix value = matrix_of(all->value, all->value_strides, sentence, head);
    Dropout dropout = make_dropout(all->seed, all->rate);
    return (Head){all, sentence, head, dropout, query, key, value, stride, keys, values, weights, gradients};
}

// to (size, keys) from (keys, size), with zeros up to the stride.
static void transpose(const DotAttention *all, Matrix from, float *to, int64_t stride) {
    for (int j = 0; j < stride; j += LANES)
        for (int c = 0; c < all->size; c += LANES) {
            ivec tile[LANES];
            for (int i = 0; i < LANES; i++)
                tile[i] = (ivec)load_first(from.values + (j + i) * from.row + c, j + i < all->keys ? all->size - c : 0);
            transpose_tile(tile);
            for (int i = 0; i < LANES && c + i < all->size; i++) store_floats(to + (c + i) * stride + j, (vec)tile[i]);
        }
}

// Which of the keys from j a query may attend to.
INLINE ivec visible(const Head *h, int query, int j) {
    typedef uint8_t bytes __attribute__((vector_size(LANES)));
    const DotAttention *all = h->all;
    ivec lanes = first_lanes((all->causal && query + 1 < all->keys ? query + 1 : all->keys) - j);
    if (!all->mask) return lanes;
    bytes allowed;
    memcpy(&allowed, all->mask + h->sentence * all->mask_strides[0] + query * all->mask_strides[1] + j, LANES);
    return lanes & (__builtin_convertvector(allowed, ivec) != 0);
}

INLINE int64_t place_of(const Head *h, int query) {
    return (h->sentence * h->all->heads + h->head) * h->all->queries + query;
}

INLINE vec drop_keys(const Head *h, int query, int j, Mask *mask, vec values) {
    int64_t blocks = round_up(h->all->keys, BLOCK) / BLOCK;
    if (j % BLOCK == 0) make_mask(&h->dropout, place_of(h, query) * blocks + j / BLOCK, mask);
    return drop(&h->dropout, mask, j, values);
}

// The products q k^T of `rows` queries go to the place of their weights.
INLINE void score(const Head *h, int first, int rows) {
    Matrix query = h->query, keys = {h->keys, h->stride, 1};
    query.values += first * query.row;
    multiply(rows, h->all->size, h->stride, query, keys, h->weights, h->stride, 0);
}

// exp(scale * score - log_sum) of the keys from j, 0 of those that the query may not attend to.
INLINE vec weights_at(const Head *h, int query, const float *scores, int j, float log_sum) {
    vec shifted = load_floats(scores + j) * h->all->scale - log_sum;
    return only(visible(h, query, j), exponential(shifted));
}

// Scores of a query become its weights after dropout. A query that may attend to nothing has none.
INLINE void softmax_row(const Head *h, int query, float *scores) {
    const DotAttention *all = h->all;
    vec most = splat(-INFINITY), total = {0};
    for (int j = 0; j < all->keys; j += LANES)
        most = MAX(most, choose(visible(h, query, j), load_floats(scores + j) * all->scale, splat(-INFINITY)));
    float largest = largest_lane(most);
    for (int j = 0; j < all->keys; j += LANES) {
        vec weights = weights_at(h, query, scores, j, largest);
        store_floats(scores + j, weights);
        total += weights;
    }
    float all_weights = sum(total), factor = all_weights ? 1 / all_weights : 0;
    all->log_sums[place_of(h, query)] = all_weights ? largest + logf(all_weights) : 0;
    Mask mask;
    for (int j = 0; j < all->keys; j += LANES)
        store_floats(scores + j, drop_keys(h, query, j, &mask, load_floats(scores + j) * factor));
}

static void forward_block(const Head *h, int first, int rows) {
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
    vec total = {0};
    Mask mask;
    for (int j = 0; j < all->keys; j += LANES) {
        vec weights = weights_at(h, query, scores, j, log_sum);
        vec gradient = drop_keys(h, query, j, &mask, load_floats(gradients + j));
        total += only(visible(h, query, j), weights * gradient);
        store_floats(scores + j, weights);
        store_floats(gradients + j, gradient);
    }
    float mean = sum(total);
    for (int j = 0; j < all->keys; j += LANES) {
        vec weights = load_floats(scores + j), gradient = load_floats(gradients + j);
        store_floats(gradients + j, (weights * all->scale) * (gradient - mean));
        store_floats(scores + j, drop_keys(h, query, j, &mask, weights));
    }
}

static void backward_block(const Head *h, int first, int rows) {
    const DotAttention *all = h->all;
    int64_t width = (int64_t)all->heads * all->size;
    int64_t of_queries = (h->sentence * all->queries + first) * width + h->head * all->size;
    int64_t of_keys = h->sentence * all->keys * width + h->head * all->size;
    Matrix grad_output = {all->grad_output + of_queries, width, 1}, query = h->query;
    query.values += first * query.row;
    score(h, first, rows);
    multiply(rows, all->size, h->stride, grad_output, (Matrix){h->values, h->stride, 1}, h->gradients, h->stride, 0);
    for (int i = 0; i < rows; i++)
        softmax_gradient(h, first + i, h->weights + i * h->stride, h->gradients + i * h->stride);
    Matrix weights = {h->weights, 1, h->stride}, gradients = {h->gradients, 1, h->stride};  // transposed
    multiply(all->keys, rows, all->size, weights, grad_output, all->grad_value + of_keys, width, first > 0);
    multiply(all->keys, rows, all->size, gradients, query, all->grad_key + of_keys, width, first > 0);
    multiply(rows, all->keys, all->size, (Matrix){h->gradients, h->stride, 1}, h->key, all->grad_query + of_queries,
             width, 0);
}

static void run_heads(const void *work, int64_t first, int64_t end, int thread) {
    const DotAttention *all = work;
    for (int64_t index = first; index < end; index++) {
        Head h = find_head(all, index, thread);
        transpose(all, h.key, h.keys, h.stride);
        if (all->grad_output) transpose(all, h.value, h.values, h.stride);
        for (int query = 0; query < all->queries; query += QUERY_ROWS)
            (all->grad_output ? backward_block : forward_block)(&h, query, least(all->queries - query, QUERY_ROWS));
    }
}

// The output, or with grad_output the gradients.
void dot_attention(const DotAttention *all) {
    run_rows(all, (int64_t)all->sentences * all->heads, all->threads, run_heads);
}
