/* Negative log likelihood of members and its gradient, with ignored and with wrong targets. */

#include "check.h"

#include "likelihood.c"

static void check(ptrdiff_t number, ptrdiff_t height, ptrdiff_t columns, int own, int mean, int softmax) {
    const ptrdiff_t members = 2, count = members * height * columns;
    const int64_t ignored = 7;
    float *logs = numbers(count), *by = numbers(members);
    int64_t *target = room(own ? members * height : height, sizeof(int64_t));
    for (ptrdiff_t i = 0; i < (own ? members * height : height); i++) target[i] = i * 7 % columns;
    const likelihood p = {.members = members, .rows = height, .columns = columns, .apart = own ? height : 0,
                          .by_apart = 1, .mean = mean, .softmax = softmax, .ignored = ignored, .logs = logs, .by = by,
                          .target = target, .losses = blank(members), .counted = blank(members), .out = blank(count)};
    if (hfta_likelihood(&p) || hfta_likelihood_backward(&p)) wrong = 1;
    double *losses = zeros(members), *out = zeros(count);
    for (ptrdiff_t m = 0; m < members; m++) {
        double rows = 0;
        for (ptrdiff_t i = 0; i < height; i++) rows += target[m * p.apart + i] != ignored;
        const double share = mean ? 1 / rows : 1;
        for (ptrdiff_t i = 0; i < height; i++) {
            const int64_t right = target[m * p.apart + i];
            const ptrdiff_t row = (m * height + i) * columns;
            if (right == ignored) continue;
            losses[m] -= (double)logs[row + right] * share;
            for (ptrdiff_t j = 0; j < columns; j++)
                out[row + j] = (double)by[m] * share * ((softmax ? exp((double)logs[row + j]) : 0) - (j == right));
        }
    }
    compare("losses", number, p.losses, losses, members, 2e-6);
    compare("gradient", number, p.out, out, count, 2e-6);
    target[height - 1] = columns; /* is no column */
    if (hfta_likelihood(&p) != height || hfta_likelihood_backward(&p) != height) {
        printf("case %d: a wrong target goes unseen\n", (int)number);
        wrong = 1;
    }
}

int main(void) {
    const ptrdiff_t sizes[][2] = {{1, 2}, {3, 10}, {6, 16}, {2, 37}};
    for (ptrdiff_t k = 0; k < COUNT(sizes); k++)
        for (int how = 0; how < 8; how++)
            check(8 * k + how, sizes[k][0], sizes[k][1], how & 1, how >> 1 & 1, how >> 2 & 1);
    return wrong;
}
