/* Convolutions of images with channels last, in groups, with paddings and strides, and all three gradients. */

#include "check.h"

#include "conv.c"

static void check(ptrdiff_t number, const ptrdiff_t *s, int biased) {
    conv c = {.samples = s[0], .groups = s[1], .in = s[2], .out = s[3], .height = s[4], .width = s[5], .tall = s[6],
              .wide = s[7], .above = s[8], .beside = s[9], .down = s[10], .along = s[11]};
    c.made_height = (c.height + 2 * c.above - c.tall) / c.down + 1;
    c.made_width = (c.width + 2 * c.beside - c.wide) / c.along + 1;
    c.weight_out = c.given_out = c.in * c.tall * c.wide;
    c.weight_in = c.given_in = c.tall * c.wide;
    c.weight_row = c.given_row = c.wide;
    c.weight_column = c.given_column = 1;
    const ptrdiff_t channels = c.groups * c.in, made = c.groups * c.out, weights = made * c.weight_out;
    const ptrdiff_t pixels = c.samples * c.height * c.width * channels;
    const ptrdiff_t results = c.samples * c.made_height * c.made_width * made;
    float *x = numbers(pixels), *weight = numbers(weights), *bias = numbers(made), *grad = numbers(results);
    c.x = x, c.weight = weight, c.grad = grad, c.result = blank(results);
    c.by_x = blank(pixels), c.by_weight = blank(weights), c.by_bias = blank(made), c.room = blank(hfta_conv_room(&c));
    c.bias = biased ? bias : 0;
    hfta_conv(&c);
    c.bias = 0;
    hfta_conv_backward(&c);
    double *out = zeros(results), *dx = zeros(pixels), *dw = zeros(weights), *db = zeros(made);
    for (ptrdiff_t at = 0; at < results; at++) {
        const ptrdiff_t o = at % made, w = at / made % c.made_width, h = at / made / c.made_width % c.made_height;
        const ptrdiff_t n = at / made / c.made_width / c.made_height, group = o / c.out;
        double sum = biased ? (double)bias[o] : 0;
        db[o] += (double)grad[at];
        for (ptrdiff_t i = 0; i < c.in; i++)
            for (ptrdiff_t t = 0; t < c.tall; t++)
                for (ptrdiff_t u = 0; u < c.wide; u++) {
                    const ptrdiff_t row = h * c.down + t - c.above, column = w * c.along + u - c.beside;
                    if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
                    const ptrdiff_t from = ((n * c.height + row) * c.width + column) * channels + group * c.in + i;
                    const ptrdiff_t by = o * c.weight_out + i * c.weight_in + t * c.wide + u;
                    sum += (double)x[from] * (double)weight[by];
                    dx[from] += (double)grad[at] * (double)weight[by];
                    dw[by] += (double)grad[at] * (double)x[from];
                }
        out[at] = sum;
    }
    compare("convolution", number, c.result, out, results, 5e-6);
    compare("by the image", number, c.by_x, dx, pixels, 5e-6);
    compare("by the weight", number, c.by_weight, dw, weights, 5e-6);
    compare("by the bias", number, c.by_bias, db, made, 5e-6);
}

int main(void) {
    /* samples, groups, channels of one in and out, height, width, window, padding, strides */
    const ptrdiff_t cases[][12] = {
        {2, 1, 1, 16, 8, 8, 3, 3, 1, 1, 1, 1},  {1, 2, 3, 5, 7, 9, 3, 5, 1, 2, 1, 1},
        {1, 1, 5, 40, 5, 5, 2, 2, 1, 1, 1, 1},  {1, 1, 4, 50, 3, 40, 1, 3, 0, 0, 1, 1},
        {2, 1, 8, 17, 9, 12, 3, 3, 1, 1, 2, 2}, {1, 2, 3, 2, 12, 9, 4, 3, 1, 0, 3, 2},
        {1, 1, 16, 24, 1, 1, 1, 1, 0, 0, 1, 1}, {1, 3, 2, 33, 5, 3, 3, 2, 2, 0, 3, 1},
    };
    for (ptrdiff_t k = 0; k < COUNT(cases); k++)
        for (int biased = 0; biased < 2; biased++) check(2 * k + biased, cases[k], biased);
    return wrong;
}
