/* The part of `images.c` for one sample, vectorised over channels or over pixels, whichever are adjacent in memory. */

#ifndef HFTA_IMAGES
#define HFTA_IMAGES

#include "activations.h"
#include "vectors.h"

#define BLOCK 64
#define BY_CHANNEL 2 /* what follows a norm: 0 for nothing, 1 for a ReLU, or this */

typedef struct {
    ptrdiff_t samples, channels, height, width;
    ptrdiff_t groups; /* of a group norm; 0 for a batch norm */
    ptrdiff_t last;   /* channels are adjacent in memory; otherwise pixels are */
    ptrdiff_t turned; /* the gradient's pixels are adjacent, although the image's channels are */
    ptrdiff_t relu, pool;
    ptrdiff_t fixed; /* a batch norm by the running statistics, without gradients; mean and scale are not written */
    double eps, momentum;
    const float *x, *grad, *weight, *bias; /* weight and bias null for none; grad of the gradients alone */
    float *out;
    float *mean, *scale;               /* of each channel, or of each sample's groups; scale is 1 / deviation */
    float *running_mean, *running_var; /* null for none */
    float *weight_grad, *bias_grad;    /* null for none */
    float *room;                       /* `hfta_images_room` entries */
    double *sums;                      /* 4 for each channel */
    const int *kinds;                  /* each channel's activation, up to a full vector; null for none */
} images;

/* For each channel: subtrahend, factor and summand; and for the gradients, the subtrahends for mean and deviation. */
typedef struct {
    float *mean, *scale, *shift, *off, *along;
} columns;

INLINE vec get(const float *p, ptrdiff_t left, const int full) { return full ? load(p) : some(p, left); }
INLINE void set(float *p, vec v, ptrdiff_t left, const int full) {
    if (full)
        store(p, v);
    else
        put_some(p, v, left);
}

static void flush(double *restrict sums, vec *parts, ptrdiff_t count) {
    const vec zero = {0}, sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    for (ptrdiff_t i = 0; i < count; i++) sums[i] += (double)sum[i];
    UNROLLED for (int k = 0; k < 4; k++) parts[k] = zero;
}

/* Adjacent channels: vectors contain channels, and the loops run over pixels. */

/* Sums of a sample's pixels, or of squared deviations if the mean is given. */
INLINE void sum_last(const float *x, ptrdiff_t pixels, ptrdiff_t step, const float *mean, double *sums, ptrdiff_t left,
                     const int full) {
    vec parts[4] = {{0}, {0}, {0}, {0}};
    const ptrdiff_t count = left < WIDE ? left : WIDE;
    const vec zero = {0}, off = mean ? load(mean) : zero;
    for (ptrdiff_t p = 0; p < pixels;) {
        const ptrdiff_t end = pixels - p > 4 * BLOCK ? p + 4 * BLOCK : pixels;
        for (; p + 4 <= end; p += 4)
            UNROLLED for (int k = 0; k < 4; k++) {
                const vec v = get(x + (p + k) * step, left, full) - off;
                parts[k] += mean ? (vec)(v * v) : v;
            }
        for (; p < end; p++) {
            const vec v = get(x + p * step, left, full) - off;
            parts[0] += mean ? (vec)(v * v) : v;
        }
        flush(sums, parts, count);
    }
}

/* The maximum of a window of four (of activations by channel, or of their inputs), its input's deviation from the mean,
   and its index. */
INLINE vec best_of(const float *x, ptrdiff_t step, ptrdiff_t row, vec mean, vec scale, vec shift, ptrdiff_t left,
                   const int full, const several *by, vec *away, ivec *which) {
    vec best = {0}, chosen = {0};
    ivec number = {0};
    UNROLLED for (int k = 0; k < 4; k++) {
        const vec apart = get(x + (k & 1) * step + (k >> 1) * row, left, full) - mean;
        const vec y = by ? activated_by(by, apart * scale + shift) : (vec)(apart * scale + shift);
        away[k] = apart;
        if (k == 0) {
            best = y;
            chosen = apart;
            continue;
        }
        const ivec larger = (y > best) | (y != y), mine = {0};
        best = either(larger, y, best);
        chosen = either(larger, apart, chosen);
        number = (larger & (mine + k)) | (~larger & number);
    }
    away[4] = chosen;
    *which = number;
    return best;
}

