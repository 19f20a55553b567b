/* LSTMs member by member, so that what a member works on stays in cache: all time steps of one, then of the next.

   A step's sums stay in registers until the gates are computed from them. The gradients of the weights are summed over
   all steps when a member's gates are done.

   All arrays are float32 and without gaps within a member:
     x      [T][N][I]      members `x_stride` apart; 0 where they share it
     w_x    [4H][I], w_h [4H][H], b_x and b_h [4H] or null; members `*_stride` apart
     gates  [M][T][N][4H]  i, f, g, o
     h, c   [M][T+1][N][H] states; the first is at 0, or at T where the last time step comes first
     tc     [M][T][N][H]   tanh of c after each step
*/

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDE 16
#define ROWS 4
#else
#define WIDE 8
#define ROWS 2
#endif

typedef float vec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec choose(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }

/* exp by 2^n times a polynomial of |r| <= ln(2) / 2; a NaN stays one. */
INLINE vec exponential(vec x) {
    const vec zero = {0};
    x = choose(x < zero - 87.0f, zero - 87.0f, x);
    x = choose(x > zero + 88.0f, zero + 88.0f, x);
    const vec magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    const vec n = (x * 1.44269504f + magic) - magic;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = zero + 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const ivec e = (__builtin_convertvector(choose(n == n, n, zero), ivec) + 127) << 23;
    return p * (vec)e;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE vec tanh_of(vec x) { return 1.0f - 2.0f / (1.0f + exponential(x + x)); }

typedef struct {
    int steps, samples, inputs, hidden, last_first, wants_first;
    ptrdiff_t x_stride, w_x_stride, w_h_stride, b_x_stride, b_h_stride, go_member, go_step, go_sample;
    const float *x, *w_x, *w_h, *b_x, *b_h, *go;
    float *gates, *h, *c, *tc, *grad, *dh, *dc, *dw_x, *dw_h, *db;
    int first, end; /* the members of a thread */
} job;

/* What `rows` samples give the four gates of WIDE units, by `count` inputs each. */
INLINE void sum_tile(int rows, int count, const float *inputs, const float *strip, vec a[4][4]) {
    for (int k = 0; k < count; k++) {
        const vec b0 = load(strip), b1 = load(strip + WIDE), b2 = load(strip + 2 * WIDE), b3 = load(strip + 3 * WIDE);
        strip += 4 * WIDE;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const float x = inputs[(ptrdiff_t)r * count + k];
            a[r][0] += x * b0;
            a[r][1] += x * b1;
            a[r][2] += x * b2;
            a[r][3] += x * b3;
        }
    }
}

/* One step of `rows` samples and WIDE units; `strip` has their biases, and their weights of x and of h. */
INLINE void forward_tile(int rows, int inputs, int hidden, const float *x, const float *before, const float *strip,
                         float *gates, const float *c_before, float *c, float *tc, float *h) {
    vec a[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) a[r][q] = load(strip + q * WIDE);
    sum_tile(rows, inputs, x, strip + 4 * WIDE, a);
    sum_tile(rows, hidden, before, strip + (ptrdiff_t)(1 + inputs) * 4 * WIDE, a);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const ptrdiff_t at = (ptrdiff_t)r * hidden;
        const vec i = sigmoid(a[r][0]), f = sigmoid(a[r][1]), g = tanh_of(a[r][2]), o = sigmoid(a[r][3]);
        const vec state = f * load(c_before + at) + i * g, squashed = tanh_of(state);
        store(gates + 4 * at, i);
        store(gates + 4 * at + hidden, f);
        store(gates + 4 * at + 2 * hidden, g);
        store(gates + 4 * at + 3 * hidden, o);
        store(c + at, state);
        store(tc + at, squashed);
        store(h + at, o * squashed);
    }
}

/* Strips of WIDE units: their biases in i, f, g and o, then per input their weights, then per h. */
static void pack(const job *j, int m, float *packed) {
    const int I = j->inputs, H = j->hidden, all = 1 + I + H;
    const float *w_x = j->w_x + m * j->w_x_stride, *w_h = j->w_h + m * j->w_h_stride;
    for (int row = 0; row < 4 * H; row++) {
        const int q = row / H, unit = row % H;
        float *to = packed + (ptrdiff_t)(unit / WIDE) * all * 4 * WIDE + q * WIDE + unit % WIDE;
        *to = j->b_x ? j->b_x[m * j->b_x_stride + row] + j->b_h[m * j->b_h_stride + row] : 0.0f;
        for (int k = 0; k < I; k++) to[(ptrdiff_t)(1 + k) * 4 * WIDE] = w_x[(ptrdiff_t)row * I + k];
        for (int k = 0; k < H; k++) to[(ptrdiff_t)(1 + I + k) * 4 * WIDE] = w_h[(ptrdiff_t)row * H + k];
    }
}

