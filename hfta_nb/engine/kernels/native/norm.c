/* Batch norm in training, and its gradients, of float32 images with channels last: contiguous pixels by channels.

   A row contains several pixels, so that few channels fill a vector too. Sums of blocks of a few rows in float32 are added
   up in float64. */

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "alive.h"

#define BLOCK 64

typedef struct {
    ptrdiff_t pixels, channels, fold; /* fold: pixels per row; divides their number */
    double eps, momentum;
    const float *x, *grad, *weight, *bias; /* weight and bias null for none; grad of the gradients alone */
    float *out;
    float *mean, *scale;                 /* per channel: written forward, read backward; scale is 1 / deviation */
    float *running_mean, *running_var;   /* null for none */
    float *weight_grad, *bias_grad;
    float *room;  /* 5 * channels * fold entries */
    double *sums; /* 2 * channels * fold entries */
} norm;

static void spread(float *restrict wide, const float *restrict values, ptrdiff_t channels, ptrdiff_t fold) {
    for (ptrdiff_t f = 0; f < fold; f++) memcpy(wide + f * channels, values, 4 * (size_t)channels);
}

/* The sum over the columns of the rows that belong to a channel. */
static double whole(const double *sums, ptrdiff_t channel, ptrdiff_t channels, ptrdiff_t fold) {
    double sum = 0;
    for (ptrdiff_t f = 0; f < fold; f++) sum += sums[f * channels + channel];
    return sum;
}

static void add(double *restrict sums, float *restrict part, ptrdiff_t wide) {
    for (ptrdiff_t j = 0; j < wide; j++) sums[j] += part[j];
    memset(part, 0, 4 * (size_t)wide);
}

void hfta_norm(const norm *n) {
    const ptrdiff_t channels = n->channels, fold = n->fold, wide = channels * fold, rows = n->pixels / fold;
    float *restrict part = n->room, *restrict mean = part + wide, *restrict scale = mean + wide;
    float *restrict shift = scale + wide;
    double *restrict sums = n->sums;
    const float *restrict x = n->x;
    float *restrict out = n->out;
    memset(part, 0, 4 * (size_t)wide);
    memset(sums, 0, 8 * (size_t)wide);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * wide;
        for (ptrdiff_t j = 0; j < wide; j++) part[j] += row[j];
        if ((r + 1) % BLOCK == 0) add(sums, part, wide);
    }
    add(sums, part, wide);
    for (ptrdiff_t c = 0; c < channels; c++) n->mean[c] = (float)(whole(sums, c, channels, fold) / (double)n->pixels);
    spread(mean, n->mean, channels, fold);
    memset(sums, 0, 8 * (size_t)wide);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * wide;
        for (ptrdiff_t j = 0; j < wide; j++) {
            const float apart = row[j] - mean[j];
            part[j] += apart * apart;
        }
        if ((r + 1) % BLOCK == 0) add(sums, part, wide);
    }
    add(sums, part, wide);
    for (ptrdiff_t c = 0; c < channels; c++) {
        const double squares = whole(sums, c, channels, fold), kept = 1 - n->momentum;
        const double deviation = 1 / sqrt(squares / (double)n->pixels + n->eps);
        n->scale[c] = (float)deviation;
        scale[c] = (float)(n->weight ? deviation * (double)n->weight[c] : deviation);
        shift[c] = n->bias ? n->bias[c] : 0;
        if (n->running_mean)
            n->running_mean[c] = (float)(kept * (double)n->running_mean[c] + n->momentum * (double)n->mean[c]);
        if (n->running_var)
            n->running_var[c] = (float)(kept * (double)n->running_var[c]
                                        + n->momentum * squares / (double)(n->pixels - 1));
    }
    for (ptrdiff_t f = 1; f < fold; f++) {
        memcpy(scale + f * channels, scale, 4 * (size_t)channels);
        memcpy(shift + f * channels, shift, 4 * (size_t)channels);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * wide;
        float *restrict to = out + r * wide;
        for (ptrdiff_t j = 0; j < wide; j++) to[j] = (row[j] - mean[j]) * scale[j] + shift[j];
    }
}

void hfta_norm_backward(const norm *n) {
    const ptrdiff_t channels = n->channels, fold = n->fold, wide = channels * fold, rows = n->pixels / fold;
    float *restrict part = n->room, *restrict other = part + wide, *restrict mean = other + wide;
    float *restrict along = mean + wide, *restrict scale = along + wide;
    double *restrict sums = n->sums, *restrict products = sums + wide;
    const float *restrict x = n->x, *restrict grad = n->grad;
    float *restrict out = n->out;
    memset(part, 0, 8 * (size_t)wide);
    memset(sums, 0, 16 * (size_t)wide);
    spread(mean, n->mean, channels, fold);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * wide, *restrict up = grad + r * wide;
        for (ptrdiff_t j = 0; j < wide; j++) {
            part[j] += up[j];
            other[j] += up[j] * (row[j] - mean[j]);
        }
        if ((r + 1) % BLOCK == 0) {
            add(sums, part, wide);
            add(products, other, wide);
        }
    }
    add(sums, part, wide);
    add(products, other, wide);
    for (ptrdiff_t c = 0; c < channels; c++) {
        const double sum = whole(sums, c, channels, fold), product = whole(products, c, channels, fold);
        const double deviation = (double)n->scale[c], count = (double)n->pixels;
        n->bias_grad[c] = (float)sum;
        n->weight_grad[c] = (float)(product * deviation);
        part[c] = (float)(sum / count);
        along[c] = (float)(product * deviation * deviation / count);
        scale[c] = (float)(n->weight ? deviation * (double)n->weight[c] : deviation);
    }
    for (ptrdiff_t f = 1; f < fold; f++) {
        memcpy(part + f * channels, part, 4 * (size_t)channels);
        memcpy(along + f * channels, along, 4 * (size_t)channels);
        memcpy(scale + f * channels, scale, 4 * (size_t)channels);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * wide, *restrict up = grad + r * wide;
        float *restrict to = out + r * wide;
        for (ptrdiff_t j = 0; j < wide; j++) to[j] = (up[j] - part[j] - (row[j] - mean[j]) * along[j]) * scale[j];
    }
}
