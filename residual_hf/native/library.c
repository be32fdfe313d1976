// What Python has to know about a library, its threads, and a checksum over all weights of a model, as fast as memory is
// read. The threads are those of PyTorch: after its operations they wait for the next one in a busy loop, which would take
// the cores from threads of our own. A process that was forked does not have them, and creates threads for each call.

#if !defined(__wasm__)
#include <pthread.h>
#endif
#include <stdatomic.h>
#include <string.h>

#include "native.h"

enum { MOST_THREADS = 256 };

// SOURCES is the checksum of all sources; `structures.py` looks for it in the file of a library.
#define TEXT(number) #number
#define MARK(number) "sources " TEXT(number) "."
__attribute__((used)) const char sources_mark[] = MARK(SOURCES);

// INTERFACE is the checksum of native.h.
uint32_t interface_version(void) { return INTERFACE; }

InstructionSet instruction_set(void) { return INSTRUCTION_SET; }

#if defined(__wasm__)  // one thread
void run_rows(const void *work, int64_t rows, int parts, Run *run) {
    for (int i = 0; i < parts; i++) run(work, rows * i / parts, rows * (i + 1) / parts, i);
}
#else
typedef struct {
    const void *work;
    int64_t rows;
    int parts;
    Run *run;
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
    for (int i; (i = atomic_fetch_add(&work->next, 1)) < work->parts;)
        work->run(work->work, work->rows * i / work->parts, work->rows * (i + 1) / work->parts, i);
}

static void *run_in_new_thread(void *work) {
    run_next_parts(work);
    return NULL;
}

// Call `run` on equal parts of the rows, at the same time.
void run_rows(const void *of_all, int64_t rows, int parts, Run *run) {
    Work work = {of_all, rows, parts, run, 0};
    if (team && parts > 1) {
        team(run_next_parts, &work, 0, 0);
        return;
    }
    pthread_t threads[MOST_THREADS];
    int started = 0;
    while (started < parts - 1 && started < MOST_THREADS &&
           pthread_create(&threads[started], NULL, run_in_new_thread, &work) == 0)
        started++;
    run_next_parts(&work);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}
#endif

enum { MIXED = 32 };
static const uint64_t FACTOR = 0x9E3779B185EBCA87;

// A bijection of `lane` for each word, and of `word` for each lane: no change of a single word is missed.
static inline uint64_t mix(uint64_t lane, uint64_t word) {
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