static void forward_member(const job *j, int m, float *packed) {
    const int T = j->steps, N = j->samples, I = j->inputs, H = j->hidden;
    const ptrdiff_t state = (ptrdiff_t)N * H;
    pack(j, m, packed);
    float *hs = j->h + m * (T + 1) * state, *cs = j->c + m * (T + 1) * state;
    for (int step = 0; step < T; step++) {
        const int t = j->last_first ? T - 1 - step : step;
        const ptrdiff_t old = (j->last_first ? t + 1 : t) * state, new = (j->last_first ? t : t + 1) * state;
        const float *x = j->x + m * j->x_stride + (ptrdiff_t)t * N * I;
        float *gates = j->gates + ((ptrdiff_t)m * T + t) * 4 * state, *tc = j->tc + ((ptrdiff_t)m * T + t) * state;
        for (int s = 0; s < H; s += WIDE) {
            const float *strip = packed + (ptrdiff_t)s * (1 + I + H) * 4;
            int n = 0;
            for (; n + ROWS <= N; n += ROWS) {
                const ptrdiff_t at = (ptrdiff_t)n * H;
                forward_tile(ROWS, I, H, x + (ptrdiff_t)n * I, hs + old + at, strip, gates + 4 * at + s,
                             cs + old + at + s, cs + new + at + s, tc + at + s, hs + new + at + s);
            }
            for (; n < N; n++) {
                const ptrdiff_t at = (ptrdiff_t)n * H;
                forward_tile(1, I, H, x + (ptrdiff_t)n * I, hs + old + at, strip, gates + 4 * at + s,
                             cs + old + at + s, cs + new + at + s, tc + at + s, hs + new + at + s);
            }
        }
    }
}

/* dh = grad [rows][4H] times w [4H][H], in `vectors` columns of WIDE, plus what the output gives. */
INLINE void backward_tile(int rows, int vectors, int hidden, const float *grad, const float *w, const float *go,
                          ptrdiff_t go_sample, float *dh) {
    vec a[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) a[r][v] = go ? load(go + r * go_sample + v * WIDE) : (vec){0};
    for (int k = 0; k < 4 * hidden; k++) {
        const float *b = w + (ptrdiff_t)k * hidden;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float x = grad[(ptrdiff_t)r * 4 * hidden + k];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) a[r][v] += x * load(b + v * WIDE);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(dh + (ptrdiff_t)r * hidden + v * WIDE, a[r][v]);
}

static void through_weights(int N, int H, const float *grad, const float *w, const float *go, ptrdiff_t go_sample,
                            float *dh) {
    int s = 0;
    for (; s + 4 * WIDE <= H; s += 4 * WIDE) {
        int n = 0;
        for (; n + ROWS <= N; n += ROWS)
            backward_tile(ROWS, 4, H, grad + (ptrdiff_t)n * 4 * H, w + s, go ? go + n * go_sample + s : 0, go_sample,
                          dh + (ptrdiff_t)n * H + s);
        for (; n < N; n++)
            backward_tile(1, 4, H, grad + (ptrdiff_t)n * 4 * H, w + s, go ? go + n * go_sample + s : 0, go_sample,
                          dh + (ptrdiff_t)n * H + s);
    }
    for (; s < H; s += WIDE) {
        int n = 0;
        for (; n + 8 <= N; n += 8)
            backward_tile(8, 1, H, grad + (ptrdiff_t)n * 4 * H, w + s, go ? go + n * go_sample + s : 0, go_sample,
                          dh + (ptrdiff_t)n * H + s);
        for (; n < N; n++)
            backward_tile(1, 1, H, grad + (ptrdiff_t)n * 4 * H, w + s, go ? go + n * go_sample + s : 0, go_sample,
                          dh + (ptrdiff_t)n * H + s);
    }
}

/* dw [rows][columns] += grad [count][4H] turned, times x [count][columns], of `rows` rows and `vectors` columns. */
INLINE void outer_tile(int rows, int vectors, int count, const float *grad, int wide, const float *x, int columns,
                       float *dw) {
    vec a[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) a[r][v] = load(dw + (ptrdiff_t)r * columns + v * WIDE);
    for (int k = 0; k < count; k++) {
        const float *from = grad + (ptrdiff_t)k * wide, *b = x + (ptrdiff_t)k * columns;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) a[r][v] += from[r] * load(b + v * WIDE);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(dw + (ptrdiff_t)r * columns + v * WIDE, a[r][v]);
}

