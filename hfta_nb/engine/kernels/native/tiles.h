/* Tiles of float32 products: some rows by some vectors of columns stay in registers during the sum over the inner axis.
   The second factor is packed in panels of columns; the first is read entry by entry, with any strides. */

#ifndef HFTA_TILES
#define HFTA_TILES

#include "vectors.h"

#define PANEL (WIDE * ACROSS)
#define DEEP 512 /* length of the inner axis per pass: a panel of this many rows stays in the second-level cache */

/* The operands of a tile. */
typedef struct {
    ptrdiff_t inner, last; /* last: the number of entries in the last vector */
    ptrdiff_t a_row, a_inner, b_inner, c_row, bias_row, mask_row;
    const float *b, *bias, *mask;
    int begins, ends, relu;
} panel;

INLINE void tile(const int rows, const int across, const panel *p, const float *a, float *c, ptrdiff_t row) {
    vec sum[6][ACROSS];
    const vec zero = {0};
    const ptrdiff_t inner = p->inner, a_row = p->a_row, a_inner = p->a_inner, b_inner = p->b_inner;
    const float *b = p->b;
    const ptrdiff_t rest = (across - 1) * WIDE;
    const int whole = p->last == WIDE;
    UNROLLED for (int i = 0; i < rows; i++) {
        const float *from = !p->begins ? c + i * p->c_row : p->bias ? p->bias + (row + i) * p->bias_row : 0;
        UNROLLED for (int j = 0; j < across; j++)
            sum[i][j] = !from ? zero : whole || j + 1 < across ? load(from + j * WIDE) : some(from + rest, p->last);
        if (p->begins) /* prefetched, as it will be written */
            UNROLLED for (int j = 0; j < across; j++) __builtin_prefetch(c + i * p->c_row + j * WIDE, 1);
    }
    for (ptrdiff_t k = 0; k < inner; k++) {
        vec w[ACROSS];
        UNROLLED for (int j = 0; j < across; j++) w[j] = load(b + j * WIDE);
        UNROLLED for (int i = 0; i < rows; i++) {
            const float x = a[i * a_row];
            UNROLLED for (int j = 0; j < across; j++) sum[i][j] += x * w[j];
        }
        a += a_inner;
        b += b_inner;
    }
    if (p->ends && p->relu)
        UNROLLED for (int i = 0; i < rows; i++)
            UNROLLED for (int j = 0; j < across; j++) sum[i][j] = where_positive(sum[i][j], sum[i][j]);
    UNROLLED for (int i = 0; i < rows; i++) {
        const float *mask = p->ends && p->mask ? p->mask + (row + i) * p->mask_row : 0;
        float *to = c + i * p->c_row;
        UNROLLED for (int j = 0; j < across; j++) {
            const int full = whole || j + 1 < across;
            if (mask)
                sum[i][j] = where_positive(full ? load(mask + j * WIDE) : some(mask + rest, p->last), sum[i][j]);
            if (full)
                store(to + j * WIDE, sum[i][j]);
            else
                put_some(to + rest, sum[i][j], p->last);
        }
    }
}

typedef void (*tiled)(const panel *, const float *, float *, ptrdiff_t);

#define TILE(rows, across) \
    static void tile_##rows##_##across(const panel *p, const float *a, float *c, ptrdiff_t row) { \
        tile(rows, across, p, a, c, row); \
    }
#define TILES(across) TILE(1, across) TILE(2, across) TILE(4, across) TILE(6, across)
#define ROW(across) {tile_1_##across, tile_2_##across, tile_4_##across, tile_6_##across}

TILES(1)
TILES(2)
#if ACROSS == 4
TILES(3)
TILES(4)
static const tiled TILED[ACROSS][4] = {ROW(1), ROW(2), ROW(3), ROW(4)};
#else
static const tiled TILED[ACROSS][4] = {ROW(1), ROW(2)};
#endif

/* 6 rows at a time. Single rows are avoided in the rest, as they have too few running sums. */
static void rows_of(const panel *p, int across, const float *a, float *c, ptrdiff_t rows) {
    static const ptrdiff_t HEIGHTS[4] = {1, 2, 4, 6};
    for (ptrdiff_t i = 0; i < rows;) {
        const ptrdiff_t left = rows - i;
        const int size = left == 8 ? 2 : left >= 6 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;
        TILED[across - 1][size](p, a + i * p->a_row, c + i * p->c_row, i);
        i += HEIGHTS[size];
    }
}

