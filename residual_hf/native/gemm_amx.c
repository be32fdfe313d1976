// Matrix product with AMX: tiles of 16 rows by 64 bytes, 32 rows by 32 columns of sums at a time.
//
// A tile of inputs is 16 rows of 32 bfloat16 or 64 bytes; a tile of weights holds the same 64 bytes for 16 outputs.

#include "gemm.h"

#if defined(__AMX_TILE__)

enum { TILE_BYTES = 64, TILE_ROWS = 16 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfiguration;

static const TileConfiguration TILES = {
    .palette = 1, .row_bytes = {[0 ... 7] = TILE_BYTES}, .rows = {[0 ... 7] = TILE_ROWS}};

#define MULTIPLY(sums, inputs, weights) { \
        if (type == INT8) { _tile_dpbusd(sums, inputs, weights); } \
        else { _tile_dpbf16ps(sums, inputs, weights); } \
    }

// Tiles 0 to 3 are the sums (upper left, upper right, lower left, lower right), 4 and 5 inputs, 6 and 7 weights.
INLINE void multiply_tiles(const Type type, int both, const char *input, size_t stride, const char *weights,
                               int fetch, ivec sums[ROW_PADDING][VECTORS]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t byte = 0; byte < stride; byte += TILE_BYTES, weights += TILE_ROWS * 128) {
        for (int line = 0; fetch && line < 2 * TILE_ROWS; line++)
            _mm_prefetch(weights + AHEAD + line * TILE_BYTES, _MM_HINT_T0);
        _tile_loadd(4, input + byte, stride);
        _tile_loadd(6, weights, 128);
        _tile_loadd(7, weights + TILE_BYTES, 128);
        if (both) _tile_loadd(5, input + TILE_ROWS * stride + byte, stride);
        MULTIPLY(0, 4, 6);
        MULTIPLY(1, 4, 7);
        if (both) MULTIPLY(2, 5, 6);
        if (both) MULTIPLY(3, 5, 7);
    }
    _tile_stored(0, &sums[0][0], PANEL * 4);
    _tile_stored(1, &sums[0][1], PANEL * 4);
    if (both) _tile_stored(2, &sums[TILE_ROWS][0], PANEL * 4);
    if (both) _tile_stored(3, &sums[TILE_ROWS][1], PANEL * 4);
}

INLINE void multiply(const Type type, const Linear *linear, int rows, const char *input, const Output *output) {
    size_t stride = weight_bytes(linear);
    ivec sums[ROW_PADDING][VECTORS];
    for (int column = 0; column < linear->outputs; column += PANEL) {
        const char *weights = (const char *)linear->weights + column * stride;
        for (int row = 0; row < rows; row += ROW_PADDING) {
            int count = rows - row < ROW_PADDING ? rows - row : ROW_PADDING;
            int fetch = row == 0 && rows > TILE_ROWS;  // with fewer rows loads of tiles follow each other fast enough
            multiply_tiles(type, count > TILE_ROWS, input + row * stride, stride, weights, fetch, sums);
            finish_block(linear, output, row, count, column, sums);
        }
    }
}

void gemm_amx(const Linear *linear, int rows, const void *input, const Output *output) {
    _tile_loadconfig(&TILES);
    if (linear->type == BFLOAT16)
        multiply(BFLOAT16, linear, rows, input, output);
    else
        multiply(INT8, linear, rows, input, output);
    _tile_release();
}
#endif
