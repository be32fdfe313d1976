// Vectors as wide as the registers of the instruction set that a library is compiled for, in the language of GCC and Clang.
#pragma once

#include <math.h>
#include <string.h>

#include "native.h"

// The instructions that have no operator. MAX(a, b) is b where one of them is not a number.
#if defined(__AVX512F__)
#include <immintrin.h>
#define VECTOR_BYTES 64
#define MAX(a, b) ((vec)_mm512_max_ps(a, b))
#define MIN(a, b) ((vec)_mm512_min_ps(a, b))
#define NEAREST(x) ((ivec)_mm512_cvtps_epi32(x))
#define REPEAT4(x) ((vec)_mm512_broadcast_f32x4(x))
#define ANY(condition) (_mm512_movepi32_mask((__m512i)(condition)) != 0)
#define LANE_BITS(count) ((__mmask16)((1u << (count)) - 1))
#define LOAD_SOME(from, count) ((vec)_mm512_maskz_loadu_ps(LANE_BITS(count), from))
#define STORE_SOME(to, count, values) _mm512_mask_storeu_ps(to, LANE_BITS(count), values)
#elif defined(__AVX2__)
#include <immintrin.h>
#define VECTOR_BYTES 32
#define MAX(a, b) ((vec)_mm256_max_ps(a, b))
#define MIN(a, b) ((vec)_mm256_min_ps(a, b))
#define NEAREST(x) ((ivec)_mm256_cvtps_epi32(x))
#define REPEAT4(x) ((vec)_mm256_set_m128(x, x))
#define ANY(condition) (_mm256_movemask_ps((__m256)(condition)) != 0)
#define LOAD_SOME(from, count) ((vec)_mm256_maskload_ps(from, (__m256i)first_lanes(count)))
#define STORE_SOME(to, count, values) _mm256_maskstore_ps(to, (__m256i)first_lanes(count), values)
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#define VECTOR_BYTES 16
#define MAX(a, b) ((vec)wasm_f32x4_pmax((v128_t)(b), (v128_t)(a)))
#define MIN(a, b) ((vec)wasm_f32x4_pmin((v128_t)(b), (v128_t)(a)))
#define NEAREST(x) __builtin_convertvector((vec)wasm_f32x4_nearest((v128_t)(x)), ivec)
#define REPEAT4(x) (x)
#define ANY(condition) (wasm_v128_any_true((v128_t)(condition)))
#define LOAD_SOME(from, count) load_copied(from, count)
#define STORE_SOME(to, count, values) memcpy(to, &(values), (count) * sizeof(float))
#else
#include <arm_neon.h>
#define VECTOR_BYTES 16
#define MAX(a, b) choose((a) > (b), a, b)
#define MIN(a, b) choose((a) < (b), a, b)
#define NEAREST(x) ((ivec)vcvtnq_s32_f32((float32x4_t)(x)))
#define REPEAT4(x) (x)
#define ANY(condition) (vmaxvq_u32((uint32x4_t)(condition)) != 0)
#define LOAD_SOME(from, count) load_copied(from, count)
#define STORE_SOME(to, count, values) memcpy(to, &(values), (count) * sizeof(float))
#endif

#define LANES (VECTOR_BYTES / 4)
#define INLINE static inline __attribute__((always_inline))

// A loop whose count is a constant after inlining: what it indexes becomes registers.
#if defined(__clang__)
#define UNROLLED(i, count) _Pragma("clang loop unroll(full)") for (int i = 0; i < (count); i++)
#else
#define UNROLLED(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)
#endif

// Of two vectors. GCC before version 12 has another name for it.
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__((a) == (b))){__VA_ARGS__})
#endif

typedef uint16_t bf16;
typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t uvec __attribute__((vector_size(VECTOR_BYTES)));
typedef bf16 half_vec __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float v4 __attribute__((vector_size(16)));
typedef union {
    vec all;
    v4 part[LANES / 4];
} Parts;

static inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The next `bytes` of scratch memory; with `base` NULL they are only counted.
static inline void *take(char *base, size_t *used, size_t bytes) {
    void *taken = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return taken;
}

INLINE vec splat(float value) { return value - (vec){0}; }
INLINE vec choose(ivec condition, vec a, vec b) { return (vec)((condition & (ivec)a) | (~condition & (ivec)b)); }
INLINE vec only(ivec condition, vec x) { return (vec)(condition & (ivec)x); }

INLINE ivec first_lanes(int64_t count) {
    const int32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    ivec lanes;
    memcpy(&lanes, numbers, sizeof lanes);
    return lanes < (int32_t)least(count, LANES);
}

// A vector from any address.
#define LOADS(name, type, values) \
    INLINE type name(const values *from) { \
        type loaded; \
        memcpy(&loaded, from, sizeof loaded); \
        return loaded; \
    }
LOADS(load_floats, vec, float)
LOADS(load_bits, ivec, void)
LOADS(load_halves, half_vec, bf16)
LOADS(load4, v4, float)

INLINE void store_floats(float *to, vec values) { memcpy(to, &values, sizeof values); }

INLINE vec load_copied(const float *from, int64_t count) {
    vec values = {0};
    memcpy(&values, from, count * sizeof(float));
    return values;
}

