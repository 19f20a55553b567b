/* The test of a new library in a child process (alive.py): the compiler may have used instructions that this processor,
   or its hypervisor, does not support, and such an instruction ends the process. */

#ifndef HFTA_ALIVE
#define HFTA_ALIVE

#include "vectors.h"

/* Runs all kinds of vector code; volatile, so that the compiler does not evaluate it. */
float hfta_alive(void) {
    volatile float given[2 * WIDE];
    float in[2 * WIDE], out[2 * WIDE] = {0};
    for (int i = 0; i < 2 * WIDE; i++) given[i] = 0.25f * (float)(i - WIDE);
    for (int i = 0; i < 2 * WIDE; i++) in[i] = given[i];
    const ptrdiff_t left = WIDE / 2 + (ptrdiff_t)(given[0] < 0);
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        const vec v = load(in + i * WIDE), w = part(in + WIDE, left);
        const vec made = exponential(v) + logistic(v) * w + root_of(larger(v, -v)) + where_positive(v, w);
        put(out, kept(made, left), left);
        store(out + WIDE, made);
        sum += (double)sum_of(made) + (double)largest_of(load(out));
    }
    return (float)sum;
}

#endif
