/* Batch norm in training and its gradients, of pixels by channels, folded or not. */

#include "check.h"

#include "norm.c"

static void check(ptrdiff_t number, ptrdiff_t pixels, ptrdiff_t channels, ptrdiff_t fold, int weighted) {
    const ptrdiff_t count = pixels * channels;
    float *x = numbers(count), *grad = numbers(count), *weight = numbers(channels), *bias = numbers(channels);
    norm n = {.pixels = pixels, .channels = channels, .fold = fold, .eps = 1e-3, .momentum = 0.1, .x = x, .grad = grad,
              .weight = weighted ? weight : 0, .bias = weighted ? bias : 0, .out = blank(count),
              .mean = blank(channels), .scale = blank(channels), .running_mean = numbers(channels),
              .running_var = numbers(channels), .weight_grad = blank(channels), .bias_grad = blank(channels),
              .room = blank(5 * channels * fold), .sums = zeros(2 * channels * fold)};
    double *mean = zeros(channels), *squares = zeros(channels), *running_mean = zeros(channels);
    double *running_var = zeros(channels), *out = zeros(count), *dx = zeros(count), *dw = zeros(channels);
    double *db = zeros(channels), all = (double)pixels;
    for (ptrdiff_t i = 0; i < count; i++) mean[i % channels] += (double)x[i] / all;
    for (ptrdiff_t i = 0; i < count; i++) squares[i % channels] += pow((double)x[i] - mean[i % channels], 2);
    for (ptrdiff_t c = 0; c < channels; c++) {
        running_mean[c] = 0.9 * (double)n.running_mean[c] + 0.1 * mean[c];
        running_var[c] = 0.9 * (double)n.running_var[c] + 0.1 * squares[c] / (all - 1);
    }
    hfta_norm(&n);
    float *made = n.out;
    n.out = blank(count);
    hfta_norm_backward(&n);
    for (ptrdiff_t i = 0; i < count; i++) {
        const ptrdiff_t c = i % channels;
        const double y = ((double)x[i] - mean[c]) / sqrt(squares[c] / all + n.eps);
        out[i] = weighted ? y * (double)weight[c] + (double)bias[c] : y;
        dw[c] += (double)grad[i] * y;
        db[c] += (double)grad[i];
    }
    for (ptrdiff_t i = 0; i < count; i++) {
        const ptrdiff_t c = i % channels;
        const double scale = 1 / sqrt(squares[c] / all + n.eps), y = ((double)x[i] - mean[c]) * scale;
        dx[i] = ((double)grad[i] - db[c] / all - y * dw[c] / all) * scale * (weighted ? (double)weight[c] : 1);
    }
    compare("norm", number, made, out, count, 5e-6);
    compare("running mean", number, n.running_mean, running_mean, channels, 2e-6);
    compare("running variance", number, n.running_var, running_var, channels, 2e-6);
    compare("gradient", number, n.out, dx, count, 1e-5);
    compare("by its weight", number, n.weight_grad, dw, channels, 1e-5);
    compare("by its bias", number, n.bias_grad, db, channels, 1e-5);
}

int main(void) {
    const ptrdiff_t cases[][3] = {{2, 1, 1}, {12, 3, 4}, {160, 5, 16}, {9, 24, 1}, {66, 6, 2}};
    for (ptrdiff_t k = 0; k < COUNT(cases); k++)
        for (int weighted = 0; weighted < 2; weighted++)
            check(2 * k + weighted, cases[k][0], cases[k][1], cases[k][2], weighted);
    return wrong;
}