// The first `count` values, and zeros.
INLINE vec load_first(const float *from, int64_t count) {
    if (count >= LANES) return load_floats(from);
    return count > 0 ? LOAD_SOME(from, count) : (vec){0};
}

INLINE void store_first(float *to, int64_t count, vec values) {
    if (count >= LANES)
        store_floats(to, values);
    else if (count > 0)
        STORE_SOME(to, count, values);
}

INLINE v4 sum4(vec x) {
    Parts parts = {x};
    if (LANES == 16) return (parts.part[0] + parts.part[2]) + (parts.part[1] + parts.part[3]);
    return LANES == 8 ? parts.part[0] + parts.part[1] : parts.part[0];
}

INLINE float sum(vec x) {
    v4 y = sum4(x);
    return (y[0] + y[2]) + (y[1] + y[3]);
}

INLINE v4 largest4(vec x) {
    typedef int32_t i4 __attribute__((vector_size(16)));
    Parts parts = {x};
    v4 largest = parts.part[0];
    for (int i = 1; i < LANES / 4; i++) {
        i4 larger = parts.part[i] > largest;
        largest = (v4)((larger & (i4)parts.part[i]) | (~larger & (i4)largest));
    }
    return largest;
}

INLINE float larger(float a, float b) { return a > b ? a : b; }

INLINE float largest_lane(vec x) {
    v4 y = largest4(x);
    return larger(larger(y[0], y[2]), larger(y[1], y[3]));
}

INLINE vec widen(half_vec values) { return (vec)(__builtin_convertvector(values, uvec) << 16); }

// Rounds to the nearest bfloat16, ties away from zero.
INLINE half_vec narrow(vec values) { return __builtin_convertvector(((uvec)values + 0x8000) >> 16, half_vec); }

INLINE size_t size_of(const Type type) { return type == FLOAT32 ? 4 : 2; }

// `type` is a constant wherever these are called in a loop: the branch disappears.
INLINE vec load(const void *base, int64_t index, const Type type) {
    return type == FLOAT32 ? load_floats((const float *)base + index) : widen(load_halves((const bf16 *)base + index));
}

INLINE void store(void *base, int64_t index, const Type type, vec values) {
    half_vec small = narrow(values);
    if (type == FLOAT32)
        store_floats((float *)base + index, values);
    else
        memcpy((bf16 *)base + index, &small, sizeof small);
}

// e^x with a relative error of 1e-7: 2^n * e^r with |r| <= ln(2) / 2, polynomial of Cephes' expf.
INLINE vec exponential(vec x) {
    x = MIN(splat(88), MAX(splat(-87.3f), x));  // in this order NaN remains NaN
    const float rounding = 12582912;  // adding it rounds to an integer, which the last bits of the sum then hold
    vec shifted = x * 1.44269504088896341f + rounding, n = shifted - rounding;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return p * (vec)(((ivec)shifted << 23) + (127 << 23));
}

// erf(x) with an absolute error of 1.5e-7: Abramowitz & Stegun 7.1.26.
INLINE vec error_function(vec x) {
    vec t = 1.0f / ((vec)((ivec)x & 0x7fffffff) * 0.3275911f + 1.0f);
    vec p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vec result = 1.0f - (p * t) * exponential(-(x * x));
    return (vec)((ivec)result | ((ivec)x & (int32_t)0x80000000));
}

// GELU or SILU.
INLINE vec curved(vec x, Activation activation) {
    if (activation == GELU) return (x * 0.5f) * (error_function(x * 0.70710678118654752f) + 1.0f);
    return x / (exponential(-x) + 1.0f);
}

// Of 16 sums, in the same order with every width of vectors.
INLINE float sum16(vec sums[16 / LANES]) {
    for (int half = 8 / LANES; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[half + i];
    return sum(sums[0]);
}

// sum (a - shift) (b - shift)
INLINE float products(const float *a, const float *b, int width, float shift) {
    vec sums[16 / LANES] = {{0}};
    for (int i = 0; i < width; i += 16)
        UNROLLED(v, 16 / LANES) {
            int at = i + v * LANES;
            vec all = (load_first(a + at, width - at) - shift) * (load_first(b + at, width - at) - shift);
            sums[v] += width - at < LANES ? only(first_lanes(width - at), all) : all;
        }
    return sum16(sums);
}

INLINE float dot(const float *a, const float *b, int width) { return products(a, b, width, 0); }

// 1 / sqrt(variance + epsilon), with the variance from differences: from squares it would lose digits.
INLINE float inverse_deviation(const float *values, int width, float mean, float epsilon) {
    return 1 / sqrtf(products(values, values, width, mean) / width + epsilon);
}

// LANES rows of LANES values of 32 bits become columns: each round brings together rows that are LANES / 2 apart.
#if LANES == 16
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES 0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif
INLINE void transpose_tile(ivec rows[LANES]) {
    ivec mixed[LANES];
    for (int round = 1; round < LANES; round *= 2) {
        UNROLLED(i, LANES / 2) {
            mixed[2 * i] = SHUFFLE(rows[i], rows[i + LANES / 2], LOW_HALVES);
            mixed[2 * i + 1] = SHUFFLE(rows[i], rows[i + LANES / 2], HIGH_HALVES);
        }
        memcpy(rows, mixed, sizeof mixed);
    }
}
