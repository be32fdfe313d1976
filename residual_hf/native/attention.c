// Attention of single queries over those rows of a key/value cache that a table names.
//
// Beams share what they have in common: a reordered beam is another line of the table, and nothing is copied.

#include "vector.h"

enum { PAIR = 2 * LANES, MOST_PAIRS = 4 * HEAD_PADDING / PAIR };
enum { AVERAGED = LANES == 8 ? 2 : QUERIES };  // rows whose averages stay in registers, or QUERIES pairs of a row

// Of bfloat16 the even values and the odd ones, which are quicker to widen than the two halves.
typedef struct {
    vec first, second;
} Pair;

INLINE Pair load_pair(const void *base, int64_t index, const Type type) {
    if (type == FLOAT32) return (Pair){load(base, index, type), load(base, index + LANES, type)};
    ivec bits = load_bits((const bf16 *)base + index);
    return (Pair){(vec)(bits << 16), (vec)(bits & (int32_t)0xffff0000)};
}

INLINE void store_pair(void *base, int64_t index, const Type type, Pair values) {
    if (type == FLOAT32) {
        store(base, index, type, values.first);
        store(base, index + LANES, type, values.second);
    } else {
        uvec even = ((uvec)values.first + 0x8000) >> 16, odd = ((uvec)values.second + 0x8000) & 0xffff0000;
        even |= odd;
        memcpy((bf16 *)base + index, &even, sizeof even);
    }
}

INLINE Pair scaled(Pair values, float factor) { return (Pair){values.first * factor, values.second * factor}; }

INLINE Pair add_scaled(Pair sums, Pair values, float factor) {
    return (Pair){values.first * factor + sums.first, values.second * factor + sums.second};
}

// The sums of four vectors, as four floats.
INLINE v4 sum_each(vec a, vec b, vec c, vec d) {
    v4 w = sum4(a), x = sum4(b), y = sum4(c), z = sum4(d);
    v4 wx = SHUFFLE(w, x, 0, 4, 1, 5) + SHUFFLE(w, x, 2, 6, 3, 7);
    v4 yz = SHUFFLE(y, z, 0, 4, 1, 5) + SHUFFLE(y, z, 2, 6, 3, 7);
    return SHUFFLE(wx, yz, 0, 1, 4, 5) + SHUFFLE(wx, yz, 2, 3, 6, 7);
}

// A line of the table.
typedef struct {
    const int32_t *entries;
    int length;
} Line;

// Entry j of the line that follows: fetched in small portions between products, it costs no time.
INLINE void fetch(const void *base, const Line *next, int j, int64_t stride, int pairs, const Type type) {
    if (j >= next->length) return;
    const char *place = (const char *)base + next->entries[j] * stride * size_of(type);
    for (size_t byte = 0; byte < PAIR * pairs * size_of(type); byte += 64) __builtin_prefetch(place + byte);
}

// Scores of `queries` rows for each key, (keys, queries): four at a time, of four keys or of four rows. The last group
// of keys repeats the last one; `softmax` leaves those scores out.
INLINE void score_keys(const int queries, const int pairs, const Type type, const void *query, int64_t query_stride,
                       const void *keys, int64_t stride, const Line *line, const Line *next, float scale,
                       float *scores) {
    const int32_t *entries = line->entries;
    int length = line->length;
    Pair q[QUERIES][MOST_PAIRS];
    UNROLLED(i, queries)
        UNROLLED(p, pairs)
            q[i][p] = scaled(load_pair(query, i * query_stride + PAIR * p, type), scale);
    const int keys_together = 4 / queries;
    for (int j = 0; j < length; j += keys_together) {
        vec sums[4];
        UNROLLED(k, keys_together) {
            int64_t key = entries[j + k < length ? j + k : length - 1] * stride;
            fetch(keys, next, j + k, stride, pairs, type);
            UNROLLED(i, queries) sums[k * queries + i] = (vec){0};
            UNROLLED(p, pairs) {
                Pair values = load_pair(keys, key + PAIR * p, type);
                UNROLLED(i, queries) {
                    vec *sum = &sums[k * queries + i];
                    *sum += q[i][p].first * values.first;
                    *sum += q[i][p].second * values.second;
                }
            }
        }
        v4 found = sum_each(sums[0], sums[1], sums[2], sums[3]);
        memcpy(scores + j * queries, &found, sizeof found);
    }
}

