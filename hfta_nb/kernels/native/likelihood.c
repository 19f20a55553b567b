/* Negative log likelihood of rows of log-probabilities in float32, of several members, and its gradient. */

#include <stdint.h>

#include "alive.h"
#include "vectors.h"

typedef struct {
    ptrdiff_t members, rows, columns;
    ptrdiff_t apart;    /* between the targets of two members; 0 where they share them */
    ptrdiff_t by_apart; /* between the gradients of two members' losses; 0 where they are one */
    ptrdiff_t mean, softmax; /* over the rows that count, else their sum; the gradient goes on through a log-softmax */
    int64_t ignored;
    const float *logs, *by; /* [members][rows][columns]; gradients of the losses */
    const int64_t *target;
    float *losses, *counted; /* [members]: how many rows count */
    float *out;              /* the gradient, as `logs` */
} likelihood;

/* 0 where all went well, else 1 + the number of a target that is no column. */
ptrdiff_t hfta_likelihood(const likelihood *p) {
    for (ptrdiff_t m = 0; m < p->members; m++) {
        const int64_t *target = p->target + m * p->apart;
        const float *logs = p->logs + m * p->rows * p->columns;
        double sum = 0;
        ptrdiff_t count = 0;
        for (ptrdiff_t i = 0; i < p->rows; i++, logs += p->columns) {
            if (target[i] == p->ignored) continue;
            if (target[i] < 0 || target[i] >= p->columns) return 1 + m * p->apart + i;
            sum -= logs[target[i]];
            count++;
        }
        p->counted[m] = (float)count;
        p->losses[m] = (float)(p->mean ? sum / (double)count : sum);
    }
    return 0;
}

/* Of a row: by at the target, of the other sign; with the softmax, by times the probabilities besides. */
ptrdiff_t hfta_likelihood_backward(const likelihood *p) {
    const ptrdiff_t columns = p->columns;
    const vec zero = {0};
    for (ptrdiff_t m = 0; m < p->members; m++) {
        const int64_t *target = p->target + m * p->apart;
        const float by = p->by[m * p->by_apart] / (p->mean ? p->counted[m] : 1.0f);
        for (ptrdiff_t i = 0; i < p->rows; i++) {
            float *out = p->out + (m * p->rows + i) * columns;
            if (target[i] == p->ignored || !p->softmax) {
                memset(out, 0, 4 * (size_t)columns);
            } else {
                const float *logs = p->logs + (m * p->rows + i) * columns;
                for (ptrdiff_t j = 0; j < columns; j += WIDE) {
                    const ptrdiff_t left = columns - j;
                    put(out + j, exponential(part(logs + j, left)) * (zero + by), left);
                }
            }
            if (target[i] == p->ignored) continue;
            if (target[i] < 0 || target[i] >= columns) return 1 + m * p->apart + i;
            out[target[i]] -= by;
        }
    }
    return 0;
}