/* dw [wide][columns] = grad [count][wide] turned, times x [count][columns]; in parts of `count` that stay in cache. */
static void outer(ptrdiff_t count, const float *grad, int wide, const float *x, int columns, float *dw) {
    enum { PART = 64 };
    for (ptrdiff_t k = 0; k < (ptrdiff_t)wide * columns; k++) dw[k] = 0.0f;
    for (ptrdiff_t k = 0; k < count; k += PART) {
        const int part = count - k < PART ? (int)(count - k) : PART;
        const float *g = grad + k * wide, *from = x + k * columns;
        int s = 0;
        for (; s + 4 * WIDE <= columns; s += 4 * WIDE)
            for (int i = 0; i < wide; i += ROWS)
                outer_tile(ROWS, 4, part, g + i, wide, from + s, columns, dw + (ptrdiff_t)i * columns + s);
        for (; s + 2 * WIDE <= columns; s += 2 * WIDE)
            for (int i = 0; i < wide; i += 2 * ROWS)
                outer_tile(2 * ROWS, 2, part, g + i, wide, from + s, columns, dw + (ptrdiff_t)i * columns + s);
        for (; s + WIDE <= columns; s += WIDE)
            for (int i = 0; i < wide; i += 2 * ROWS)
                outer_tile(2 * ROWS, 1, part, g + i, wide, from + s, columns, dw + (ptrdiff_t)i * columns + s);
        for (; s < columns; s++) /* what is left: vectors of rows */
            for (int i = 0; i < wide; i += WIDE) {
                vec a = {0};
                for (int n = 0; n < part; n++) a += from[(ptrdiff_t)n * columns + s] * load(g + (ptrdiff_t)n * wide + i);
                for (int l = 0; l < WIDE; l++) dw[(ptrdiff_t)(i + l) * columns + s] += a[l];
            }
    }
}

static void backward_member(const job *j, int m, float *packed) {
    const int T = j->steps, N = j->samples, H = j->hidden;
    const ptrdiff_t state = (ptrdiff_t)N * H;
    const float *later = 0, *w = packed; /* where vectors don't straddle lines of the cache */
    memcpy(packed, j->w_h + m * j->w_h_stride, (size_t)4 * H * H * sizeof(float));
    float *db = j->db + (ptrdiff_t)m * 4 * H;
    for (int k = 0; k < 4 * H; k++) db[k] = 0.0f;
    float *dh = j->dh + m * state, *dc = j->dc + m * state;
    for (int step = 0; step < T; step++) {
        const int t = j->last_first ? step : T - 1 - step;
        const ptrdiff_t at = (ptrdiff_t)m * T + t;
        const float *gates = j->gates + at * 4 * state, *tc = j->tc + at * state;
        const float *c = j->c + ((ptrdiff_t)m * (T + 1) + (j->last_first ? t + 1 : t)) * state;
        const float *go = j->go ? j->go + m * j->go_member + t * j->go_step : 0;
        float *grad = j->grad + at * 4 * state;
        if (later)
            through_weights(N, H, later, w, go, j->go_sample, dh);
        else if (go)
            for (int n = 0; n < N; n++)
                for (int k = 0; k < H; k++) dh[(ptrdiff_t)n * H + k] += go[n * j->go_sample + k];
        for (int k = 0; k < H; k += WIDE) {
            vec bi = load(db + k), bf = load(db + H + k), bg = load(db + 2 * H + k), bo = load(db + 3 * H + k);
            for (int n = 0; n < N; n++) {
                const ptrdiff_t one = (ptrdiff_t)n * H + k, four = (ptrdiff_t)n * 4 * H + k;
                const vec i = load(gates + four), f = load(gates + four + H), g = load(gates + four + 2 * H);
                const vec o = load(gates + four + 3 * H), s = load(tc + one), up = load(dh + one);
                const vec d = load(dc + one) + up * o * (1.0f - s * s);
                const vec di = d * g * i * (1.0f - i), df = d * load(c + one) * f * (1.0f - f);
                const vec dg = d * i * (1.0f - g * g), own = up * s * o * (1.0f - o);
                bi += di, bf += df, bg += dg, bo += own;
                store(grad + four, di);
                store(grad + four + H, df);
                store(grad + four + 2 * H, dg);
                store(grad + four + 3 * H, own);
                store(dc + one, d * f);
            }
            store(db + k, bi), store(db + H + k, bf), store(db + 2 * H + k, bg), store(db + 3 * H + k, bo);
        }
        later = grad;
    }
    if (j->wants_first) through_weights(N, H, later, w, 0, 0, dh);
    const float *all = j->grad + (ptrdiff_t)m * T * 4 * state, *x = j->x + m * j->x_stride;
    const float *before = j->h + ((ptrdiff_t)m * (T + 1) + (j->last_first ? 1 : 0)) * state;
    if (j->dw_h) outer((ptrdiff_t)T * N, all, 4 * H, before, H, j->dw_h + (ptrdiff_t)m * 4 * H * H);
    if (j->dw_x) outer((ptrdiff_t)T * N, all, 4 * H, x, j->inputs, j->dw_x + (ptrdiff_t)m * 4 * H * j->inputs);
}

