/* A step of Adam or AdamW over several float32 tensors in one pass. Hyperparameters use double precision. */

#include "alive.h"
#include "vectors.h"

typedef struct {
    ptrdiff_t tensors, apart; /* apart: decoupled weight decay, as in AdamW */
    const ptrdiff_t *sizes;
    float *const *values, *const *gradients, *const *means, *const *squares;
    const float *const *counts; /* the number of the step */
    double lr, beta1, beta2, eps, decay;
} adam;

void hfta_adam(const adam *p) {
    const float rest1 = (float)(1 - p->beta1), beta2 = (float)p->beta2, rest2 = (float)(1 - p->beta2);
    const float keep = (float)(1 - p->lr * p->decay), decay = (float)p->decay, eps = (float)p->eps;
    for (ptrdiff_t t = 0; t < p->tensors; t++) {
        const double step = *p->counts[t];
        const float rate = (float)(p->lr / (1 - pow(p->beta1, step)));
        const float root = (float)(1 / sqrt(1 - pow(p->beta2, step)));
        float *value = p->values[t], *mean = p->means[t], *square = p->squares[t];
        const float *gradient = p->gradients[t];
        for (ptrdiff_t i = 0; i < p->sizes[t]; i += WIDE) {
            const ptrdiff_t left = p->sizes[t] - i;
            vec x = part(value + i, left), g = part(gradient + i, left);
            vec m = part(mean + i, left), s = part(square + i, left);
            if (p->decay != 0) {
                if (p->apart)
                    x *= keep;
                else
                    g += decay * x;
            }
            m += rest1 * (g - m);
            s = beta2 * s + rest2 * g * g;
            put(mean + i, m, left);
            put(square + i, s, left);
            put(value + i, x - rate * m / (root_of(s) * root + eps), left);
        }
    }
}