INLINE void apply_last(const images *n, const float *x, float *out, columns c, ptrdiff_t j, const int full,
                       const int act) {
    const ptrdiff_t step = n->channels, left = step - j, row = n->width * step;
    const vec mean = load(c.mean + j), scale = load(c.scale + j), shift = load(c.shift + j);
    const several by = kinds_at(n->kinds, j, act == BY_CHANNEL);
    if (!n->pool) {
        for (ptrdiff_t p = 0; p < n->height * n->width; p++) {
            vec y = (get(x + p * step + j, left, full) - mean) * scale + shift;
            if (act == BY_CHANNEL) y = activated_by(&by, y);
            if (act == 1) y = where_positive(y, y);
            set(out + p * step + j, y, left, full);
        }
        return;
    }
    for (ptrdiff_t h = 0; h < n->height / 2; h++)
        for (ptrdiff_t w = 0; w < n->width / 2; w++) {
            vec away[5];
            ivec which;
            vec y = best_of(x + 2 * h * row + 2 * w * step + j, step, row, mean, scale, shift, left, full,
                            act == BY_CHANNEL ? &by : 0, away, &which);
            if (act == 1) y = where_positive(y, y);
            set(out, y, left, full);
            out += step;
        }
}

/* Sums of the gradients of the norm's result, and of their products with the deviations from the mean. Those of
   activations by channel are also written to `out`, in the layout of x: slopes are costly to compute twice. */
INLINE void collect_last(const images *n, const float *x, const float *grad, float *out, columns c, double *sums,
                         double *products, ptrdiff_t j, const int full, const int act) {
    const ptrdiff_t step = n->channels, left = step - j, row = n->width * step, count = left < WIDE ? left : WIDE;
    const ptrdiff_t rows = n->pool ? n->height / 2 : n->height, along = n->pool ? n->width / 2 : n->width;
    const vec mean = load(c.mean + j), scale = load(c.scale + j), shift = load(c.shift + j);
    const several by = kinds_at(n->kinds, j, act == BY_CHANNEL);
    vec parts[4] = {{0}, {0}, {0}, {0}}, other[4] = {{0}, {0}, {0}, {0}};
    ptrdiff_t under_way = 0;
    for (ptrdiff_t h = 0; h < rows; h++)
        for (ptrdiff_t w = 0; w < along; w++) {
            const ptrdiff_t at = n->pool ? 2 * h * row + 2 * w * step + j : h * row + w * step + j;
            vec g = get(grad + (h * along + w) * step + j, left, full), apart, y;
            ivec which = {0};
            if (n->pool) {
                vec away[5];
                y = best_of(x + at, step, row, mean, scale, shift, left, full, act == BY_CHANNEL ? &by : 0, away, &which);
                apart = away[4];
            } else {
                apart = get(x + at, left, full) - mean;
                y = apart * scale + shift;
            }
            if (act == 1) g = where_positive(y, g);
            if (act == BY_CHANNEL) {
                g *= slope_by(&by, apart * scale + shift);
                UNROLLED for (int k = 0; k < 4; k++) {
                    const ivec mine = {0};
                    if (k == 0 || n->pool)
                        set(out + at + (k & 1) * step + (k >> 1) * row, (vec)((which == mine + k) & (ivec)g), left, full);
                }
            }
            const int k = (int)(under_way & 1);
            parts[k] += g;
            other[k] += g * apart;
            if (++under_way == 2 * BLOCK) {
                flush(sums, parts, count);
                flush(products, other, count);
                under_way = 0;
            }
        }
    flush(sums, parts, count);
    flush(products, other, count);
}