static void *forward_work(void *given) {
    const job *j = given;
    float *packed = 0;
    if (posix_memalign((void **)&packed, 64, (size_t)(1 + j->inputs + j->hidden) * j->hidden * 4 * sizeof(float))) return given;
    for (int m = j->first; m < j->end; m++) forward_member(j, m, packed);
    free(packed);
    return 0;
}

static void *backward_work(void *given) {
    const job *j = given;
    float *packed = 0;
    if (posix_memalign((void **)&packed, 64, (size_t)j->hidden * j->hidden * 4 * sizeof(float))) return given;
    for (int m = j->first; m < j->end; m++) backward_member(j, m, packed);
    free(packed);
    return 0;
}

/* The members in as many parts as threads; 0 where all went well. */
static int spread(job whole, int members, int threads, void *(*work)(void *)) {
    enum { MOST = 64 };
    pthread_t made[MOST];
    job parts[MOST];
    int started = 0, failed = 0;
    if (threads > members) threads = members;
    if (threads > MOST) threads = MOST;
    if (threads < 1) threads = 1;
    for (int i = 0; i < threads; i++) {
        parts[i] = whole;
        parts[i].first = (int)((long)members * i / threads);
        parts[i].end = (int)((long)members * (i + 1) / threads);
    }
    for (int i = 1; i < threads; i++, started++)
        if (pthread_create(&made[started], 0, work, &parts[i])) break;
    failed |= work(&parts[0]) != 0;
    for (int i = started + 1; i < threads; i++) failed |= work(&parts[i]) != 0; /* that could not be started */
    for (int i = 0; i < started; i++) {
        void *result = 0;
        pthread_join(made[i], &result);
        failed |= result != 0;
    }
    return failed;
}

/* Units that are computed together: the hidden size must be a multiple. */
int hfta_wide(void) { return WIDE; }

/* Sizes: M, T, N, I, H, whether the last time step comes first, threads, whether dh of the first step is wanted.
   Strides: of x, w_x, w_h, b_x, b_h by member, and of go by member, step and sample. Memory: in the order below. */
static job read(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    job j = {.steps = (int)sizes[1], .samples = (int)sizes[2], .inputs = (int)sizes[3], .hidden = (int)sizes[4]};
    j.last_first = (int)sizes[5], j.wants_first = (int)sizes[7];
    j.x_stride = strides[0], j.w_x_stride = strides[1], j.w_h_stride = strides[2];
    j.b_x_stride = strides[3], j.b_h_stride = strides[4];
    j.go_member = strides[5], j.go_step = strides[6], j.go_sample = strides[7];
    j.x = at[0], j.w_x = at[1], j.w_h = at[2], j.b_x = at[3], j.b_h = at[4];
    j.gates = at[5], j.h = at[6], j.c = at[7], j.tc = at[8];
    return j;
}

/* Fills gates and tc, and h and c after their first. */
int hfta_lstm_forward(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    return spread(read(sizes, strides, at), (int)sizes[0], (int)sizes[6], forward_work);
}

/* dh and dc [M][N][H]: before, of the last states; after, of the first ones (dh where wanted). Fills grad, as gates,
   and the gradients of w_x and w_h where they are not null, and of the biases. */
int hfta_lstm_backward(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    job j = read(sizes, strides, at);
    j.go = at[9], j.dh = at[10], j.dc = at[11], j.grad = at[12], j.dw_x = at[13], j.dw_h = at[14], j.db = at[15];
    return spread(j, (int)sizes[0], (int)sizes[6], backward_work);
}
