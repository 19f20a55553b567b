/* Steps of Adam and AdamW over tensors of several sizes. */

#include "check.h"

#include "adam.c"

#define TENSORS 4
#define STEPS 3

int main(void) {
    const ptrdiff_t sizes[TENSORS] = {1, 7, 16, 83};
    for (int apart = 0; apart < 2; apart++)
        for (int decays = 0; decays < 2; decays++) {
            float *tensors[4][TENSORS], count = 0;
            double *exact[3][TENSORS];
            const float *counts[TENSORS];
            for (int t = 0; t < TENSORS; t++) {
                counts[t] = &count;
                for (int k = 0; k < 4; k++) tensors[k][t] = numbers(sizes[t]);
                for (int k = 0; k < 3; k++) exact[k][t] = zeros(sizes[t]);
                for (ptrdiff_t i = 0; i < sizes[t]; i++) {
                    tensors[2][t][i] = tensors[3][t][i] = 0;
                    exact[0][t][i] = (double)tensors[0][t][i];
                }
            }
            const adam p = {TENSORS, apart, sizes, tensors[0], tensors[1], tensors[2], tensors[3], counts,
                            0.02, 0.9, 0.99, 1e-3, decays ? 0.1 : 0.0};
            for (int step = 1; step <= STEPS; step++) {
                count = (float)step;
                hfta_adam(&p);
                for (int t = 0; t < TENSORS; t++)
                    for (ptrdiff_t i = 0; i < sizes[t]; i++) {
                        double *x = &exact[0][t][i], *m = &exact[1][t][i], *s = &exact[2][t][i];
                        double g = (double)tensors[1][t][i] + (apart ? 0 : p.decay * *x);
                        if (apart) *x *= 1 - p.lr * p.decay;
                        *m = p.beta1 * *m + (1 - p.beta1) * g;
                        *s = p.beta2 * *s + (1 - p.beta2) * g * g;
                        *x -= p.lr / (1 - pow(p.beta1, step)) * *m / (sqrt(*s / (1 - pow(p.beta2, step))) + p.eps);
                    }
            }
            for (int t = 0; t < TENSORS; t++) {
                compare("values", 2 * apart + decays, tensors[0][t], exact[0][t], sizes[t], 2e-6);
                compare("means", 2 * apart + decays, tensors[2][t], exact[1][t], sizes[t], 2e-6);
                compare("squares", 2 * apart + decays, tensors[3][t], exact[2][t], sizes[t], 2e-6);
            }
        }
    return wrong;
}
