// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// A checksum over all weights of a model, as fast as memory is read.

#include <string.h>

#include "vector.h"

enum { MIXED = 32 };
static const uint64_t FACTOR = 0x9E3779B185EBCA87;

// A bijection of `lane` for each word, and of `word` for each lane: no change of a single word is missed.
INLINE uint64_t mix(uint64_t lane, uint64_t word) {
    lane ^= word;
    return (lane ^ lane >> 29) * FACTOR;
}

static uint64_t checksum_of(const char *data, int64_t bytes) {
    uint64_t lanes[MIXED] = {0}, words[MIXED], result = bytes;
    for (; bytes > 0; data += sizeof words, bytes -= sizeof words) {
        if (bytes < (int64_t)sizeof words) memset(words, 0, sizeof words);
        memcpy(words, data, bytes < (int64_t)sizeof words ? bytes : (int64_t)sizeof words);
        for (int i = 0; i < MIXED; i++) lanes[i] = mix(lanes[i], words[i]);
    }
    for (int i = 0; i < MIXED; i++) result = mix(result, lanes[i]);
    return result;
}

static void checksum_tensors(const void *work, int64_t first, int64_t end, int thread) {
    const Checksums *all = work;
    for (int64_t i = first; i < end; i++) all->checksum[i] = checksum_of(all->data[i], all->bytes[i]);
}

void checksums(const Checksums *all) { run_rows(all, all->tensors, all->threads, checksum_tensors); }
