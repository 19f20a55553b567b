/* LSTMs of several members, all time steps of one member before the next, so that its values stay in cache.

   Products of the input with its weights, and gradients of weights and input, are computed for several time steps at
   once while these are in cache; only products with the state are computed per step. The gates' gradients are kept for
   these steps only.

   All arrays are float32 and contiguous within a member:
     x, dx  [T][N][I]      members `x_stride` apart, 0 if they share x; dx is contiguous
     w_x    [4H][I], w_h [4H][H], b_x and b_h [4H] or null; these and their gradients with members `*_stride` apart
     gates  [M][T][N][4H]  i, f, g, o
     h, c   [M][T+1][N][H] states; the first is at 0, or at T if the last time step comes first
*/

#include <pthread.h>
#include <stdlib.h>

#include "alive.h"
#include "tiles.h"

#define TOGETHER 128 /* minimum rows of a product over several time steps, whose operands fit into the second-level cache */
#define MOST 64         /* threads */
#define LEAST_SAMPLES 8 /* minimum for a thread that shares a member: fewer give too few running sums */
#define LEAST_WORK 4e6 /* minimum multiplications for such a thread: fewer take less time than starting it */

typedef struct {
    ptrdiff_t steps, samples, inputs, hidden;
    int last_first, wants_first;
    ptrdiff_t x_stride, w_x_stride, w_h_stride, b_x_stride, b_h_stride, dw_x_stride, dw_h_stride, db_stride;
    ptrdiff_t go_member, go_step, go_sample;
    const float *x, *w_x, *w_h, *b_x, *b_h, *go;
    float *gates, *h, *c, *dh, *dc, *dx, *dw_x, *dw_h, *db;
    ptrdiff_t first, end;  /* members of a thread */
    ptrdiff_t left, right; /* samples of a thread */
    float *apart;          /* separate dw_x, dw_h and db of a thread, if another thread has the member's; else null */
} job;

INLINE vec tanh_of(vec x) { return 2.0f * logistic(x + x) - 1.0f; }

static ptrdiff_t together(const job *j) {
    const ptrdiff_t steps = (TOGETHER + j->right - j->left - 1) / (j->right - j->left);
    return steps < j->steps ? steps : j->steps;
}

/* How many rows of `steps` are contiguous: all, or those of one step if other threads share the member. */
static ptrdiff_t gapless(const job *j, ptrdiff_t steps) {
    const ptrdiff_t own = j->right - j->left;
    return own == j->samples ? own * steps : own;
}

/* Computes the gates of `rows` samples from their sums in place, and c and h; prefetches the `next` step. */
static void cells(ptrdiff_t rows, ptrdiff_t hidden, float *gates, const float *c_before, float *c, float *h, ptrdiff_t next) {
    for (ptrdiff_t n = 0; n < rows; n++, gates += 4 * hidden)
        for (ptrdiff_t k = 0; k < hidden; k += WIDE) {
            const ptrdiff_t at = n * hidden + k;
            float *to = gates + k;
            const vec i = logistic(load(to)), f = logistic(load(to + hidden));
            const vec g = tanh_of(load(to + 2 * hidden)), o = logistic(load(to + 3 * hidden));
            const vec state = f * load(c_before + at) + i * g;
            __builtin_prefetch(c + at + next, 1);
            __builtin_prefetch(h + at + next, 1);
            store(to, i);
            store(to + hidden, f);
            store(to + 2 * hidden, g);
            store(to + 3 * hidden, o);
            store(c + at, state);
            store(h + at, o * tanh_of(state));
        }
}

static size_t forward_room(const job *j) { return (size_t)(4 * j->hidden * (j->inputs + j->hidden + 1)); }

