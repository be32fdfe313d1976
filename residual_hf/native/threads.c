// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// Parts of a batch on several cores.
//
// The threads are those of PyTorch: after its operations they wait for the next one in a busy loop, which would take
// the cores from threads of our own. A process that was forked does not have them, and creates threads for each call.

#include <pthread.h>
#include <stdatomic.h>

#include "native.h"

typedef struct {
    int count;
    char *parts;
    size_t size;
    void *(*run)(void *part);
    atomic_int next;
} Work;

static Team *team;

__attribute__((unused)) static void leave_team(void) { team = NULL; }

// `of_pytorch` is GOMP_parallel of its OpenMP, or NULL.
void join_team(Team *of_pytorch) {
    team = of_pytorch;
    pthread_atfork(NULL, NULL, leave_team);  // nothing on Windows, which has no fork
}

static void run_next_parts(void *argument) {
    Work *work = argument;
    for (int i; (i = atomic_fetch_add(&work->next, 1)) < work->count;) work->run(work->parts + i * work->size);
}

static void *run_in_new_thread(void *work) {
    run_next_parts(work);
    return NULL;
}

// Call `run` on each of `count` parts of `size` bytes.
void run_parts(int count, void *parts, size_t size, void *(*run)(void *part)) {
    Work work = {count, parts, size, run, 0};
    if (team && count > 1) {
        team(run_next_parts, &work, 0, 0);
        return;
    }
    pthread_t threads[MOST_THREADS];
    int started = 0;
    while (started < count - 1 && started < MOST_THREADS &&
           pthread_create(&threads[started], NULL, run_in_new_thread, &work) == 0)
        started++;
    run_next_parts(&work);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

// Call `run` on the `Rows` of each thread.
void run_rows(const void *work, int64_t rows, int threads, void *(*run)(void *rows)) {
    Rows parts[MOST_THREADS];
    int count = threads < MOST_THREADS ? threads : MOST_THREADS;
    for (int i = 0; i < count; i++) parts[i] = (Rows){work, rows * i / count, rows * (i + 1) / count, i};
    run_parts(count, parts, sizeof(Rows), run);
}
