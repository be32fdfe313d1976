// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What this CPU and this system can run: a library of its own, compiled for any CPU of the architecture.

#include "native.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

static int has(unsigned leaf, unsigned part, int of, unsigned bits) {
    unsigned found[4];
    return __get_cpuid_count(leaf, part, &found[EAX], &found[EBX], &found[ECX], &found[EDX]) &&
           (found[of] & bits) == bits;
}

// Whether the system keeps these parts of the registers when it switches between threads.
static int keeps(unsigned parts) {
    enum { OSXSAVE = 1 << 27 };
    if (!has(1, 0, ECX, OSXSAVE)) return 0;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & parts) == parts;
}

// Linux lends the tile registers to processes that ask for them.
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

static int lends_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int lends_tiles(void) { return 0; }
#endif

int can_run(InstructionSet set) {
    enum { FMA = 1 << 12, AVX2_ = 1 << 5, OF_AVX = 0x06, OF_AVX512 = 0xe6, VNNI = 1 << 11 };
    enum { F = 1 << 16, DQ = 1 << 17, BW = 1 << 30, BF16_TILES_INT8 = 1 << 22 | 1 << 24 | 1 << 25 };
    const unsigned vl = 1u << 31;
    switch (set) {
    case AVX2: return has(1, 0, ECX, FMA) && has(7, 0, EBX, AVX2_) && keeps(OF_AVX);
    case AVX_VNNI: return can_run(AVX2) && has(7, 1, EAX, 1 << 4);
    case AVX512: return can_run(AVX2) && has(7, 0, EBX, F | DQ | BW | vl) && has(7, 0, ECX, VNNI) && keeps(OF_AVX512);
    case AVX512_BF16: return can_run(AVX512) && has(7, 1, EAX, 1 << 5);
    case AMX: return can_run(AVX512_BF16) && has(7, 0, EDX, BF16_TILES_INT8) && lends_tiles();
    default: return 0;
    }
}
#else
#if defined(__linux__)
#include <sys/auxv.h>

static int has_dotprod(void) {
    enum { ASIMDDP = 1 << 20 };
    return (getauxval(AT_HWCAP) & ASIMDDP) != 0;
}
#elif defined(__APPLE__)
static int has_dotprod(void) { return 1; }
#else
static int has_dotprod(void) { return 0; }
#endif

int can_run(InstructionSet set) { return set == NEON || (set == NEON_DOTPROD && has_dotprod()); }
#endif