static void forward_member(const job *j, ptrdiff_t m, float *room) {
    const ptrdiff_t T = j->steps, N = j->samples, I = j->inputs, H = j->hidden;
    const ptrdiff_t left = j->left, own = j->right - left, most = together(j);
    float *by_x = room, *by_h = by_x + 4 * H * I, *bias = by_h + 4 * H * H;
    all_packed(j->w_x + m * j->w_x_stride, I, 1, I, 4 * H, by_x);
    all_packed(j->w_h + m * j->w_h_stride, H, 1, H, 4 * H, by_h);
    for (ptrdiff_t k = 0; k < 4 * H; k++)
        bias[k] = j->b_x ? j->b_x[m * j->b_x_stride + k] + j->b_h[m * j->b_h_stride + k] : 0.0f;
    const float *x = j->x + m * j->x_stride;
    float *hs = j->h + m * (T + 1) * N * H, *cs = j->c + m * (T + 1) * N * H;
    float *gates = j->gates + m * T * N * 4 * H;
    for (ptrdiff_t step = 0; step < T; step++) {
        const ptrdiff_t t = j->last_first ? T - 1 - step : step;
        if (step % most == 0) {
            const ptrdiff_t steps = T - step < most ? T - step : most, from = (j->last_first ? t - steps + 1 : t) * N;
            const ptrdiff_t rows = gapless(j, steps);
            for (ptrdiff_t row = 0, at = from + left; row < own * steps; row += rows, at += N)
                by_panels(rows, I, 4 * H, x + at * I, I, 1, by_x, bias, 0, gates + at * 4 * H, 4 * H, 0);
        }
        const ptrdiff_t at = t * N + left, before = at + (j->last_first ? N : 0), after = at + (j->last_first ? 0 : N);
        by_panels(own, H, 4 * H, hs + before * H, H, 1, by_h, 0, 0, gates + at * 4 * H, 4 * H, 1);
        cells(own, H, gates + at * 4 * H, cs + before * H, cs + after * H, hs + after * H, (after - before) * H);
    }
}

/* The gradient of the gates' sums of `rows` samples, and dc of the preceding step from dc of this one; prefetches the
   gates and states of the `next` step. */
static void cells_back(ptrdiff_t rows, ptrdiff_t hidden, const float *gates, const float *c_before, const float *c,
                       const float *dh, float *dc, float *grad, ptrdiff_t wide, float *db, ptrdiff_t next) {
    for (ptrdiff_t n = 0; n < rows; n++, gates += 4 * hidden, grad += wide)
        for (ptrdiff_t k = 0; k < hidden; k += WIDE) {
            const ptrdiff_t at = n * hidden + k;
            const vec i = load(gates + k), f = load(gates + hidden + k), g = load(gates + 2 * hidden + k);
            const vec o = load(gates + 3 * hidden + k), s = tanh_of(load(c + at)), up = load(dh + at);
            const vec d = load(dc + at) + up * o * (1.0f - s * s);
            const vec di = d * g * i * (1.0f - i), df = d * load(c_before + at) * f * (1.0f - f);
            const vec dg = d * i * (1.0f - g * g), own = up * s * o * (1.0f - o);
            UNROLLED for (int q = 0; q < 4; q++) __builtin_prefetch(gates + 4 * next + q * hidden + k);
            __builtin_prefetch(c_before + next + at);
            store(grad + k, di);
            store(grad + hidden + k, df);
            store(grad + 2 * hidden + k, dg);
            store(grad + 3 * hidden + k, own);
            store(dc + at, d * f);
            store(db + k, load(db + k) + di);
            store(db + hidden + k, load(db + hidden + k) + df);
            store(db + 2 * hidden + k, load(db + 2 * hidden + k) + dg);
            store(db + 3 * hidden + k, load(db + 3 * hidden + k) + own);
        }
}

/* Rows of gradients are padded by a vector: otherwise those of all steps would share few cache lines. */
static ptrdiff_t grad_row(const job *j) { return 4 * j->hidden + WIDE; }

static size_t backward_room(const job *j) {
    const ptrdiff_t I = filled(j->inputs), H = j->hidden, rows = together(j) * (j->right - j->left);
    return (size_t)(4 * H * (H + (j->dx ? I : 0)) + rows * (grad_row(j) + (I > H ? I : H)));
}

/* dw [4H][columns] =, or += if `adds`, grad [rows][4H] transposed times `from` [rows][columns], stored by steps. */
static void summed(const job *j, ptrdiff_t steps, const float *grad, const float *from, ptrdiff_t columns, float *room,
                   float *dw, int adds) {
    const ptrdiff_t count = (j->right - j->left) * steps, rows = gapless(j, steps);
    for (ptrdiff_t k = 0; k < columns; k += PANEL) {
        const ptrdiff_t width = columns - k < PANEL ? columns - k : PANEL;
        for (ptrdiff_t row = 0, at = j->left; row < count; row += rows, at += j->samples)
            packed(from + at * columns + k, rows, columns, 1, width, room + row * filled(width));
        by_panels(4 * j->hidden, count, width, grad, 1, grad_row(j), room, 0, 0, dw + k, columns, adds);
    }
}