INLINE void spread_last(const images *n, const float *x, const float *grad, float *out, columns c, ptrdiff_t j,
                        const int full, const int act) {
    const ptrdiff_t step = n->channels, left = step - j, row = n->width * step;
    const vec mean = load(c.mean + j), scale = load(c.scale + j), shift = load(c.shift + j);
    const vec off = load(c.off + j), with = load(c.along + j);
    if (!n->pool || act == BY_CHANNEL) {
        for (ptrdiff_t p = 0; p < n->height * n->width; p++) {
            const vec apart = get(x + p * step + j, left, full) - mean;
            vec g = get(grad + p * step + j, left, full);
            if (act == 1) g = where_positive(apart * scale + shift, g);
            set(out + p * step + j, g * scale - off - apart * with, left, full);
        }
        return;
    }
    const ptrdiff_t rows = n->height / 2, along = n->width / 2;
    for (ptrdiff_t h = 0; h < rows; h++) {
        for (ptrdiff_t w = 0; w < along; w++) {
            const ptrdiff_t at = 2 * h * row + 2 * w * step + j;
            vec away[5], g = get(grad + (h * along + w) * step + j, left, full);
            ivec which;
            const vec y = best_of(x + at, step, row, mean, scale, shift, left, full, 0, away, &which);
            if (act == 1) g = where_positive(y, g);
            g *= scale;
            UNROLLED for (int k = 0; k < 4; k++) {
                const ivec mine = {0};
                const vec own = (vec)((which == mine + k) & (ivec)g);
                set(out + at + (k & 1) * step + (k >> 1) * row, own - off - away[k] * with, left, full);
            }
        }
        for (ptrdiff_t w = 2 * along; w < n->width; w++)
            for (ptrdiff_t i = 2 * h; i < 2 * h + 2; i++) {
                const ptrdiff_t at = i * row + w * step + j;
                set(out + at, -off - (get(x + at, left, full) - mean) * with, left, full);
            }
    }
    for (ptrdiff_t p = 2 * rows * n->width; p < n->height * n->width; p++) {
        const ptrdiff_t at = p * step + j;
        set(out + at, -off - (get(x + at, left, full) - mean) * with, left, full);
    }
}

/* Adjacent pixels: vectors contain pixels of one channel. */

INLINE double sum_first(const float *x, ptrdiff_t pixels, const float mean, const int squares) {
    double sum = 0;
    for (ptrdiff_t p = 0; p < pixels;) {
        const ptrdiff_t end = pixels - p > 4 * BLOCK * WIDE ? p + 4 * BLOCK * WIDE : pixels;
        vec parts[4] = {{0}, {0}, {0}, {0}};
        for (; p + 4 * WIDE <= end; p += 4 * WIDE)
            UNROLLED for (int k = 0; k < 4; k++) {
                const vec v = load(x + p + k * WIDE) - mean;
                parts[k] += squares ? (vec)(v * v) : v;
            }
        for (; p < end; p += WIDE) {
            const vec v = kept(part(x + p, end - p) - mean, end - p);
            parts[0] += squares ? (vec)(v * v) : v;
        }
        sum += (double)sum_of((parts[0] + parts[1]) + (parts[2] + parts[3]));
    }
    return sum;
}

INLINE void apply_first(const float *x, float *out, ptrdiff_t pixels, float mean, float scale, float shift,
                        const int act, int kind) {
    for (ptrdiff_t p = 0; p < pixels; p += WIDE) {
        vec y = (part(x + p, pixels - p) - mean) * scale + shift;
        if (act == BY_CHANNEL) y = activated(kind, y);
        if (act == 1) y = where_positive(y, y);
        put(out + p, y, pixels - p);
    }
}

INLINE void collect_first(const float *x, const float *grad, float *out, ptrdiff_t pixels, float mean, float scale,
                          float shift, double *sum, double *product, const int act, int kind) {
    for (ptrdiff_t p = 0; p < pixels;) {
        const ptrdiff_t end = pixels - p > 2 * BLOCK * WIDE ? p + 2 * BLOCK * WIDE : pixels;
        vec parts[2] = {{0}, {0}}, other[2] = {{0}, {0}};
        for (int k = 0; p < end; p += WIDE, k ^= 1) {
            const vec apart = part(x + p, end - p) - mean;
            vec g = part(grad + p, end - p); /* zero beyond the end */
            if (act == 1) g = where_positive(apart * scale + shift, g);
            if (act == BY_CHANNEL) {
                g *= slope(kind, apart * scale + shift);
                put(out + p, g, end - p);
            }
            parts[k] += g;
            other[k] += g * apart;
        }
        *sum += (double)sum_of(parts[0] + parts[1]);
        *product += (double)sum_of(other[0] + other[1]);
    }
}

INLINE void spread_first(const float *x, const float *grad, float *out, ptrdiff_t pixels, float mean, float scale,
                         float shift, float off, float along, const int act) {
    for (ptrdiff_t p = 0; p < pixels; p += WIDE) {
        const vec apart = part(x + p, pixels - p) - mean;
        vec g = part(grad + p, pixels - p);
        if (act == 1) g = where_positive(apart * scale + shift, g);
        put(out + p, g * scale - off - apart * along, pixels - p);
    }
}

#endif