#ifdef SHUFFLED
/* Transposes 16 rows of 16 columns. */
static void turn(const float *from, ptrdiff_t apart, float *to, ptrdiff_t width) {
    vec r[16], t[16];
    UNROLLED for (int i = 0; i < 16; i++) r[i] = load(from + i * apart);
    UNROLLED for (int i = 0; i < 16; i += 2) {
        t[i] = PICK(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        t[i + 1] = PICK(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    UNROLLED for (int i = 0; i < 16; i++) { /* lanes of four; blocks of 4 x 4 are transposed afterwards */
        const int first = (i & ~3) + (i >> 1 & 1);
        r[i] = i & 1 ? PICK(t[first], t[first + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
                     : PICK(t[first], t[first + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    }
    UNROLLED for (int j = 0; j < 4; j++) {
        const vec ab = PICK(r[j], r[4 + j], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const vec cd = PICK(r[8 + j], r[12 + j], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const vec ef = PICK(r[j], r[4 + j], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        const vec gh = PICK(r[8 + j], r[12 + j], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        store(to + j * width, PICK(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
        store(to + (4 + j) * width, PICK(ab, cd, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
        store(to + (8 + j) * width, PICK(ef, gh, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
        store(to + (12 + j) * width, PICK(ef, gh, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
    }
}
#endif

/* Packs `columns` of B contiguously, each row padded to whole vectors. */
static void packed(const float *b, ptrdiff_t inner, ptrdiff_t step, ptrdiff_t apart, ptrdiff_t columns, float *room) {
    const ptrdiff_t width = filled(columns);
    if (apart == 1) {
        for (ptrdiff_t k = 0; k < inner; k++) {
            ptrdiff_t j = 0;
            for (; j + WIDE <= columns; j += WIDE) store(room + k * width + j, load(b + k * step + j));
            if (j < columns) store(room + k * width + j, some(b + k * step + j, columns - j));
        }
        return;
    }
    for (ptrdiff_t j = 0; j < width; j += WIDE) {
        ptrdiff_t k = 0;
#ifdef SHUFFLED
        if (step == 1 && j + WIDE <= columns)
            for (; k + WIDE <= inner; k += WIDE) turn(b + j * apart + k, apart, room + k * width + j, width);
#endif
        for (; k < inner; k++)
            for (ptrdiff_t i = j; i < j + WIDE; i++) room[k * width + i] = i < columns ? b[i * apart + k * step] : 0;
    }
}

/* Packs all columns of B in panels; `room` has `inner * filled(columns)` entries. */
static inline void all_packed(const float *b, ptrdiff_t inner, ptrdiff_t step, ptrdiff_t apart, ptrdiff_t columns, float *room) {
    for (ptrdiff_t left = 0; left < columns; left += PANEL)
        packed(b + left * apart, inner, step, apart, columns - left < PANEL ? columns - left : PANEL, room + left * inner);
}

/* C = A B for a B packed by `all_packed`; plus the bias if there is one, or the content of C if `adds`. */
static inline void by_panels(ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns, const float *a, ptrdiff_t a_row, ptrdiff_t a_inner,
                      const float *b, const float *bias, ptrdiff_t bias_row, float *c, ptrdiff_t c_row, int adds) {
    for (ptrdiff_t left = 0; left < columns; left += PANEL) {
        const ptrdiff_t width = columns - left < PANEL ? columns - left : PANEL;
        const int across = (int)((width + WIDE - 1) / WIDE);
        for (ptrdiff_t top = 0; top < inner; top += DEEP) {
            const ptrdiff_t deep = inner - top < DEEP ? inner - top : DEEP;
            const panel now = {.inner = deep, .last = width - (across - 1) * WIDE, .a_row = a_row, .a_inner = a_inner,
                               .b_inner = across * WIDE, .c_row = c_row, .bias_row = bias_row,
                               .b = b + left * inner + top * across * WIDE, .bias = bias ? bias + left : 0,
                               .begins = top == 0 && !adds};
            rows_of(&now, across, a + top * a_inner, c + left, rows);
        }
    }
}

#endif
