// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The encoder, or a decoder alone that reads prompts, in one call.

#include "stack.h"

enum { CHUNK = 512 };  // rows whose activations are in the cache together

typedef struct {
    const Stack *stack;
    const Source *source;
    const int32_t *starts;
    char *scratch;
    size_t size;  // of a part
} Work;

static void encode_part(const void *argument, int64_t part, int64_t end, int thread) {
    const Work *work = argument;
    const Stack *s = work->stack;
    const Source *source = work->source;
    int first = work->starts[part], count = work->starts[part + 1] - first;
    Buffers all;
    place_buffers(s, count, least(count, CHUNK), source->longest, work->scratch + part * work->size, &all);
    all.hidden = (char *)source->output + (size_t)first * s->stride * element_size(s);
    embed(s, &all, count, source->tokens + first, source->positions + first);
    for (int i = 0; i < s->layers; i++) {
        const Layer *layer = s->layer + i;
        for (int row = 0; row < count; row += CHUNK) {
            Buffers b = from_row(s, all, row);
            void *cache = cache_entry(s, source->cache[i], first + row);
            project(s, &b, least(count - row, CHUNK), &layer->own, b.hidden, cache);
        }
        for (int row = 0; row < count; row += CHUNK) {
            int rows = least(count - row, CHUNK);
            Buffers b = from_row(s, all, row);
            Table table = source->table;
            table.line += first + row;
            attend(s, &b, rows, &layer->own, source->cache[i], &table, b.own_sums, i == 0);
            feed_forward(s, &b, rows, layer);
        }
    }
}

static size_t part_size(const Stack *s, const Source *source, int parts, const int32_t *starts) {
    Buffers buffers;
    int rows = 0;
    for (int i = 0; i < parts; i++) rows = most(rows, starts[i + 1] - starts[i]);
    return place_buffers(s, rows, least(rows, CHUNK), source->longest, NULL, &buffers);
}

size_t encode_scratch_size(const Stack *s, const Source *source, int parts, const int32_t *starts) {
    return parts * part_size(s, source, parts, starts);
}

// Fills source->output. Parts of the rows run at the same time: part i begins at the row starts[i], with a sentence.
// Returns 0 if a token is not in the vocabulary.
int encode(const Stack *s, const Source *source, int parts, const int32_t *starts, void *scratch) {
    if (!in_vocabulary(s, starts[parts], source->tokens)) return 0;
    Work work = {s, source, starts, scratch, part_size(s, source, parts, starts)};
    run_rows(&work, parts, parts, encode_part);
    return 1;
}
