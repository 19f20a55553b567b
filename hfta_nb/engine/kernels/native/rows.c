/* Row-wise operations in float32: layer norm, forward and backward; the gradient of log-softmax; sums of rows.

   All tensors are [rows][columns] without gaps. Rows may be shorter than a vector. */

#include <stdint.h>

#include "alive.h"
#include "vectors.h"

typedef struct {
    ptrdiff_t rows, columns;
    const float *x, *by;           /* the input, or the output; the gradient of the output */
    const float *weight, *bias;    /* [columns], or null */
    float *out, *mean, *scale;     /* per row, its mean and 1 / deviation */
    float *by_weight, *by_bias;    /* [columns], or null */
    float eps;
} rows;

void hfta_layer_norm(const rows *p) {
    const ptrdiff_t columns = p->columns;
    const vec zero = {0};
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        const float *x = p->x + i * columns;
        float *out = p->out + i * columns;
        vec sum = zero, squares = zero;
        for (ptrdiff_t j = 0; j < columns; j += WIDE) sum += part(x + j, columns - j);
        const float mean = sum_of(sum) / (float)columns;
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const vec away = kept(part(x + j, columns - j) - mean, columns - j);
            squares += away * away;
        }
        const float scale = 1.0f / sqrtf(sum_of(squares) / (float)columns + p->eps);
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const ptrdiff_t left = columns - j;
            vec v = (part(x + j, left) - mean) * scale;
            if (p->weight) v *= part(p->weight + j, left);
            if (p->bias) v += part(p->bias + j, left);
            put(out + j, v, left);
        }
        p->mean[i] = mean;
        p->scale[i] = scale;
    }
}

/* dx = scale (g - mean(g) - y mean(g y)), with g = by weight and the normalised row y. */
void hfta_layer_norm_backward(const rows *p) {
    const ptrdiff_t columns = p->columns;
    const vec zero = {0};
    if (p->by_weight) memset(p->by_weight, 0, 4 * (size_t)columns);
    if (p->by_bias) memset(p->by_bias, 0, 4 * (size_t)columns);
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        const float *x = p->x + i * columns, *by = p->by + i * columns;
        const float mean = p->mean[i], scale = p->scale[i];
        vec sum = zero, with = zero;
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const ptrdiff_t left = columns - j;
            const vec g = part(by + j, left), y = (part(x + j, left) - mean) * scale;
            vec scaled = g;
            if (p->weight) scaled *= part(p->weight + j, left);
            sum += scaled;
            with += kept(scaled * y, left);
            if (p->by_weight) put(p->by_weight + j, part(p->by_weight + j, left) + g * y, left);
            if (p->by_bias) put(p->by_bias + j, part(p->by_bias + j, left) + g, left);
        }
        const float first = sum_of(sum) / (float)columns, second = sum_of(with) / (float)columns;
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const ptrdiff_t left = columns - j;
            const vec g = part(by + j, left), y = (part(x + j, left) - mean) * scale;
            vec scaled = g;
            if (p->weight) scaled *= part(p->weight + j, left);
            put(p->out + i * columns + j, (scaled - first - y * second) * scale, left);
        }
    }
}

/* dx = by - exp(output) sum(by); `x` is the output. */
void hfta_log_softmax_backward(const rows *p) {
    const ptrdiff_t columns = p->columns;
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        const float *x = p->x + i * columns, *by = p->by + i * columns;
        vec each = {0};
        for (ptrdiff_t j = 0; j < columns; j += WIDE) each += part(by + j, columns - j);
        const float sum = sum_of(each);
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const ptrdiff_t left = columns - j;
            put(p->out + i * columns + j, part(by + j, left) - exponential(part(x + j, left)) * sum, left);
        }
    }
}

/* The sum of each `height` rows, by partial sums over blocks, so that errors grow with the root of their number. */
#define ASIDE 256
INLINE void sums_of(const float *x, float *out, ptrdiff_t height, ptrdiff_t columns, const int count, ptrdiff_t left) {
    vec total[8], sum[8];
    UNROLLED for (int k = 0; k < count; k++) total[k] = (vec){0};
    for (ptrdiff_t start = 0; start < height; start += ASIDE) {
        const ptrdiff_t end = start + ASIDE < height ? start + ASIDE : height;
        UNROLLED for (int k = 0; k < count; k++) sum[k] = (vec){0};
        for (ptrdiff_t i = start; i < end; i++)
            UNROLLED for (int k = 0; k < count; k++) sum[k] += part(x + i * columns + k * WIDE, left - k * WIDE);
        UNROLLED for (int k = 0; k < count; k++) total[k] += sum[k];
    }
    UNROLLED for (int k = 0; k < count; k++) put(out + k * WIDE, total[k], left - k * WIDE);
}

void hfta_column_sums(const rows *p, ptrdiff_t height) {
    const ptrdiff_t columns = p->columns, groups = p->rows / height;
    for (ptrdiff_t m = 0; m < groups; m++) {
        const float *x = p->x + m * height * columns;
        float *out = p->out + m * columns;
        ptrdiff_t j = 0;
        for (; j + 8 * WIDE <= columns; j += 8 * WIDE) sums_of(x + j, out + j, height, columns, 8, 8 * WIDE);
        for (; j + 2 * WIDE <= columns; j += 2 * WIDE) sums_of(x + j, out + j, height, columns, 2, 2 * WIDE);
        for (; j < columns; j += WIDE) sums_of(x + j, out + j, height, columns, 1, columns - j);
    }
}

/* The gradient of a table whose row x[i] was looked up as row i; x are int64. Sums are in torch's order. */
void hfta_embedding_backward(const rows *p, ptrdiff_t table, ptrdiff_t padding) {
    const ptrdiff_t columns = p->columns;
    const int64_t *index = (const int64_t *)p->x;
    memset(p->out, 0, (size_t)(table * columns) * sizeof(float));
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        if (index[i] == padding || index[i] < 0 || index[i] >= table) continue;
        float *to = p->out + index[i] * columns;
        const float *by = p->by + i * columns;
        for (ptrdiff_t j = 0; j < columns; j += WIDE) {
            const ptrdiff_t left = columns - j;
            put(to + j, part(to + j, left) + part(by + j, left), left);
        }
    }
}
