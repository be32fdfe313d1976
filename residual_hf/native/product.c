// Training: products of matrices in fp32 whose values are rounded to bfloat16 on the way into the kernel's layouts.
//
// The right matrix becomes panels (pairs, columns), the left one rows of pairs. INNER values of the inner dimension
// are multiplied at a time, so that a panel and a block of rows fit the first cache, and GROUP rows, which fit the second.
// Every sum is made in the same order with any number of threads.

#include "gemm.h"

enum { INNER = 256, PAIRS = INNER / 2, GROUP = 480 };
enum { PANEL_SIZE = PAIRS * PANEL, ROW_SIZE = PAIRS + 16, GROUP_SIZE = GROUP * ROW_SIZE };  // in pairs

static int64_t panels(const Product *p) { return round_up(p->columns, PANEL) / PANEL; }
static int64_t inner_blocks(const Product *p) { return round_up(p->inner, INNER) / INNER; }

// Rounds to the nearest bfloat16, ties to the even one, in the upper 16 bits.
INLINE uvec rounded(vec values) {
    uvec bits = (uvec)values;
    return (bits + (0x7fff + (bits >> 16 & 1))) & 0xffff0000;
}

// Pairs along the inner dimension of one line, of which `count` values exist.
INLINE ivec pairs_of_line(const float *values, int64_t count) {
    half_vec halves[2];
    UNROLLED(i, 2)
        halves[i] = __builtin_convertvector(rounded(load_first(values + i * LANES, count - i * LANES)) >> 16, half_vec);
    return load_bits(halves);
}

// One pair of each of some lines.
INLINE ivec pair_of_lines(const float *values, int64_t stride, int64_t count, int64_t lines) {
    vec first = load_first(values, count > 0 ? lines : 0), second = load_first(values + stride, count > 1 ? lines : 0);
    return (ivec)(rounded(first) >> 16 | rounded(second));
}

// LANES lines of LANES pairs from a matrix by its distances between lines and between inner values, of which so many
// are left: zeros where it has ended. The target is (lines, pairs) if `by_line`, else (pairs, lines).
INLINE void pack_tile(const float *values, const int64_t strides[2], int64_t lines, int64_t inner, const int by_line,
                      int32_t *target, int64_t target_stride) {
    ivec tile[LANES];
    int along = strides[1] == 1;
    for (int i = 0; i < LANES; i++)
        if (along)
            tile[i] = pairs_of_line(values + (i < lines ? i : 0) * strides[0], i < lines ? inner : 0);
        else
            tile[i] = pair_of_lines(values + 2 * i * strides[1], strides[1], inner - 2 * i, lines);
    if (along != by_line) transpose_tile(tile);
    for (int i = 0; i < LANES; i++) memcpy(target + i * target_stride, &tile[i], sizeof tile[i]);
}

// The columns of the right matrix, in blocks of the inner dimension.
static void pack_panels(const void *work, int64_t first, int64_t end, int thread) {
    const Product *p = work;
    const int64_t *strides = p->right_strides;
    for (int64_t column = first * PANEL; column < end * PANEL; column += LANES)
        for (int64_t inner = 0; inner < p->inner; inner += 2 * LANES) {
            int64_t block = inner / INNER * panels(p) + column / PANEL, pair = inner % INNER / 2;
            int32_t *target = (int32_t *)p->scratch + block * PANEL_SIZE + pair * PANEL + column % PANEL;
            pack_tile(p->right + column * strides[0] + inner * strides[1], strides, p->columns - column,
                      p->inner - inner, 0, target, PANEL);
        }
}

// Rows of the left matrix, in a block of the inner dimension.
static void pack_group(const Product *p, int64_t row, int64_t rows, int64_t inner, int32_t *target) {
    const int64_t *strides = p->left_strides;
    for (int64_t line = 0; line < rows; line += LANES)
        for (int64_t i = inner; i < least(inner + INNER, p->inner); i += 2 * LANES)
            pack_tile(p->left + (row + line) * strides[0] + i * strides[1], strides, p->rows - row - line,
                      p->inner - i, 1, target + line * ROW_SIZE + (i - inner) / 2, ROW_SIZE);
}

// Adds the products of two pairs.
INLINE vec add_pairs(vec sums, ivec inputs, ivec weights) {
#ifdef DOT_BF16
    return (vec)DOT_BF16(sums, inputs, weights);
#else
    const int32_t high = (int32_t)0xffff0000;
    return (vec)(inputs & high) * (vec)(weights & high) + ((vec)(inputs << 16) * (vec)(weights << 16) + sums);
#endif
}

INLINE void multiply_block(const int rows, const Product *p, const int32_t *left, const int32_t *right, int64_t row,
                           int64_t column, int64_t inner) {
    float *output = p->output + row * p->columns + column;
    int64_t columns = p->columns - column, pairs = (least(INNER, p->inner - inner) + 1) / 2;
    vec sums[MOST_ROWS][VECTORS];
    UNROLLED(r, rows)
        UNROLLED(v, VECTORS) {
            const float *start = output + r * p->columns + v * LANES;
            if (inner == 0 && !p->accumulate) start = p->bias ? p->bias + column + v * LANES : NULL;
            sums[r][v] = start ? load_first(start, columns - v * LANES) : (vec){0};
        }
    for (int64_t pair = 0; pair < pairs; pair++, right += PANEL) {
        ivec weights[VECTORS];
        UNROLLED(v, VECTORS) weights[v] = load_bits(right + v * LANES);
        UNROLLED(r, rows)
            UNROLLED(v, VECTORS) sums[r][v] = add_pairs(sums[r][v], left[r * ROW_SIZE + pair] - (ivec){0}, weights[v]);
    }
    UNROLLED(r, rows)
        UNROLLED(v, VECTORS)
            store_first(output + r * p->columns + v * LANES, columns - v * LANES, sums[r][v]);
}

static void multiply_rows(const void *work, int64_t first, int64_t end, int thread) {
    const Product *p = work;
    const int32_t *right = p->scratch;
    int32_t *group = (int32_t *)p->scratch + inner_blocks(p) * panels(p) * PANEL_SIZE + thread * GROUP_SIZE;
    for (int64_t start = first; start < end; start += GROUP)
        for (int64_t inner = 0; inner < p->inner; inner += INNER) {
            int64_t rows = least(GROUP, end - start);
            pack_group(p, start, rows, inner, group);
            for (int64_t panel = 0; panel < panels(p); panel++)
                for (int64_t row = 0; row < rows; row += MOST_ROWS) {
                    const int32_t *weights = right + (inner / INNER * panels(p) + panel) * PANEL_SIZE;
                    WITH_CONSTANT_ROWS(least(MOST_ROWS, rows - row), multiply_block, p, group + row * ROW_SIZE, weights,
                                       start + row, panel * PANEL, inner)
                }
        }
}

size_t product_scratch_size(const Product *p) {
    return 4 * ((size_t)inner_blocks(p) * panels(p) * PANEL_SIZE + (size_t)p->threads * GROUP_SIZE);
}

void product(const Product *p) {
    run_rows(p, panels(p), p->threads, pack_panels);
    run_rows(p, p->rows, p->threads, multiply_rows);
}
