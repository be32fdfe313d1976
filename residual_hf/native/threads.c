// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Parts of a batch on several cores. Threads live for one call, so that a fork loses none.

#include <pthread.h>

#include "native.h"

// Call `run` on each of `count` parts of `size` bytes, the first one on this thread.
void run_parts(int count, void *parts, size_t size, void *(*run)(void *part)) {
    pthread_t threads[MOST_THREADS];
    int started = 0;
    for (int i = 1; i < count; i++) {
        void *part = (char *)parts + i * size;
        if (started < MOST_THREADS && pthread_create(&threads[started], NULL, run, part) == 0)
            started++;
        else
            run(part);
    }
    run(parts);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

// Call `run` on the `Rows` of each thread.
void run_rows(const void *work, int64_t rows, int threads, void *(*run)(void *rows)) {
    Rows parts[MOST_THREADS];
    int count = threads < MOST_THREADS ? threads : MOST_THREADS;
    for (int i = 0; i < count; i++) parts[i] = (Rows){work, rows * i / count, rows * (i + 1) / count, i};
    run_parts(count, parts, sizeof(Rows), run);
}
