/* LSTMs of members, either time step first, on one thread and on several, and all gradients. */

#include "check.h"

#include "lstm.c"

enum { X, W_X, W_H, B_X, B_H, GATES, HS, CS, GO, DH, DC, DX, DW_X, DW_H, DB, ALL };

static double gate(double x) { return 1 / (1 + exp(-x)); }

/* One member in double precision; `exact` has room as the kernel's memory. */
static void exactly(const ptrdiff_t *z, float **at, double **exact, ptrdiff_t m) {
    const ptrdiff_t T = z[1], N = z[2], I = z[3], H = z[4], states = m * (T + 1) * N * H, weights = m * 4 * H;
    double *grads = zeros(4 * H);
    for (int back = 0; back < 2; back++)
        for (ptrdiff_t step = 0; step < T; step++)
            for (ptrdiff_t n = 0; n < N; n++) {
                const ptrdiff_t turn = back ? T - 1 - step : step, t = z[5] ? T - 1 - turn : turn;
                const float *x = at[X] + ((m * T + t) * N + n) * I;
                double *h0 = exact[HS] + states + ((t + z[5]) * N + n) * H, *h1 = h0 + (z[5] ? -N : N) * H;
                double *c0 = exact[CS] + states + ((t + z[5]) * N + n) * H, *c1 = c0 + (z[5] ? -N : N) * H;
                double *dh = exact[DH] + (m * N + n) * H, *dc = exact[DC] + (m * N + n) * H;
                double *sums = exact[GATES] + ((m * T + t) * N + n) * 4 * H;
                for (ptrdiff_t q = 0; !back && q < 4 * H; q++) {
                    sums[q] = (double)at[B_X][weights + q] + (double)at[B_H][weights + q];
                    for (ptrdiff_t k = 0; k < I; k++) sums[q] += (double)at[W_X][(weights + q) * I + k] * (double)x[k];
                    for (ptrdiff_t k = 0; k < H; k++) sums[q] += (double)at[W_H][(weights + q) * H + k] * h0[k];
                }
                for (ptrdiff_t k = 0; k < H; k++) {
                    const double i = gate(sums[k]), f = gate(sums[H + k]), g = tanh(sums[2 * H + k]);
                    const double o = gate(sums[3 * H + k]), c = f * c0[k] + i * g, s = tanh(c);
                    c1[k] = c, h1[k] = o * s;
                    if (!back) continue;
                    const double up = dh[k] + (double)at[GO][((m * T + t) * N + n) * H + k], d = dc[k] + up * o * (1 - s * s);
                    grads[k] = d * g * i * (1 - i), grads[H + k] = d * c0[k] * f * (1 - f);
                    grads[2 * H + k] = d * i * (1 - g * g), grads[3 * H + k] = up * s * o * (1 - o);
                    dc[k] = d * f, dh[k] = 0;
                }
                for (ptrdiff_t q = 0; back && q < 4 * H; q++) {
                    exact[DB][weights + q] += grads[q];
                    for (ptrdiff_t k = 0; k < I; k++) {
                        exact[DX][((m * T + t) * N + n) * I + k] += grads[q] * (double)at[W_X][(weights + q) * I + k];
                        exact[DW_X][(weights + q) * I + k] += grads[q] * (double)x[k];
                    }
                    for (ptrdiff_t k = 0; k < H; k++) {
                        dh[k] += grads[q] * (double)at[W_H][(weights + q) * H + k];
                        exact[DW_H][(weights + q) * H + k] += grads[q] * h0[k];
                    }
                }
            }
}

static void check(ptrdiff_t number, ptrdiff_t M, ptrdiff_t T, ptrdiff_t N, ptrdiff_t I, ptrdiff_t H, int last_first,
                  ptrdiff_t threads) {
    const char *names[ALL] = {[HS] = "h", [CS] = "c", [DH] = "dh", [DC] = "dc", [DX] = "dx", [DW_X] = "dw_x",
                              [DW_H] = "dw_h", [DB] = "db"};
    const ptrdiff_t sizes[8] = {M, T, N, I, H, last_first, threads, 1};
    const ptrdiff_t each[ALL] = {T * N * I, 4 * H * I, 4 * H * H, 4 * H, 4 * H, T * N * 4 * H, (T + 1) * N * H,
                                 (T + 1) * N * H, T * N * H, N * H, N * H, T * N * I, 4 * H * I, 4 * H * H, 4 * H};
    ptrdiff_t strides[ALL + 2];
    float *at[ALL];
    double *exact[ALL];
    for (int k = 0; k < ALL; k++) {
        strides[k] = each[k];
        at[k] = k <= B_H || k == GO ? numbers(M * each[k]) : blank(M * each[k]);
        exact[k] = zeros(M * each[k]);
    }
    strides[ALL] = N * H, strides[ALL + 1] = H;
    for (ptrdiff_t i = 0; i < M * N * H; i++) at[DH][i] = at[DC][i] = 0;
    for (ptrdiff_t m = 0; m < M; m++)
        for (ptrdiff_t i = 0, first = (m * (T + 1) + (last_first ? T : 0)) * N * H; i < N * H; i++)
            for (int k = HS; k <= CS; k++) exact[k][first + i] = (double)(at[k][first + i] = draw());
    if (hfta_lstm_forward(sizes, strides, at) || hfta_lstm_backward(sizes, strides, at)) wrong = 1;
    for (ptrdiff_t m = 0; m < M; m++) exactly(sizes, at, exact, m);
    for (int k = 0; k < ALL; k++)
        if (names[k]) compare(names[k], number, at[k], exact[k], M * each[k], 1e-5);
}

int main(void) {
    const ptrdiff_t wide = hfta_wide();
    check(0, 2, 3, 5, 3, wide, 0, 1);
    check(1, 3, 4, 1, 17, 2 * wide, 1, 1);
    check(2, 3, 2, 3, wide, wide, 0, 2);
    check(3, 1, 3, 130, 4, wide, 1, 1); /* fewer steps together than there are */
    check(4, 1, 3, 32, 64, 128, 0, 2);  /* several threads for one member */
    return wrong;
}
