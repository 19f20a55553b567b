/* Attention and its gradients, with heads that lie between the entries of a row, or apart. */

#include "check.h"

#include "attention.c"

static ptrdiff_t at(const attention *p, int which, ptrdiff_t sample, ptrdiff_t head, ptrdiff_t row) {
    return sample * p->strides[which][0] + head * p->strides[which][1] + row * p->strides[which][2];
}

/* One head of one sample, in double precision. */
static void exactly(const attention *p, ptrdiff_t sample, ptrdiff_t head, double **exact) {
    const ptrdiff_t L = p->queries, S = p->keys, D = p->wide;
    double *shares = zeros(L * S), *slopes = zeros(L * S);
    for (ptrdiff_t i = 0; i < L; i++) {
        const ptrdiff_t last = p->causal && i + 1 < S ? i + 1 : S, row = at(p, Q, sample, head, i);
        double sum = 0, mean = 0;
        for (ptrdiff_t j = 0; j < last; j++) {
            double score = 0, slope = 0;
            for (ptrdiff_t d = 0; d < D; d++) {
                score += (double)p->tensors[Q][row + d] * (double)p->tensors[K][at(p, K, sample, head, j) + d];
                slope += (double)p->tensors[D_OUT][row + d] * (double)p->tensors[V][at(p, V, sample, head, j) + d];
            }
            sum += shares[i * S + j] = exp((double)p->scale * score);
            slopes[i * S + j] = slope;
        }
        for (ptrdiff_t j = 0; j < last; j++) mean += (shares[i * S + j] /= sum) * slopes[i * S + j];
        exact[LOGS][at(p, LOGS, sample, head, i)] = log(sum);
        for (ptrdiff_t j = 0; j < last; j++) {
            const double share = shares[i * S + j], slope = (double)p->scale * share * (slopes[i * S + j] - mean);
            const ptrdiff_t key = at(p, K, sample, head, j);
            for (ptrdiff_t d = 0; d < D; d++) {
                exact[OUT][row + d] += share * (double)p->tensors[V][key + d];
                exact[DV][key + d] += share * (double)p->tensors[D_OUT][row + d];
                exact[DQ][row + d] += slope * (double)p->tensors[K][key + d];
                exact[DK][key + d] += slope * (double)p->tensors[Q][row + d];
            }
        }
    }
}

static void check(ptrdiff_t number, const ptrdiff_t *sizes, int causal, int heads_inside) {
    const char *names[TENSORS] = {[OUT] = "out", [LOGS] = "logs", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    attention p = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], causal, {{0}}, {0}, 0, 0.3f};
    double *exact[TENSORS];
    ptrdiff_t counts[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        const ptrdiff_t rows = k == K || k == V || k == DK || k == DV ? p.keys : p.queries, wide = k == LOGS ? 1 : p.wide;
        counts[k] = p.samples * p.heads * rows * wide;
        p.strides[k][0] = p.heads * rows * wide;
        p.strides[k][1] = heads_inside ? wide : rows * wide;
        p.strides[k][2] = heads_inside ? p.heads * wide : wide;
        p.tensors[k] = k <= V || k == D_OUT ? numbers(counts[k]) : blank(counts[k]);
        exact[k] = zeros(counts[k]);
    }
    p.room = blank(hfta_attention_room(p.queries, p.keys, p.wide));
    hfta_attention(&p);
    hfta_attention_backward(&p);
    for (ptrdiff_t i = 0; i < p.samples; i++)
        for (ptrdiff_t h = 0; h < p.heads; h++) exactly(&p, i, h, exact);
    for (int k = 0; k < TENSORS; k++)
        if (names[k]) compare(names[k], number, p.tensors[k], exact[k], counts[k], 5e-6);
}

int main(void) {
    const ptrdiff_t sizes[][5] = {{1, 1, 1, 1, 1}, {2, 3, 5, 5, 8}, {1, 2, 17, 40, 20}, {1, 1, 33, 7, 37}, {1, 2, 16, 16, 16}};
    for (ptrdiff_t k = 0; k < COUNT(sizes); k++)
        for (int how = 0; how < 4; how++) check(4 * k + how, sizes[k], how & 1, how >> 1);
    return wrong;
}
