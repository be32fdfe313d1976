// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The encoder, and one step of the decoder, each in one call.

#include "gemm.h"

enum { CHUNK = 512, COLUMNS = 1024 };  // rows of the encoder, and logits, that are in the cache together

typedef struct {
    float *stream, *dual;   // (rows, stride); dual is NULL where there is none
    void *hidden;           // (rows, stride), what the next sub-layer reads
    float *branch;          // (rows, stride), what it returns
    void *query, *context;  // (rows, attention_width)
    void *ffn;              // (rows, ffn_width)
    float *scores;
    void *linear;
} Buffers;

static int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

static size_t element_size(int type) { return type == FLOAT32 ? sizeof(float) : sizeof(bf16); }

static int most(int a, int b) { return a > b ? a : b; }
static int least(int a, int b) { return a < b ? a : b; }

// The next `bytes` of scratch memory; with `base` NULL they are only counted.
static void *take(char *base, size_t *used, size_t bytes) {
    void *taken = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return taken;
}

// Buffers for `rows` rows, of which sub-layers see `chunk` at a time; returns the memory that they need.
static size_t place_buffers(const Stack *s, int rows, int chunk, int longest, char *base, Buffers *b) {
    size_t used = 0, size = element_size(s->type);
    size_t all = round_up(rows, ROW_PADDING), some = round_up(chunk, ROW_PADDING);
    b->stream = take(base, &used, all * s->stride * sizeof(float));
    b->dual = s->dual_scale ? take(base, &used, all * s->stride * sizeof(float)) : NULL;
    b->hidden = take(base, &used, all * s->stride * size);
    b->branch = take(base, &used, some * s->stride * sizeof(float));
    b->query = take(base, &used, some * s->attention_width * size);
    b->context = take(base, &used, some * s->attention_width * size);
    b->ffn = take(base, &used, some * s->ffn_width * size);
    b->scores = take(base, &used, round_up(longest, 16) * sizeof(float));
    int widest = most(s->stride, most(s->attention_width, s->ffn_width));
    b->linear = take(base, &used, linear_scratch_size(s->type, chunk, widest));
    return used;
}

static void *entry(const Stack *s, const void *cache, int64_t index) {
    return (char *)cache + index * 2 * s->attention_width * element_size(s->type);
}

static int in_vocabulary(const Stack *s, int rows, const int64_t *tokens) {
    for (int r = 0; r < rows; r++)
        if (tokens[r] < 0 || tokens[r] >= s->vocabulary) return 0;
    return 1;
}

// stream = scale * token + position (normalised in BART), dual = dual_scale * stream, and what the first layer reads.
WITH_AVX512 static void embed(const Stack *s, const Buffers *b, int rows, const int64_t *tokens,
                              const int64_t *positions) {
    for (int r = 0; r < rows; r++) {
        const float *token = s->tokens + tokens[r] * s->width;
        const float *position = s->positions ? s->positions + positions[r] * s->width : NULL;
        float *row = b->stream + (int64_t)r * s->stride;
        for (int i = 0; i < s->stride; i += 16) {
            __mmask16 lanes = i < s->width ? first_lanes(s->width - i) : 0;
            __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, token + i), _mm512_set1_ps(s->embedding_scale));
            if (position) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(lanes, position + i));
            _mm512_storeu_ps(row + i, values);
        }
    }
    if (s->embedding_norm.gain)
        add_norm(rows, s->width, s->stride, b->stream, NULL, &s->embedding_norm, 0, NULL, 0, NULL, s->type);
    if (b->dual)
        for (int64_t i = 0; i < (int64_t)rows * s->stride; i++) b->dual[i] = s->dual_scale * b->stream[i];
    add_norm(rows, s->width, s->stride, b->stream, NULL, &s->first_norm, s->keep_sum, NULL, 0, b->hidden, s->type);
}

static void join(const Stack *s, const Buffers *b, int rows, const Norm *norm) {
    add_norm(rows, s->width, s->stride, b->stream, b->branch, norm, s->keep_sum, b->dual, s->dual_scale, b->hidden,
             s->type);
}

