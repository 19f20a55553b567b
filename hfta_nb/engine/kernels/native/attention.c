/* Attention over short sequences in float32, forward and backward: one head of one sample at a time, whose scores stay
   in cache. The products are those of `product.c`.

   All tensors are [B][H][L or S][D] with adjacent entries in a row and any other strides; `logs`, the
   logarithm of the sum of a row's exponentials, is [B][H][L]. */

#include "product.c"

enum { Q, K, V, OUT, LOGS, D_OUT, DQ, DK, DV, TENSORS };

typedef struct {
    ptrdiff_t samples, heads, queries, keys, wide, causal;
    ptrdiff_t strides[TENSORS][3]; /* of sample, head and row, in entries */
    float *tensors[TENSORS];
    float *room; /* work memory, `hfta_attention_room` entries */
    float scale;
} attention;

ptrdiff_t hfta_attention_room(ptrdiff_t queries, ptrdiff_t keys, ptrdiff_t wide) {
    const ptrdiff_t inner = queries > keys ? queries : keys;
    return hfta_product_room(inner > wide ? inner : wide) + 2 * queries * filled(keys);
}

static float *head_of(const attention *p, int which, ptrdiff_t sample, ptrdiff_t head) {
    return p->tensors[which] + sample * p->strides[which][0] + head * p->strides[which][1];
}

/* c[rows][columns] = a b, where entries are adjacent along one of the axes of each factor. */
static void multiply(const attention *p, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t columns, const float *a,
                     ptrdiff_t a_row, ptrdiff_t a_inner, const float *b, ptrdiff_t b_inner, ptrdiff_t b_column, float *c,
                     ptrdiff_t c_row) {
    const product one = {.members = 1, .rows = rows, .inner = inner, .columns = columns, .a_row = a_row,
                         .a_inner = a_inner, .b_inner = b_inner, .b_column = b_column, .c_row = c_row, .a = a, .b = b,
                         .c = c, .room = p->room};
    hfta_product(&one);
}

/* The number of keys that a query attends to. */
static ptrdiff_t seen(const attention *p, ptrdiff_t query) {
    return p->causal && query + 1 < p->keys ? query + 1 : p->keys;
}

/* The maximum of a row's first entries. NaNs are ignored here and show in the sum of the row. */
static float top_of(const float *row, ptrdiff_t count) {
    const vec zero = {0};
    vec top = zero - INFINITY;
    for (ptrdiff_t j = 0; j < count; j += WIDE) {
        const ivec valid = among(count - j);
        top = larger((vec)((valid & (ivec)load(row + j)) | (~valid & (ivec)(zero - INFINITY))), top);
    }
    return largest_of(top);
}

/* Replaces a row of scores by exp(scale * score - less), and by zero for masked keys; returns the sum. */
static float raised(const attention *p, float *row, ptrdiff_t count, float less) {
    const ptrdiff_t whole = filled(p->keys);
    vec sum = {0};
    for (ptrdiff_t j = 0; j < whole; j += WIDE) {
        vec v = {0};
        if (j < count) v = (vec)(among(count - j) & (ivec)exponential(load(row + j) * p->scale - less));
        store(row + j, v);
        sum += v;
    }
    return sum_of(sum);
}

void hfta_attention(const attention *p) {
    const ptrdiff_t width = filled(p->keys);
    float *scores = p->room + (hfta_attention_room(p->queries, p->keys, p->wide) - 2 * p->queries * width);
    for (ptrdiff_t sample = 0; sample < p->samples; sample++)
        for (ptrdiff_t head = 0; head < p->heads; head++) {
            const float *q = head_of(p, Q, sample, head), *k = head_of(p, K, sample, head);
            const float *v = head_of(p, V, sample, head);
            float *out = head_of(p, OUT, sample, head), *logs = head_of(p, LOGS, sample, head);
            multiply(p, p->queries, p->wide, p->keys, q, p->strides[Q][2], 1, k, 1, p->strides[K][2], scores, width);
            for (ptrdiff_t i = 0; i < p->queries; i++) {
                float *row = scores + i * width;
                const ptrdiff_t count = seen(p, i);
                const float largest = top_of(row, count) * p->scale;
                const float sum = raised(p, row, count, largest), share = 1.0f / sum;
                for (ptrdiff_t j = 0; j < width; j += WIDE) store(row + j, load(row + j) * share);
                logs[i * p->strides[LOGS][2]] = largest + logf(sum);
            }
            multiply(p, p->queries, p->keys, p->wide, scores, width, 1, v, p->strides[V][2], 1, out, p->strides[OUT][2]);
        }
}

void hfta_attention_backward(const attention *p) {
    const ptrdiff_t width = filled(p->keys), queries = p->queries, keys = p->keys, wide = p->wide;
    float *shares = p->room + (hfta_attention_room(queries, keys, wide) - 2 * queries * width);
    float *slopes = shares + queries * width;
    for (ptrdiff_t sample = 0; sample < p->samples; sample++)
        for (ptrdiff_t head = 0; head < p->heads; head++) {
            const float *q = head_of(p, Q, sample, head), *k = head_of(p, K, sample, head);
            const float *v = head_of(p, V, sample, head), *by = head_of(p, D_OUT, sample, head);
            const float *out = head_of(p, OUT, sample, head), *logs = head_of(p, LOGS, sample, head);
            const ptrdiff_t by_row = p->strides[D_OUT][2];
            multiply(p, queries, wide, keys, q, p->strides[Q][2], 1, k, 1, p->strides[K][2], shares, width);
            for (ptrdiff_t i = 0; i < queries; i++)
                raised(p, shares + i * width, seen(p, i), logs[i * p->strides[LOGS][2]]);
            multiply(p, keys, queries, wide, shares, 1, width, by, by_row, 1, head_of(p, DV, sample, head),
                     p->strides[DV][2]);
            multiply(p, queries, wide, keys, by, by_row, 1, v, 1, p->strides[V][2], slopes, width);
            for (ptrdiff_t i = 0; i < queries; i++) {
                const float *one = by + i * by_row, *two = out + i * p->strides[OUT][2];
                vec each = {0};
                for (ptrdiff_t d = 0; d < wide; d += WIDE)
                    each += wide - d >= WIDE ? load(one + d) * load(two + d) : some(one + d, wide - d) * some(two + d, wide - d);
                const float mean = sum_of(each);
                for (ptrdiff_t j = 0; j < width; j += WIDE) {
                    float *at = slopes + i * width + j;
                    const ptrdiff_t left = keys - j;
                    vec slope = left >= WIDE ? load(at) : some(at, left);
                    slope = load(shares + i * width + j) * (slope - mean) * p->scale;
                    store(at, slope);
                }
            }
            multiply(p, queries, keys, wide, slopes, width, 1, k, p->strides[K][2], 1, head_of(p, DQ, sample, head),
                     p->strides[DQ][2]);
            multiply(p, keys, queries, wide, slopes, 1, width, q, p->strides[Q][2], 1, head_of(p, DK, sample, head),
                     p->strides[DK][2]);
        }
}
