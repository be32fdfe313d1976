// Repeat calls that `tests/support/recorded_calls.py` recorded on another CPU, and compare what they leave in memory.
//
//     replay LIBRARY CALLS

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, IGNORED = 0, FLOATS = 1, BFLOATS = 2 };

typedef struct {
    char name[32];
    float floats[2];
    int64_t returns, result, rounded, arguments, blocks, pointers;
} Call;

typedef struct {
    int64_t size, kind;
    char *values, *expected;
} Block;

// Integers and floats are passed in registers of their own, on x86-64 and on ARM.
typedef int64_t Function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         float, float);

static FILE *file;

static void get(void *to, size_t bytes) {
    if (fread(to, 1, bytes, file) != bytes) exit(3);
}

static char *get_new(size_t bytes) {
    char *to = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    get(to, bytes);
    return to;
}

static float value_at(const Block *b, const char *values, int64_t i) {
    uint32_t bits = 0;
    if (b->kind == BFLOATS)
        memcpy((char *)&bits + 2, values + 2 * i, 2);
    else
        memcpy(&bits, values + 4 * i, 4);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// How many numbers differ: integers at all, floats by more than a part of their size and of that of the others.
static int64_t differences(const Block *b, float tolerance) {
    int64_t width = b->kind == BFLOATS ? 2 : 4, count = b->size / width, found = 0, finite = 0;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        float value = value_at(b, b->expected, i);
        if (fabsf(value) < 1e30f) squares += (double)value * value, finite++;
    }
    float usual = finite ? sqrt(squares / finite) : 0;
    if (b->kind == BFLOATS && tolerance < 0.02f) tolerance = 0.02f;
    for (int64_t i = 0; i < count; i++) {
        if (!memcmp(b->values + width * i, b->expected + width * i, width)) continue;
        float actual = value_at(b, b->values, i), expected = value_at(b, b->expected, i);
        if (isnan(actual) && isnan(expected)) continue;
        int integers = b->kind > BFLOATS && fabsf(actual) < 1e-30f && fabsf(expected) < 1e-30f;
        found += integers || !(fabsf(actual - expected) <= tolerance * (fabsf(expected) + usual));
    }
    return found;
}

static int replay(void *library, const Call *call) {
    int64_t arguments[10] = {0}, places[10][2], pointer[4];
    Block blocks[MOST];
    if (call->arguments > 10 || call->blocks > MOST) exit(3);
    for (int64_t i = 0; i < call->arguments; i++) get(places[i], sizeof places[i]);
    for (int64_t i = 0; i < call->blocks; i++) {
        get(&blocks[i], 2 * sizeof(int64_t));
        blocks[i].values = get_new(blocks[i].size);
        blocks[i].expected = get_new(blocks[i].size);
    }
    for (int64_t i = 0; i < call->pointers; i++) {
        get(pointer, sizeof pointer);
        char *target = blocks[pointer[2]].values + pointer[3];
        memcpy(blocks[pointer[0]].values + pointer[1], &target, sizeof target);
        memcpy(blocks[pointer[0]].expected + pointer[1], &target, sizeof target);
    }
    for (int64_t i = 0; i < call->arguments; i++)
        arguments[i] = places[i][1] < 0 ? places[i][0] : (int64_t)blocks[places[i][1]].values + places[i][0];
    Function *function = (Function *)dlsym(library, call->name);
    if (!function) exit(4);
    const int64_t *a = arguments;
    int64_t result = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], call->floats[0],
                              call->floats[1]);
    int64_t wrong = call->returns && (int32_t)result != (int32_t)call->result;
    for (int64_t i = 0; i < call->blocks; i++) {
        int64_t found = blocks[i].kind == IGNORED ? 0 : differences(&blocks[i], call->rounded ? 0.03f : 2e-5f);
        if (found) printf("%s: %ld of %ld bytes differ, kind %ld\n", call->name, (long)found, (long)blocks[i].size, (long)blocks[i].kind);
        wrong += found;
        free(blocks[i].values);
        free(blocks[i].expected);
    }
    return wrong != 0;
}

int main(int count, char **arguments) {
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    file = count == 3 ? fopen(arguments[2], "rb") : NULL;
    if (!library || !file) return fprintf(stderr, "%s\n", count == 3 ? dlerror() : "replay LIBRARY CALLS"), 2;
    int calls = 0, wrong = 0;
    for (Call call; fread(&call, sizeof call, 1, file) == 1; calls++) wrong += replay(library, &call);
    printf("%d calls, %d differ\n", calls, wrong);
    return wrong || !calls;
}