static void attend(const Stack *s, const Buffers *b, int rows, const Linear *query, const Linear *output,
                   const void *cache, const Table *table, const Norm *norm) {
    linear(query, rows, b->hidden, IDENTITY, b->query, s->type, b->linear);
    attention(rows, s->heads, s->head_size, s->attention_width, s->type, b->query, cache, table, s->attention_scale,
              b->context, b->scores);
    linear(output, rows, b->context, IDENTITY, b->branch, FLOAT32, b->linear);
    join(s, b, rows, norm);
}

static void feed_forward(const Stack *s, const Buffers *b, int rows, const Layer *layer) {
    linear(&layer->ffn_in, rows, b->hidden, s->activation, b->ffn, s->type, b->linear);
    linear(&layer->ffn_out, rows, b->ffn, IDENTITY, b->branch, FLOAT32, b->linear);
    join(s, b, rows, &layer->after_ffn);
}

// ResiDual: hidden = main_scale * stream + norm(dual). Elsewhere the last join has left the output in `hidden`.
WITH_AVX512 static void end_stream(const Stack *s, const Buffers *b, int rows) {
    if (!b->dual) return;
    add_norm(rows, s->width, s->stride, b->dual, NULL, &s->dual_norm, 0, NULL, 0, NULL, s->type);
    for (int64_t i = 0; i < (int64_t)rows * s->stride; i += 16) {
        __m512 main = _mm512_mul_ps(_mm512_loadu_ps(b->stream + i), _mm512_set1_ps(s->main_scale));
        store(b->hidden, i, s->type, _mm512_add_ps(main, _mm512_loadu_ps(b->dual + i)));
    }
}

static Buffers from_row(const Stack *s, Buffers b, int row) {
    int64_t start = (int64_t)row * s->stride;
    b.stream += start;
    if (b.dual) b.dual += start;
    b.hidden = (char *)b.hidden + start * element_size(s->type);
    return b;
}

size_t encode_scratch_size(const Stack *s, int rows, int longest) {
    Buffers buffers;
    return place_buffers(s, rows, least(rows, CHUNK), longest, NULL, &buffers);
}

// output, (rows, stride), of all tokens of a batch without its padding; tokens see those of their line of the table.
// cache: (rows, 2 * attention_width). Returns 0 if a token is not in the vocabulary.
int encode(const Stack *s, int rows, const int64_t *tokens, const int64_t *positions, const Table *table, int longest,
           void *cache, void *output, void *scratch) {
    if (!in_vocabulary(s, rows, tokens)) return 0;
    Buffers all;
    place_buffers(s, rows, least(rows, CHUNK), longest, scratch, &all);
    all.hidden = output;
    embed(s, &all, rows, tokens, positions);
    for (const Layer *layer = s->layer; layer < s->layer + s->layers; layer++) {
        for (int row = 0; row < rows; row += CHUNK) {
            int count = least(rows - row, CHUNK);
            Buffers b = from_row(s, all, row);
            linear(&layer->key_value, count, b.hidden, IDENTITY, entry(s, cache, row), s->type, b.linear);
        }
        for (int row = 0; row < rows; row += CHUNK) {
            int count = least(rows - row, CHUNK);
            Buffers b = from_row(s, all, row);
            Table part = *table;
            part.line += row;
            attend(s, &b, count, &layer->query, &layer->attention_output, cache, &part, &layer->after_attention);
            feed_forward(s, &b, count, layer);
        }
    }
    end_stream(s, &all, rows);
    return 1;
}

typedef struct {
    int64_t *positions;       // (rows), the same for all, as are the lengths
    int32_t *lengths, *lines; // (rows)
    float *logits;            // (rows, COLUMNS)
    Tally *tallies;           // (rows)
} StepBuffers;

