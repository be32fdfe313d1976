// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The encoder, or a decoder alone that reads prompts, in one call.

#include "stack.h"

enum { CHUNK = 512 };  // rows whose activations are in the cache together

typedef struct {
    const Stack *stack;
    const Source *source;
    int first, rows;
    char *scratch;
} Part;

static void *encode_part(void *argument) {
    const Part *part = argument;
    const Stack *s = part->stack;
    const Source *source = part->source;
    Buffers all;
    place_buffers(s, part->rows, least(part->rows, CHUNK), source->longest, part->scratch, &all);
    all.hidden = (char *)source->output + (size_t)part->first * s->stride * element_size(s);
    embed(s, &all, part->rows, source->tokens + part->first, source->positions + part->first);
    for (int i = 0; i < s->layers; i++) {
        const Layer *layer = s->layer + i;
        for (int row = 0; row < part->rows; row += CHUNK) {
            Buffers b = from_row(s, all, row);
            void *cache = cache_entry(s, source->cache[i], part->first + row);
            project(s, &b, least(part->rows - row, CHUNK), &layer->own, b.hidden, cache);
        }
        for (int row = 0; row < part->rows; row += CHUNK) {
            int rows = least(part->rows - row, CHUNK);
            Buffers b = from_row(s, all, row);
            Table table = source->table;
            table.line += part->first + row;
            attend(s, &b, rows, &layer->own, source->cache[i], &table, b.own_sums, i == 0);
            feed_forward(s, &b, rows, layer);
        }
    }
    return NULL;
}

static size_t part_size(const Stack *s, const Source *source, int parts, const int32_t *starts) {
    Buffers buffers;
    int rows = 0;
    for (int i = 0; i < parts; i++) rows = most(rows, starts[i + 1] - starts[i]);
    return place_buffers(s, rows, least(rows, CHUNK), source->longest, NULL, &buffers);
}

size_t encode_scratch_size(const Stack *s, const Source *source, int parts, const int32_t *starts) {
    return parts * (sizeof(Part) + part_size(s, source, parts, starts));
}

// Fills source->output. Parts of the rows run at the same time: part i begins at the row starts[i], with a sentence.
// Returns 0 if a token is not in the vocabulary.
int encode(const Stack *s, const Source *source, int parts, const int32_t *starts, void *scratch) {
    if (!in_vocabulary(s, starts[parts], source->tokens)) return 0;
    size_t size = part_size(s, source, parts, starts);
    Part *part = (Part *)((char *)scratch + parts * size);
    for (int i = 0; i < parts; i++)
        part[i] = (Part){s, source, starts[i], starts[i + 1] - starts[i], (char *)scratch + i * size};
    run_parts(parts, part, sizeof(Part), encode_part);
    return 1;
}
