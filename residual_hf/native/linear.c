// A linear map: inputs in the form that the matrix product takes, the product, and outputs from its sums.
//
// 32 bits of weights are 1 float, 2 bfloat16 or 4 bytes; a step of the product takes 32 bits of each input row. Every sum
// is made in the same order however many rows there are: a sentence has the same result in any batch.

#include "gemm.h"

// Magnitudes of bfloat16 have the order of their bits. NaN is the largest, which floats would lose.
INLINE float largest_magnitude(const bf16 *row, int width) {
    typedef int16_t shorts __attribute__((vector_size(VECTOR_BYTES)));
    shorts largest = {0};
    for (int i = 0; i < width; i += 2 * LANES) {
        shorts bits = (shorts)load_bits(row + i) & 0x7fff, larger = bits > largest;
        largest = (larger & bits) | (~larger & largest);
    }
    int16_t found = 0;
    for (int i = 0; i < 2 * LANES; i++) found = largest[i] > found ? largest[i] : found;
    return widen((half_vec){found})[0];
}

// With two steps, the product reads the even ones of four inputs before the odd ones.
INLINE ivec in_steps(ivec inputs) {
#if LANES == 8
    if (INT8_STEPS == 2) return SHUFFLE(inputs, inputs, 0, 2, 1, 3, 4, 6, 5, 7);
#elif LANES == 4
    if (INT8_STEPS == 2) return SHUFFLE(inputs, inputs, 0, 2, 1, 3);
#endif
    return inputs;
}

// Rows of INT8_OFFSET + x / scale, with scale = max|x| / 127.
static void quantize(int rows, int width, const bf16 *input, Byte *output, float *scales) {
    typedef Byte Bytes __attribute__((vector_size(LANES * sizeof(Byte))));
    for (int r = 0; r < rows; r++, input += width, output += width) {
        float largest = largest_magnitude(input, width);
        float factor = largest > 0 ? 127 / largest : 0;
        scales[r] = largest / 127;
        for (int i = 0; i < width; i += LANES) {
            ivec values = NEAREST(load(input, i, BFLOAT16) * factor) + INT8_OFFSET;
            Bytes bytes = __builtin_convertvector(in_steps(values), Bytes);
            memcpy(output + i, &bytes, sizeof bytes);
        }
    }
}

INLINE void finish(const Linear *linear, const Output *output, int row, int rows, int column,
                   const ivec sums[][VECTORS], const Type type) {
    const Activation activation = output->activation;
    const vec smallest = splat(activation == RELU ? 0 : -INFINITY);
    UNROLLED(v, VECTORS) {
        int at = column + v * LANES;
        vec bias = load_floats(linear->bias + at), scales = type == INT8 ? load_floats(linear->scales + at) : bias;
        ivec offsets = type == INT8 && INT8_OFFSET != 0 ? load_bits(linear->offsets + at) : (ivec){0};
        for (int r = 0; r < rows; r++) {
            vec values = (vec)sums[r][v];
            if (type == INT8) {
                if (INT8_STEPS < 4) values = __builtin_convertvector(sums[r][v] - offsets, vec);
                values *= output->row_scales[row + r] * scales;
            }
            values += bias;
            values = activation > RELU ? curved(values, activation) : MAX(smallest, values);
            store(output->values, (int64_t)(row + r) * linear->outputs + at, output->type, values);
        }
    }
}

void finish_block(const Linear *linear, const Output *output, int row, int rows, int column,
                  const ivec sums[][VECTORS]) {
    if (linear->type == INT8)
        finish(linear, output, row, rows, column, sums, INT8);
    else
        finish(linear, output, row, rows, column, sums, FLOAT32);
}

INLINE int steps_of(const Type type) { return type == FLOAT32 ? 1 : type == BFLOAT16 ? BF16_STEPS : INT8_STEPS; }

INLINE ivec multiply_add(ivec sums, ivec inputs, ivec weights, const Type type) {
    if (type == INT8) return (ivec)DOT_INT8(sums, inputs, weights);
#ifdef DOT_BF16
    if (type == BFLOAT16) return (ivec)DOT_BF16(sums, inputs, weights);
#endif
    return (ivec)((vec)inputs * (vec)weights + (vec)sums);
}