static size_t place_step(const Stack *s, const Memory *m, int rows, char *base, Buffers *b, StepBuffers *step) {
    size_t used = place_buffers(s, rows, rows, most(m->max_length, m->longest_source), base, b);
    step->positions = take(base, &used, rows * sizeof(int64_t));
    step->lengths = take(base, &used, rows * sizeof(int32_t));
    step->lines = take(base, &used, rows * sizeof(int32_t));
    step->logits = take(base, &used, (size_t)rows * COLUMNS * sizeof(float));
    step->tallies = take(base, &used, rows * sizeof(Tally));
    return used;
}

size_t decode_scratch_size(const Stack *s, const Memory *m, int rows) {
    Buffers buffers;
    StepBuffers step;
    return place_step(s, m, rows, NULL, &buffers, &step);
}

// Some outputs of a linear map: panels follow each other in memory.
static Linear outputs_of(const Linear *all, int first, int count) {
    Linear some = *all;
    some.outputs = count;
    some.weights = (const char *)all->weights + first * weight_bytes(all);
    some.bias += first;
    if (all->type == INT8) {
        some.scales += first;
        some.offsets += first;
    }
    return some;
}

// The vocabulary in parts, whose logits are still in the cache when their best are taken.
static void best_tokens(const Stack *s, const Buffers *b, const StepBuffers *step, int rows, int candidates,
                        float *log_probs, int64_t *ids) {
    start_candidates(rows, candidates, log_probs, ids, step->tallies);
    for (int first = 0; first < s->logits.outputs; first += COLUMNS) {
        int columns = least(s->logits.outputs - first, COLUMNS);
        Linear part = outputs_of(&s->logits, first, columns);
        linear(&part, rows, b->hidden, IDENTITY, step->logits, FLOAT32, b->linear);
        add_candidates(rows, columns, first, step->logits, candidates, log_probs, ids, step->tallies);
    }
    finish_candidates(rows, candidates, log_probs, step->tallies);
}

// One step of `rows` rows from `first`: other rows may run at the same time with scratch memory of their own.
// tokens and the outputs are those of all rows: log_probs and ids (rows, candidates), or with 0 candidates the logits
// (rows, vocabulary). Returns 0 if a token is not in the vocabulary.
int decode(const Stack *s, const Memory *m, int first, int rows, int step, int64_t position, const int64_t *tokens,
           float *logits, int candidates, float *log_probs, int64_t *ids, void *scratch) {
    if (!in_vocabulary(s, rows, tokens + first)) return 0;
    Buffers b;
    StepBuffers buffers;
    place_step(s, m, rows, scratch, &b, &buffers);
    int32_t *ancestors = m->ancestors + (int64_t)first * m->max_length;
    for (int r = 0; r < rows; r++) {
        buffers.positions[r] = position;
        buffers.lengths[r] = step + 1;
        buffers.lines[r] = r;
        ancestors[(int64_t)r * m->max_length + step] = step * m->slots + first + r;
    }
    Table self = {ancestors, m->max_length, buffers.lines, buffers.lengths};
    Table cross = {m->source_table, m->longest_source, m->sources + first, m->source_lengths};

    embed(s, &b, rows, tokens + first, buffers.positions);
    for (int i = 0; i < s->layers; i++) {
        const Layer *layer = s->layer + i;
        void *self_cache = entry(s, m->self_cache, (int64_t)i * m->max_length * m->slots);
        void *cross_cache = entry(s, m->cross_cache, (int64_t)i * m->source_entries);
        void *now = entry(s, self_cache, (int64_t)step * m->slots + first);
        linear(&layer->key_value, rows, b.hidden, IDENTITY, now, s->type, b.linear);
        attend(s, &b, rows, &layer->query, &layer->attention_output, self_cache, &self, &layer->after_attention);
        attend(s, &b, rows, &layer->cross_query, &layer->cross_output, cross_cache, &cross, &layer->after_cross);
        feed_forward(s, &b, rows, layer);
    }
    end_stream(s, &b, rows);

    if (candidates)
        best_tokens(s, &b, &buffers, rows, candidates, log_probs + (int64_t)first * candidates,
                    ids + (int64_t)first * candidates);
    else
        linear(&s->logits, rows, b.hidden, IDENTITY, logits + (int64_t)first * s->logits.outputs, FLOAT32, b.linear);
    return 1;
}
