/* What the checks of the kernels share: numbers without a random generator of the system, memory of exactly the size
   that is asked for (so that AddressSanitizer sees what goes beyond), and the comparison with double precision. */

#ifndef HFTA_CHECK
#define HFTA_CHECK

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT(table) ((ptrdiff_t)(sizeof(table) / sizeof(*(table))))

static int wrong;

/* Between -1 and 1. */
static inline float draw(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) / (float)(1 << 23) - 1.0f;
}

static inline void *room(ptrdiff_t count, size_t size) {
    void *made = malloc((size_t)count * size + (count == 0));
    if (!made) abort();
    return made;
}

/* Memory for results: whatever is not written to is not a number. */
static inline float *blank(ptrdiff_t count) {
    float *made = room(count, sizeof(float));
    for (ptrdiff_t i = 0; i < count; i++) made[i] = NAN;
    return made;
}

static inline float *numbers(ptrdiff_t count) {
    float *made = room(count, sizeof(float));
    for (ptrdiff_t i = 0; i < count; i++) made[i] = draw();
    return made;
}

static inline double *zeros(ptrdiff_t count) {
    double *made = room(count, sizeof(double));
    for (ptrdiff_t i = 0; i < count; i++) made[i] = 0;
    return made;
}

/* Says so if an entry is further away than `within` times the largest. */
static inline void compare(const char *what, ptrdiff_t number, const float *found, const double *exact, ptrdiff_t count,
                           double within) {
    double largest = 1;
    for (ptrdiff_t i = 0; i < count; i++) largest = fmax(largest, fabs(exact[i]));
    for (ptrdiff_t i = 0; i < count; i++)
        if (!(fabs((double)found[i] - exact[i]) <= within * largest)) {
            printf("%s, case %d, entry %d: %.9g, not %.9g\n", what, (int)number, (int)i, (double)found[i], exact[i]);
            wrong = 1;
            return;
        }
}

#endif
