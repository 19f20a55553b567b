/* Batch and group norms of images in both orders of memory, with the activation and the pooling that follow, and
   gradients. */

#include "check.h"

#include "images.c"

typedef struct {
    ptrdiff_t samples, channels, height, width, groups;
    int last, relu, pool, turned;
    ptrdiff_t each; /* adjacent channels with one activation; 0 for none by channel */
    int fixed;
} how;

static int kind_of(const how *k, ptrdiff_t c) { return k->each ? (int)(c / k->each % KINDS) : k->relu ? RELU : IDENTITY; }

static double value_at(int kind, double y) {
    if (kind == RELU) return y > 0 ? y : 0;
    if (kind == GELU) return y * 0.5 * erfc(-y * sqrt(0.5));
    if (kind == TANH) return tanh(y);
    return kind == SILU ? y / (1 + exp(-y)) : y;
}

static double slope_at(int kind, double y) {
    const double step = 1e-5;
    if (kind == RELU) return y > 0;
    return (value_at(kind, y + step) - value_at(kind, y - step)) / (2 * step);
}

static ptrdiff_t place(ptrdiff_t n, ptrdiff_t c, ptrdiff_t h, ptrdiff_t w, const how *k, ptrdiff_t tall, ptrdiff_t wide,
                       int last) {
    return last ? ((n * tall + h) * wide + w) * k->channels + c : ((n * k->channels + c) * tall + h) * wide + w;
}

/* One channel of one sample: from its normalised pixels the result, and from the result's gradient theirs. */
static void follow(const how *k, ptrdiff_t n, ptrdiff_t c, const double *y, const float *grad, double *out, double *dy) {
    const ptrdiff_t size = k->pool ? 2 : 1, tall = k->height / size, wide = k->width / size;
    const int kind = kind_of(k, c);
    for (ptrdiff_t h = 0; h < tall; h++)
        for (ptrdiff_t w = 0; w < wide; w++) {
            ptrdiff_t best = place(n, c, size * h, size * w, k, k->height, k->width, k->last);
            for (ptrdiff_t q = 1; k->pool && q < 4; q++) {
                const ptrdiff_t at = place(n, c, 2 * h + q / 2, 2 * w + q % 2, k, k->height, k->width, k->last);
                if (value_at(kind, y[at]) > value_at(kind, y[best])) best = at;
            }
            out[place(n, c, h, w, k, tall, wide, k->last)] = value_at(kind, y[best]);
            dy[best] = slope_at(kind, y[best]) * (double)grad[place(n, c, h, w, k, tall, wide, k->last && !k->turned)];
        }
}