static void backward_member(const job *j, ptrdiff_t m, float *room) {
    const ptrdiff_t T = j->steps, N = j->samples, I = j->inputs, H = j->hidden, left = j->left, wide = grad_row(j);
    const ptrdiff_t own = j->right - left, most = together(j);
    float *by_h = room, *grads = by_h + 4 * H * H, *side = grads + most * own * wide;
    float *by_x = side + most * own * (filled(I) > H ? filled(I) : H);
    all_packed(j->w_h + m * j->w_h_stride, 4 * H, H, 1, H, by_h);
    if (j->dx) all_packed(j->w_x + m * j->w_x_stride, 4 * H, I, 1, I, by_x);
    float *dw_x = j->dw_x ? j->dw_x + m * j->dw_x_stride : 0, *dw_h = j->dw_h ? j->dw_h + m * j->dw_h_stride : 0;
    float *db = j->db + m * j->db_stride;
    if (j->apart) {
        db = j->apart;
        if (dw_x) dw_x = db + 4 * H;
        if (dw_h) dw_h = db + 4 * H * (1 + I);
    }
    memset(db, 0, (size_t)(4 * H) * sizeof(float));
    const float *x = j->x + m * j->x_stride, *hs = j->h + m * (T + 1) * N * H, *cs = j->c + m * (T + 1) * N * H;
    float *dh = j->dh + (m * N + left) * H, *dc = j->dc + (m * N + left) * H;
    for (ptrdiff_t step = 0; step < T; step++) {
        const ptrdiff_t t = j->last_first ? step : T - 1 - step, now = step % most;
        const ptrdiff_t steps = T - step + now < most ? T - step + now : most; /* computed together */
        float *grad = grads + (j->last_first ? now : steps - 1 - now) * own * wide;
        const ptrdiff_t at = (m * T + t) * N + left, before = (t + (j->last_first ? 1 : 0)) * N + left;
        const ptrdiff_t next = j->last_first ? N : -N; /* offset in rows of the following step */
        const float *go = j->go ? j->go + m * j->go_member + t * j->go_step + left * j->go_sample : 0;
        if (step == 0 && go)
            for (ptrdiff_t n = 0; n < own; n++)
                for (ptrdiff_t k = 0; k < H; k++) dh[n * H + k] += go[n * j->go_sample + k];
        cells_back(own, H, j->gates + at * 4 * H, cs + before * H, cs + (before - next) * H, dh, dc, grad, wide, db, next * H);
        if (step + 1 < T && go) go += j->last_first ? j->go_step : -j->go_step;
        if (step + 1 < T || j->wants_first)
            by_panels(own, 4 * H, H, grad, wide, 1, by_h, step + 1 < T ? go : 0, j->go_sample, dh, H, 0);
        if (now + 1 < steps) continue;
        const ptrdiff_t from = (j->last_first ? t - steps + 1 : t) * N;
        if (dw_x) summed(j, steps, grads, x + from * I, I, side, dw_x, step >= most);
        if (dw_h) summed(j, steps, grads, hs + (from + (j->last_first ? N : 0)) * H, H, side, dw_h, step >= most);
        const ptrdiff_t rows = gapless(j, steps);
        for (ptrdiff_t row = 0, to = m * T * N + from + left; j->dx && row < own * steps; row += rows, to += N)
            by_panels(rows, 4 * H, I, grads + row * wide, wide, 1, by_x, 0, 0, j->dx + to * I, I, 0);
    }
}

static void *work(const job *j, size_t entries, void (*one)(const job *, ptrdiff_t, float *)) {
    float *room = 0;
    if (posix_memalign((void **)&room, 64, entries * sizeof(float))) return (void *)j;
    for (ptrdiff_t m = j->first; m < j->end; m++) one(j, m, room);
    free(room);
    return 0;
}

static void *forward_work(void *given) { return work(given, forward_room(given), forward_member); }
static void *backward_work(void *given) { return work(given, backward_room(given), backward_member); }

/* Runs all parts, each on a thread; returns 0 on success. */
static int run(job *parts, int count, void *(*work)(void *)) {
    pthread_t made[MOST];
    int started = 0, failed = 0;
    for (int i = 1; i < count; i++, started++)
        if (pthread_create(&made[started], 0, work, &parts[i])) break;
    failed |= work(&parts[0]) != 0;
    for (int i = started + 1; i < count; i++) failed |= work(&parts[i]) != 0; /* those without a thread */
    for (int i = 0; i < started; i++) {
        void *result = 0;
        pthread_join(made[i], &result);
        failed |= result != 0;
    }
    return failed;
}

