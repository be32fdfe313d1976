// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// What this CPU and this system can run.

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native.h"

static InstructionSet enabled = NONE;

static int has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

static int has_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }

// Linux lends the tile registers to processes that ask for them.
static int has_amx(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, BF16 = 1 << 22, TILES = 1 << 24, INT8_ = 1 << 25 };
    unsigned eax, ebx, ecx, edx, needed = BF16 | TILES | INT8_;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & needed) == needed &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

// INTERFACE is the checksum of native.h.
uint32_t interface_version(void) { return INTERFACE; }

// Use the best instruction set up to `most`; returns which one that is.
InstructionSet enable_instruction_set(InstructionSet most) {
    enabled = NONE;
    if (most >= AVX512 && has_avx512()) enabled = AVX512;
    if (most >= AVX512_BF16 && enabled && has_bf16()) enabled = AVX512_BF16;
    if (most >= AMX && enabled && has_amx()) enabled = AMX;
    return enabled;
}

InstructionSet instruction_set(void) { return enabled; }