// The sum of each row's weights, as four floats, from `count` weights and zeros up to a multiple of 16. Whatever
// `queries` is, it adds every fourth key first: a row has the same result in any company.
INLINE v4 sum_of_rows(const int queries, const float *weights, int count) {
    v4 sums[4] = {{0}, {0}, {0}, {0}};
    if (queries == 1) {
        for (int j = 0; j < count; j += 4) sums[0] += load4(weights + j);
        return (sums[0][0] + sums[0][2]) + (sums[0][1] + sums[0][3]) - (v4){0};
    }
    for (int j = 0; j < count; j += 16)
        UNROLLED(k, 4) sums[k] += load4(weights + j + 4 * k);
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// exp(score - largest) in place, and zeros up to a multiple of 16; returns the sum of each row, as four floats.
INLINE v4 softmax(const int queries, float *scores, int length) {
    int count = length * queries, end = (count + 15) / 16 * 16;
    for (int j = count; j < end; j++) scores[j] = -INFINITY;
    vec largest = splat(-INFINITY);
    for (int j = 0; j < end; j += LANES) largest = MAX(largest, load_floats(scores + j));
    largest = queries == 1 ? splat(largest_lane(largest)) : REPEAT4(largest4(largest));  // lanes are (keys, queries)
    for (int j = 0; j < end; j += LANES) store_floats(scores + j, exponential(load_floats(scores + j) - largest));
    for (int j = count; j < end; j++) scores[j] = 0;
    return sum_of_rows(queries, scores, count);
}

// Averages of `pairs` pairs for each row.
INLINE void average_values(const int queries, const int pairs, const Type type, const void *values, int64_t stride,
                           const Line *line, const Line *next, const float *weights, const int weights_stride,
                           const float *totals, void *output, int64_t output_stride) {
    Pair sums[QUERIES][QUERIES];
    UNROLLED(i, queries)
        UNROLLED(p, pairs)
            sums[i][p] = (Pair){{0}, {0}};
    for (int j = 0; j < line->length; j++) {
        int64_t place = line->entries[j] * stride;
        fetch(values, next, j, stride, pairs, type);
        UNROLLED(p, pairs) {
            Pair pair = load_pair(values, place + PAIR * p, type);
            UNROLLED(i, queries) sums[i][p] = add_scaled(sums[i][p], pair, weights[j * weights_stride + i]);
        }
    }
    UNROLLED(i, queries) {
        float factor = line->length ? 1 / totals[i] : 0;
        UNROLLED(p, pairs)
            store_pair(output, i * output_stride + PAIR * p, type, scaled(sums[i][p], factor));
    }
}

INLINE const void *offset(const void *base, int64_t index, const Type type) {
    return (const char *)base + index * size_of(type);
}

INLINE Line line_of(const Table *table, int row) {
    int line = table->line[row];
    return (Line){table->entries + line * table->stride, table->lengths[line]};
}

// Adds to the sums of the scores of all layers before, and attends to the new sums.
static __attribute__((noinline)) void add_sums(int queries, const Attention *a, int64_t row, int head, int length) {
    for (int q = 0; q < queries; q++) {
        float *sums = a->sums + ((row + q) * a->heads + head) * a->longest;
        for (int j = 0; j < length; j++) {
            float *score = a->scratch + j * queries + q;
            sums[j] = a->is_first ? *score : sums[j] + *score;
            *score = sums[j] * a->factor;
        }
    }
}

// `queries` rows from `row`, which share a line of the table. The line of the next rows is fetched meanwhile.
INLINE void attend(const int queries, const int pairs, const Type type, const Attention *a, float scale, int row,
                   const Line *next) {
    Line line = line_of(&a->table, row);
    int64_t width = a->width, stride = 2 * width, size = PAIR * pairs;
    for (int head = 0; head < a->heads; head++) {
        int64_t place = row * width + head * size;
        score_keys(queries, pairs, type, offset(a->queries, place, type), width, offset(a->cache, head * size, type),
                   stride, &line, next, scale, a->scratch);
        if (a->sums) add_sums(queries, a, row, head, line.length);
        float totals[4];
        v4 found = softmax(queries, a->scratch, line.length);
        memcpy(totals, &found, sizeof found);
        const int averaged = queries < AVERAGED ? queries : AVERAGED, together = QUERIES / averaged;
        UNROLLED(p, (pairs + together - 1) / together) {
            const int first = p * together, some = pairs - first < together ? pairs - first : together;
            for (int q = 0; q < queries; q += averaged)
                average_values(averaged, some, type, offset(a->cache, width + head * size + PAIR * first, type), stride,
                               &line, next, a->scratch + q, queries, totals + q,
                               (void *)offset(a->output, place + q * width + PAIR * first, type), width);
        }
    }
    for (int i = 0; i < queries; i++)  // a linear map reads the padding, too
        for (int64_t j = size * a->heads; j < width; j += PAIR)
            store_pair(a->output, (row + i) * width + j, type, (Pair){{0}, {0}});
}

INLINE void attend_rows(const int pairs, const Type type, const Attention *a, int rows, float scale) {
    const int32_t *line = a->table.line;
    for (int r = 0; r < rows;) {
        int together = 1;
        while (r + together < rows && together < QUERIES && line[r + together] == line[r]) together++;
        int end = r + together;
        Line next = {NULL, 0};
        if (end < rows && line[end] != line[r]) next = line_of(&a->table, end);
        if (together == QUERIES)
            attend(QUERIES, pairs, type, a, scale, r, &next);
        else
            for (int i = r; i < end; i++) attend(1, pairs, type, a, scale, i, &next);
        r = end;
    }
}

INLINE void attend_typed(const Type type, const Attention *a, int rows, float scale) {
    switch (a->head_size / HEAD_PADDING) {
    case 1: return attend_rows(HEAD_PADDING / PAIR, type, a, rows, scale);
    case 2: return attend_rows(2 * HEAD_PADDING / PAIR, type, a, rows, scale);
    case 3: return attend_rows(3 * HEAD_PADDING / PAIR, type, a, rows, scale);
    default: return attend_rows(4 * HEAD_PADDING / PAIR, type, a, rows, scale);
    }
}

void attention(const Attention *a, int rows, Type type, float scale) {
    if (type == FLOAT32)
        attend_typed(FLOAT32, a, rows, scale);
    else
        attend_typed(BFLOAT16, a, rows, scale);
}
