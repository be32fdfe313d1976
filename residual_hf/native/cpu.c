// What this CPU and this system can run: a library of its own, compiled for any CPU of the architecture, and a part of
// the others, so that each can be loaded alone.

#include "native.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

// Of leaf 7.
static int has(unsigned part, int of, unsigned bits) {
    unsigned found[4];
    return __get_cpuid_count(7, part, &found[EAX], &found[EBX], &found[ECX], &found[EDX]) && (found[of] & bits) == bits;
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

// The compiler's function also asks whether the system keeps the registers when it switches between threads.
#define SUPPORTS __builtin_cpu_supports

int can_run(InstructionSet set) {
    enum { VNNI = 1 << 4, BF16 = 1 << 5, BF16_TILES_INT8 = 1 << 22 | 1 << 24 | 1 << 25 };
    __builtin_cpu_init();
    switch (set) {
    case AVX2: return SUPPORTS("avx2") && SUPPORTS("fma");
    case AVX_VNNI: return can_run(AVX2) && has(1, EAX, VNNI);
    case AVX512:
        return can_run(AVX2) && SUPPORTS("avx512f") && SUPPORTS("avx512bw") && SUPPORTS("avx512dq") &&
               SUPPORTS("avx512vl") && SUPPORTS("avx512vnni");
    case AVX512_BF16: return can_run(AVX512) && has(1, EAX, BF16);
    case AMX: return can_run(AVX512_BF16) && has(0, EDX, BF16_TILES_INT8) && lends_tiles();
    default: return 0;
    }
}
#else
#if defined(__linux__)
#include <sys/auxv.h>
#define HAS_DOTPROD ((getauxval(AT_HWCAP) & 1 << 20) != 0)
#elif defined(__APPLE__)
#define HAS_DOTPROD 1
#else
#define HAS_DOTPROD 0
#endif

int can_run(InstructionSet set) { return set == NEON || (set == NEON_DOTPROD && HAS_DOTPROD); }
#endif