/* Divides the members among threads; with more threads than members, also each member's samples. Returns the number. */
static int shared_out(job whole, ptrdiff_t members, ptrdiff_t threads, job *parts) {
    threads = threads > MOST ? MOST : threads < 1 ? 1 : threads;
    ptrdiff_t split = threads / members;
    if (split > whole.samples / LEAST_SAMPLES) split = whole.samples / LEAST_SAMPLES;
    const double work = (double)whole.steps * whole.samples * 4 * whole.hidden * (whole.inputs + whole.hidden);
    if (split > work / LEAST_WORK) split = (ptrdiff_t)(work / LEAST_WORK);
    if (split < 1) split = 1;
    const ptrdiff_t groups = threads < members ? threads : members;
    for (ptrdiff_t i = 0; i < groups * split; i++) {
        parts[i] = whole;
        parts[i].first = members * (i / split) / groups;
        parts[i].end = members * (i / split + 1) / groups;
        parts[i].left = whole.samples * (i % split) / split;
        parts[i].right = whole.samples * (i % split + 1) / split;
    }
    return (int)(groups * split);
}

/* The number of units computed together, which must divide the hidden size. */
int hfta_wide(void) { return WIDE; }

/* Sizes: M, T, N, I, H, whether the last time step comes first, threads, whether dh of the first step is wanted.
   Memory: in the order below. Strides: by member for each, then of go by step and sample. */
static job read(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    return (job){
        .steps = sizes[1], .samples = sizes[2], .inputs = sizes[3], .hidden = sizes[4],
        .last_first = (int)sizes[5], .wants_first = (int)sizes[7],
        .x_stride = strides[0], .w_x_stride = strides[1], .w_h_stride = strides[2],
        .b_x_stride = strides[3], .b_h_stride = strides[4],
        .x = at[0], .w_x = at[1], .w_h = at[2], .b_x = at[3], .b_h = at[4],
        .gates = at[5], .h = at[6], .c = at[7],
    };
}

/* Fills gates, and h and c after their first. */
int hfta_lstm_forward(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    job parts[MOST];
    return run(parts, shared_out(read(sizes, strides, at), sizes[0], sizes[6], parts), forward_work);
}

/* dh and dc [M][N][H]: before, of the last states; after, of the first ones (dh where wanted). Fills the gradients of x,
   w_x and w_h where they are not null, and of the biases. */
int hfta_lstm_backward(const ptrdiff_t *sizes, const ptrdiff_t *strides, float *const *at) {
    job whole = read(sizes, strides, at), parts[MOST];
    whole.go = at[8], whole.dh = at[9], whole.dc = at[10], whole.dx = at[11];
    whole.dw_x = at[12], whole.dw_h = at[13], whole.db = at[14];
    whole.go_member = strides[8], whole.go_step = strides[15], whole.go_sample = strides[16];
    whole.dw_x_stride = strides[12], whole.dw_h_stride = strides[13], whole.db_stride = strides[14];
    const int count = shared_out(whole, sizes[0], sizes[6], parts);
    const ptrdiff_t by_bias = 4 * whole.hidden, by_x = by_bias * whole.inputs, by_h = by_bias * whole.hidden;
    const ptrdiff_t all = by_bias + by_x + by_h;
    float *apart = 0;
    if (parts[0].right < whole.samples) {
        if (posix_memalign((void **)&apart, 64, (size_t)(count * all) * sizeof(float))) return 1;
        for (int i = 0; i < count; i++)
            if (parts[i].left) parts[i].apart = apart + i * all;
    }
    const int failed = run(parts, count, backward_work);
    for (int i = 0; i < count && !failed; i++) {
        const float *more = parts[i].apart;
        if (!more) continue;
        const ptrdiff_t m = parts[i].first;
        for (ptrdiff_t k = 0; k < by_bias; k++) whole.db[m * whole.db_stride + k] += more[k];
        for (ptrdiff_t k = 0; whole.dw_x && k < by_x; k++) whole.dw_x[m * whole.dw_x_stride + k] += more[by_bias + k];
        for (ptrdiff_t k = 0; whole.dw_h && k < by_h; k++) whole.dw_h[m * whole.dw_h_stride + k] += more[by_bias + by_x + k];
    }
    free(apart);
    return failed;
}
