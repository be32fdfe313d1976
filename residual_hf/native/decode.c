// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// One step of the decoder, in one call.

#include "stack.h"

enum { COLUMNS = 1024 };  // logits that are in the cache together

typedef struct {
    const Stack *stack;
    const Memory *memory;
    const Step *step;
    char *scratch;
    size_t size;  // of a part
} Work;

typedef struct {
    int64_t *positions;        // (rows)
    int32_t *lengths, *lines;  // (rows)
    float *logits;             // (rows, COLUMNS)
    Tally *tallies;            // (rows)
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

// Of some rows, from the outputs `start` to `end`, in parts whose logits are still in the cache when their best are taken.
static void best_tokens(const Linear *all, int start, int end, const Buffers *b, const StepBuffers *step, int rows,
                        int candidates, float *log_probs, int64_t *ids) {
    start_candidates(rows, candidates, log_probs, ids, step->tallies);
    for (int first = start; first < end; first += COLUMNS) {
        int columns = least(end - first, COLUMNS);
        Linear part = outputs_of(all, first, columns);
        linear(&part, rows, b->hidden, IDENTITY, step->logits, FLOAT32, b->linear);
        add_candidates(rows, columns, first, step->logits, candidates, log_probs, ids, step->tallies);
    }
    finish_candidates(rows, candidates, log_probs, step->tallies);
}

static void decode_rows(const void *argument, int64_t first, int64_t end, int part) {
    const Work *work = argument;
    const Stack *s = work->stack;
    const Memory *m = work->memory;
    const Step *step = work->step;
    int rows = (int)(end - first);
    int64_t now = step->entry + first;
    Buffers b;
    StepBuffers buffers;
    place_step(s, m, rows, work->scratch + part * work->size, &b, &buffers);

    int32_t *ancestors = m->ancestors + first * m->max_length;
    for (int r = 0; r < rows; r++) {
        int32_t length = m->lengths[first + r];
        buffers.positions[r] = step->position + length;
        buffers.lengths[r] = length + 1;
        buffers.lines[r] = r;
        ancestors[(int64_t)r * m->max_length + length] = (int32_t)now + r;
    }
    Table self = {ancestors, m->max_length, buffers.lines, buffers.lengths};
    Table cross = {m->source_table, m->longest_source, m->sources + first, m->source_lengths};

    embed(s, &b, rows, step->tokens + first, buffers.positions);
    for (int i = 0; i < s->layers; i++) {
        const Layer *layer = s->layer + i;
        void *cross_cache = cache_entry(s, m->cross_cache, (int64_t)i * m->source_entries);
        project(s, &b, rows, &layer->own, b.hidden, cache_entry(s, m->self_cache[i], now));
        attend(s, &b, rows, &layer->own, m->self_cache[i], &self, b.own_sums, i == 0);
        if (m->cross_cache) attend(s, &b, rows, &layer->cross, cross_cache, &cross, b.cross_sums, i == 0);
        feed_forward(s, &b, rows, layer);
    }

    int64_t outputs = s->logits.outputs, count = step->candidates;
    const int32_t *sources = m->sources + first;
    if (!count) linear(&s->logits, rows, b.hidden, IDENTITY, step->logits + first * outputs, FLOAT32, b.linear);
    for (int row = 0, next; row < rows && count; row = next) {  // all at once, or with lists those of a sentence
        const int32_t all[] = {0, (int32_t)outputs}, *list = m->listed ? m->list_starts + sources[row] : all;
        for (next = row + 1; next < rows && (!m->listed || sources[next] == sources[row]);) next++;
        Buffers own = from_row(s, b, row);
        best_tokens(m->listed ? m->listed : &s->logits, list[0], list[1], &own, &buffers, next - row, count,
                    step->log_probs + (first + row) * count, step->ids + (first + row) * count);
    }
}

static size_t part_size(const Stack *s, const Memory *m, int rows, int parts) {
    Buffers buffers;
    StepBuffers step;
    return place_step(s, m, (rows + parts - 1) / parts, NULL, &buffers, &step);
}

size_t decode_scratch_size(const Stack *s, const Memory *m, int rows, int parts) {
    return parts * part_size(s, m, rows, parts);
}

// Fills the outputs of the step. Parts of the rows run at the same time. Returns 0 if a token is not in the
// vocabulary.
int decode(const Stack *s, const Memory *m, const Step *step, int parts, void *scratch) {
    if (!in_vocabulary(s, step->rows, step->tokens)) return 0;
    Work work = {s, m, step, scratch, part_size(s, m, step->rows, parts)};
    run_rows(&work, step->rows, parts, decode_rows);
    return 1;
}