// The weights of a step as they are multiplied.
INLINE ivec weights_of_step(const char *weights, const Type type, const int step) {
    typedef int16_t shorts __attribute__((vector_size(VECTOR_BYTES)));
    ivec bits = load_bits(weights);
    if (steps_of(type) == 1) return bits;
    if (type == BFLOAT16) return step ? bits & (int32_t)0xffff0000 : bits << 16;
    if (INT8_STEPS == 2) return (ivec)((step ? (shorts)bits : (shorts)bits << 8) >> 8);
    return (ivec)__builtin_convertvector((bits << (24 - 8 * step)) >> 24, vec);
}

INLINE void multiply_block(const int rows, const Type type, const Linear *linear, int row, int column,
                           const char *input, const Output *output) {
    const size_t bf16_size = BF16_STEPS == 1 ? sizeof(bf16) : sizeof(float);
    size_t row_size = linear->inputs * (type == INT8 ? sizeof(Byte) : type == BFLOAT16 ? bf16_size : sizeof(float));
    const char *weights = (const char *)linear->weights + column * weight_bytes(linear);
    ivec sums[MOST_ROWS][VECTORS];
    UNROLLED(r, rows) UNROLLED(v, VECTORS) sums[r][v] = (ivec){0};
    input += row * row_size;
    for (const char *end = input + row_size; input < end; weights += 4 * PANEL) {
        UNROLLED(line, PANEL / 16) __builtin_prefetch(weights + AHEAD + 64 * line);
        UNROLLED(step, steps_of(type)) {
            ivec right[VECTORS];
            UNROLLED(v, VECTORS) right[v] = weights_of_step(weights + v * VECTOR_BYTES, type, step);
            UNROLLED(r, rows) {
                int32_t left;
                memcpy(&left, input + r * row_size, sizeof left);
                UNROLLED(v, VECTORS) sums[r][v] = multiply_add(sums[r][v], left - (ivec){0}, right[v], type);
            }
            input += 4;
        }
    }
    ivec block[MOST_ROWS][VECTORS];  // a copy: what is passed by its address is in memory, in the loop too
    UNROLLED(r, rows) UNROLLED(v, VECTORS) block[r][v] = sums[r][v];
    finish_block(linear, output, row, rows, column, block);
}

// Where block `block` of rows begins: all have about the same size.
static int block_count(int rows) { return (rows + MOST_ROWS - 1) / MOST_ROWS; }
static int block_start(int rows, int block) { return (int)((int64_t)rows * block / block_count(rows)); }

// A panel of weights stays in the cache for all rows.
INLINE void multiply(const Type type, const Linear *linear, int rows, const char *input, const Output *output) {
    for (int column = 0; column < linear->outputs; column += PANEL)
        for (int i = 0; i < block_count(rows); i++) {
            int row = block_start(rows, i), count = block_start(rows, i + 1) - row;
            WITH_CONSTANT_ROWS(count, multiply_block, type, linear, row, column, input, output)
        }
}

// Room for inputs in another form than they come in.
size_t linear_scratch_size(Type type, int rows, int inputs) {
    return type == FLOAT32 ? 0 : round_up(rows, ROW_PADDING) * (inputs + 1) * sizeof(float);
}

// output = activation(input W^T + b), (rows, outputs) of FLOAT32 or BFLOAT16, from (rows, inputs).
void linear(const Linear *linear, int rows, const void *input, Activation activation, void *output, Type output_type,
            void *scratch) {
    Output result = {.values = output, .type = output_type, .activation = activation};
    if (linear->type == INT8) {
        float *scales = scratch;
        Byte *quantized = (Byte *)(scales + round_up(rows, ROW_PADDING));
        quantize(rows, linear->inputs, input, quantized, scales);
        result.row_scales = scales;
        input = quantized;
    } else if (linear->type == BFLOAT16 && BF16_STEPS > 1) {
        for (int64_t i = 0; i < (int64_t)rows * linear->inputs; i += LANES)
            store_floats((float *)scratch + i, load(input, i, BFLOAT16));
        input = scratch;
    }
#if defined(__AMX_TILE__)
    if (linear->type != FLOAT32) return gemm_amx(linear, rows, input, &result);
#endif
    if (linear->type == FLOAT32)  // first: GCC makes the product of bfloat16 for AVX2 a third slower behind INT8
        multiply(FLOAT32, linear, rows, input, &result);
    else if (linear->type == BFLOAT16)
        multiply(BFLOAT16, linear, rows, input, &result);
    else
        multiply(INT8, linear, rows, input, &result);
}

// How many outputs `weights.py` puts together.
int panel_width(void) { return PANEL; }