static void check(ptrdiff_t number, const how *k, int weighted) {
    const ptrdiff_t pixels = k->height * k->width, count = k->samples * k->channels * pixels;
    const ptrdiff_t made = k->pool ? k->samples * k->channels * (k->height / 2) * (k->width / 2) : count;
    const ptrdiff_t kept = k->groups ? k->samples * k->groups : k->channels;
    float *x = numbers(count), *grad = numbers(made), *weight = numbers(k->channels), *bias = numbers(k->channels);
    images n = {.samples = k->samples, .channels = k->channels, .height = k->height, .width = k->width,
                .groups = k->groups, .last = k->last, .turned = k->turned, .relu = k->relu, .pool = k->pool,
                .eps = 1e-3, .momentum = 0.1, .x = x, .grad = grad, .weight = weighted ? weight : 0,
                .bias = weighted ? bias : 0, .out = blank(made), .mean = blank(kept), .scale = blank(kept),
                .weight_grad = blank(k->channels), .bias_grad = blank(k->channels), .sums = zeros(4 * k->channels)};
    n.room = blank(hfta_images_room(&n));
    int *kinds = calloc((size_t)filled(k->channels), sizeof *kinds);
    for (ptrdiff_t c = 0; c < k->channels; c++) kinds[c] = kind_of(k, c);
    n.kinds = k->each ? kinds : 0;
    if (k->fixed) { /* statistics of which the results are those that would be computed */
        hfta_images(&n);
        n.running_mean = n.mean, n.running_var = n.scale;
        for (ptrdiff_t c = 0; c < k->channels; c++) {
            const double deviation = 1 / (double)n.scale[c];
            n.running_var[c] = (float)(deviation * deviation - n.eps);
        }
        n.mean = n.scale = 0;
        n.fixed = 1;
        n.out = blank(made);
        hfta_images(&n);
    } else {
        hfta_images(&n);
    }
    float *result = n.out;
    n.out = blank(count);
    if (!k->fixed) hfta_images_backward(&n);
    const ptrdiff_t group = k->groups ? k->channels / k->groups : 1;
    const double all = (double)(group * pixels * (k->groups ? 1 : k->samples));
    double *mean = zeros(kept), *squares = zeros(kept), *y = zeros(count), *dy = zeros(count), *out = zeros(made);
    double *sum = zeros(kept), *with = zeros(kept), *dx = zeros(count), *dw = zeros(k->channels), *db = zeros(k->channels);
    for (int pass = 0; pass < 5; pass++)
        for (ptrdiff_t s = 0; s < k->samples; s++)
            for (ptrdiff_t c = 0; c < k->channels; c++) {
                const ptrdiff_t g = k->groups ? s * k->groups + c / group : c;
                const double by = weighted ? (double)weight[c] : 1, scale = 1 / sqrt(squares[g] / all + n.eps);
                if (pass == 3) follow(k, s, c, y, grad, out, dy);
                for (ptrdiff_t p = 0; p < pixels; p++) {
                    const ptrdiff_t at = place(s, c, p / k->width, p % k->width, k, k->height, k->width, k->last);
                    const double away = (double)x[at] - mean[g];
                    if (pass == 0) mean[g] += (double)x[at] / all;
                    if (pass == 1) squares[g] += away * away;
                    if (pass == 2) y[at] = away * scale * by + (weighted ? (double)bias[c] : 0);
                    if (pass == 3) {
                        sum[g] += by * dy[at], with[g] += by * dy[at] * away * scale;
                        dw[c] += dy[at] * away * scale, db[c] += dy[at];
                    }
                    if (pass == 4) dx[at] = scale * (by * dy[at] - sum[g] / all - away * scale * with[g] / all);
                }
            }
    compare("norm of images", number, result, out, made, 5e-6);
    if (k->fixed) return;
    compare("gradient", number, n.out, dx, count, 1e-5);
    compare("by the weight", number, n.weight_grad, dw, k->channels, 1e-5);
    compare("by the bias", number, n.bias_grad, db, k->channels, 1e-5);
}

int main(void) {
    const how cases[] = {
        {2, 16, 6, 6, 4, 1, 1, 1, 0}, {2, 12, 7, 5, 3, 1, 1, 1, 1}, {3, 6, 7, 5, 3, 1, 1, 0, 1},
        {3, 5, 5, 6, 1, 1, 0, 0, 0},  {2, 10, 9, 30, 5, 0, 1, 0, 0}, {2, 20, 1, 70, 0, 0, 1, 0, 0},
        {2, 3, 1, 1, 0, 0, 0, 0, 0},  {1, 24, 1, 300, 0, 1, 1, 0, 0}, {3, 5, 7, 5, 0, 1, 1, 1, 0},
        {9, 33, 1, 1, 0, 1, 0, 0, 0},  {2, 20, 6, 6, 0, 1, 0, 1, 0, 4}, {3, 37, 7, 5, 0, 1, 0, 1, 1, 5},
        {2, 48, 5, 6, 3, 1, 0, 1, 0, 16}, {3, 9, 5, 6, 0, 1, 0, 0, 0, 2}, {2, 10, 9, 30, 5, 0, 0, 0, 0, 2},
        {3, 21, 6, 5, 0, 1, 1, 1, 0, 0, 1}, {3, 21, 6, 5, 0, 0, 0, 0, 0, 7, 1},
    };
    for (ptrdiff_t k = 0; k < COUNT(cases); k++)
        for (int weighted = 0; weighted < 2; weighted++) check(2 * k + weighted, &cases[k], weighted);
    return wrong;
}
