// What the matrix products share: blocks of rows, and the products of numbers of less than 32 bits.
#pragma once

#include "vector.h"

enum { AHEAD = 4096 };  // bytes by which weights are fetched before their use: they come from far

typedef struct {
    void *values;  // (rows, linear->outputs)
    Type type;
    Activation activation;
    const float *row_scales;  // INT8: what one unit of an input row is worth
} Output;

// A block of sums stays in registers: of 32 with AVX-512 and NEON, of 16 with AVX2. A panel has the weights of its columns.
enum { MOST_ROWS = LANES == 16 ? 12 : 6, VECTORS = LANES == 4 ? 4 : 2, PANEL = VECTORS * LANES };

// 32 bits of weights of an output are multiplied in one or more steps, each with 32 bits of an input row. Instructions
// that take unsigned inputs get them plus INT8_OFFSET; `finish` subtracts what that adds to a sum.
#if defined(__AVX512VNNI__)
enum { INT8_STEPS = 1, INT8_OFFSET = 128 };
typedef uint8_t Byte;
#define DOT_INT8(sums, inputs, weights) _mm512_dpbusd_epi32((__m512i)(sums), (__m512i)(inputs), (__m512i)(weights))
#elif defined(__AVXVNNI__)
enum { INT8_STEPS = 1, INT8_OFFSET = 128 };
typedef uint8_t Byte;
#define DOT_INT8(sums, inputs, weights) _mm256_dpbusd_avx_epi32((__m256i)(sums), (__m256i)(inputs), (__m256i)(weights))
#elif defined(__AVX2__)  // the even bytes as 16 bits, then the odd ones: products of bytes would be saturated
enum { INT8_STEPS = 2, INT8_OFFSET = 0 };
typedef int16_t Byte;
INLINE ivec DOT_INT8(ivec sums, ivec inputs, ivec weights) {
    sums += (ivec)_mm256_madd_epi16((__m256i)inputs, (__m256i)weights);
    __asm__("" : "+x"(sums));  // in this order: GCC would add the products of two steps first, and lack registers
    return sums;
}
#elif defined(__wasm_simd128__)
enum { INT8_STEPS = 2, INT8_OFFSET = 0 };
typedef int16_t Byte;
#define DOT_INT8(sums, inputs, weights) ((ivec)(sums) + (ivec)wasm_i32x4_dot_i16x8((v128_t)(inputs), (v128_t)(weights)))
#elif defined(__ARM_FEATURE_DOTPROD)
enum { INT8_STEPS = 1, INT8_OFFSET = 0 };
typedef int8_t Byte;
#define DOT_INT8(sums, inputs, weights) vdotq_s32((int32x4_t)(sums), (int8x16_t)(weights), (int8x16_t)(inputs))
#else
enum { INT8_STEPS = 4, INT8_OFFSET = 0 };
typedef float Byte;
#define DOT_INT8(sums, inputs, weights) ((vec)(inputs) * (vec)(weights) + (vec)(sums))
#endif
#if defined(__AVX512BF16__)
enum { BF16_STEPS = 1 };
#define DOT_BF16(sums, inputs, weights) _mm512_dpbf16_ps((__m512)(sums), (__m512bh)(inputs), (__m512bh)(weights))
#else
enum { BF16_STEPS = 2 };  // of inputs that are widened
#endif

void gemm_amx(const Linear *linear, int rows, const void *input, const Output *output);

// Outputs from a block of sums, (rows, PANEL): integers for INT8 where its instructions give them, else floats.
void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                  const ivec sums[][VECTORS]);

// Call `block` with the number of rows as a constant: with its loops unrolled, sums are registers.
#define CASE_OF_ROWS(rows, block, ...) \
    case rows: \
        if (rows < MOST_ROWS) block(rows, __VA_ARGS__); \
        break;
#define WITH_CONSTANT_ROWS(rows, block, ...) \
    switch (rows) { \
    CASE_OF_ROWS(1, block, __VA_ARGS__) \
    CASE_OF_ROWS(2, block, __VA_ARGS__) \
    CASE_OF_ROWS(3, block, __VA_ARGS__) \
    CASE_OF_ROWS(4, block, __VA_ARGS__) \
    CASE_OF_ROWS(5, block, __VA_ARGS__) \
    CASE_OF_ROWS(7, block, __VA_ARGS__) \
    CASE_OF_ROWS(8, block, __VA_ARGS__) \
    CASE_OF_ROWS(9, block, __VA_ARGS__) \
    CASE_OF_ROWS(10, block, __VA_ARGS__) \
    CASE_OF_ROWS(11, block, __VA_ARGS__) \
    case 6: block(6, __VA_ARGS__); break; \
    default: block(MOST_ROWS, __VA_ARGS__); \
    }

// Of the weights of one output.
static inline size_t weight_bytes(const Linear *linear) {
    return (size_t)linear->inputs * (linear->type == FLOAT32 ? 4 : linear->type == BFLOAT16 ? 2 : 1);
}
