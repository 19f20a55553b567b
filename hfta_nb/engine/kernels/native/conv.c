/* Convolutions of float32 images with channels last, and their gradients.

   An image of a group is copied with its padding, so that a row of a window is contiguous: products read the rows that
   an unfolded copy would contain. A tile of pixels by output channels stays in registers. The gradient of the image is a
   convolution of the result's gradient, with pixels a stride apart, and transposed weights. */

#include "alive.h"
#include "vectors.h"

#define ACROSS_MOST 2
#define MOST 16 /* rows of a tile that is one vector wide; half as many for wider tiles: the number of running sums */

typedef struct {
    ptrdiff_t samples, groups, in, out; /* channels of a group */
    ptrdiff_t height, width, made_height, made_width;
    ptrdiff_t tall, wide, above, beside, down, along;                  /* of the window; of the padding; strides */
    ptrdiff_t weight_out, weight_in, weight_row, weight_column;        /* strides of weight */
    ptrdiff_t given_out, given_in, given_row, given_column;            /* and of its gradient */
    const float *x, *weight, *bias, *grad;                             /* bias null for none; grad of the gradients alone */
    float *result, *by_x, *by_weight, *by_bias;                        /* of the gradients, null for none */
    float *room;                                                       /* `hfta_conv_room` entries */
} conv;

static ptrdiff_t larger_of(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

/* Entries for one padded image, the packed weights, and their gradient. */
ptrdiff_t hfta_conv_room(const conv *c) {
    const ptrdiff_t most = larger_of(c->height + 2 * c->above, c->height + c->tall - 1) *
                           larger_of(c->width + 2 * c->beside, c->width + c->wide - 1);
    const ptrdiff_t window = c->tall * c->wide;
    return filled(most * larger_of(c->in, c->out)) + window * larger_of(c->in * filled(c->out), c->out * filled(c->in)) +
           WIDE;
}

/* The offset and the pixel stride of an image of this height and width within its padded frame. */
typedef struct {
    ptrdiff_t height, width, above, beside, down, along, full_height, full_width;
} frame;

/* Copies a group's channels of a sample into a frame of zeros. */
static void framed(const frame *f, const float *x, ptrdiff_t step, ptrdiff_t channels, float *to) {
    const ptrdiff_t across = f->full_width * channels;
    memset(to, 0, 4 * (size_t)(f->full_height * across));
    to += f->above * across + f->beside * channels;
    for (ptrdiff_t h = 0; h < f->height; h++, x += f->width * step, to += f->down * across) {
        if (step == channels && f->along == 1) {
            memcpy(to, x, 4 * (size_t)(f->width * channels));
            continue;
        }
        for (ptrdiff_t w = 0; w < f->width; w++)
            for (ptrdiff_t i = 0; i < channels; i++) to[w * f->along * channels + i] = x[w * step + i];
    }
}

typedef struct {
    ptrdiff_t tall, taps, run, row;                   /* rows of the window, runs of one, entries of those; of the image */
    ptrdiff_t first, each, first_tap, each_tap;       /* the rows and runs that contain pixels */
    ptrdiff_t step, to_step;                          /* from pixel to pixel of the image and of the result */
    ptrdiff_t columns, last;                          /* of weights, filled up; entries of the last vector */
} window;

/* A tile of the result: some pixels of a row, some vectors of channels. */
INLINE void tile(const int pixels, const int across, const window *p, const float *x, const float *weight,
                 const float *bias, float *to) {
    vec sum[MOST][ACROSS_MOST];
    UNROLLED for (int i = 0; i < pixels; i++)
        UNROLLED for (int j = 0; j < across; j++) {
            const vec zero = {0};
            sum[i][j] = bias ? load(bias + j * WIDE) : zero;
        }
    const ptrdiff_t step = p->step, columns = p->columns;
    for (ptrdiff_t t = p->first; t < p->tall; t += p->each)
        for (ptrdiff_t u = p->first_tap; u < p->taps; u += p->each_tap) {
            const float *a = x + t * p->row + u * p->run, *by = weight + (t * p->taps + u) * p->run * columns;
            for (ptrdiff_t k = 0; k < p->run; k++, a++, by += columns) {
                vec w[ACROSS_MOST];
                UNROLLED for (int j = 0; j < across; j++) w[j] = load(by + j * WIDE);
                UNROLLED for (int i = 0; i < pixels; i++) {
                    const float v = a[i * step];
                    UNROLLED for (int j = 0; j < across; j++) sum[i][j] += v * w[j];
                }
            }
        }
    UNROLLED for (int i = 0; i < pixels; i++)
        UNROLLED for (int j = 0; j < across; j++)
            put(to + i * p->to_step + j * WIDE, sum[i][j], j + 1 < across ? WIDE : p->last);
}

/* A tile of the weights' gradient: some entries of a row of the window, some vectors; summed over a sample's pixels. */
INLINE void sums(const int rows, const int across, const float *x, ptrdiff_t row, ptrdiff_t step, const float *grad,
                 ptrdiff_t grad_step, ptrdiff_t height, ptrdiff_t width, ptrdiff_t last, float *to, ptrdiff_t columns) {
    vec sum[MOST][ACROSS_MOST];
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < across; j++) {
            const vec zero = {0};
            sum[i][j] = zero;
        }
    for (ptrdiff_t h = 0; h < height; h++) {
        const float *a = x + h * row;
        for (ptrdiff_t w = 0; w < width; w++) {
            vec g[ACROSS_MOST];
            UNROLLED for (int j = 0; j < across; j++) g[j] = part(grad + j * WIDE, j + 1 < across ? WIDE : last);
            UNROLLED for (int i = 0; i < rows; i++) {
                const float v = a[i];
                UNROLLED for (int j = 0; j < across; j++) sum[i][j] += v * g[j];
            }
            a += step;
            grad += grad_step;
        }
    }
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < across; j++) {
            float *total = to + i * columns + j * WIDE;
            store(total, load(total) + sum[i][j]);
        }
}

#define EACH(of) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8)
#define MORE(of) of(9) of(10) of(11) of(12) of(13) of(14) of(15) of(16)

static void tiles(int pixels, int across, const window *p, const float *x, const float *weight, const float *bias,
                  float *to) {
#define ONE(n) case n: return tile(n, 1, p, x, weight, bias, to);
#define TWO(n) case n: return tile(n, 2, p, x, weight, bias, to);
    if (across == 1)
        switch (pixels) { EACH(ONE) MORE(ONE) }
    else
        switch (pixels) { EACH(TWO) }
#undef ONE
#undef TWO
}

static void all_sums(int rows, int across, const float *x, ptrdiff_t row, ptrdiff_t step, const float *grad,
                     ptrdiff_t grad_step, ptrdiff_t height, ptrdiff_t width, ptrdiff_t last, float *to,
                     ptrdiff_t columns) {
#define ONE(n) case n: return sums(n, 1, x, row, step, grad, grad_step, height, width, last, to, columns);
#define TWO(n) case n: return sums(n, 2, x, row, step, grad, grad_step, height, width, last, to, columns);
    if (across == 1)
        switch (rows) { EACH(ONE) MORE(ONE) }
    else
        switch (rows) { EACH(TWO) }
#undef ONE
#undef TWO
}

/* Divides rows into tiles of about equal size. */
static ptrdiff_t at_once(ptrdiff_t count, ptrdiff_t vectors) {
    const ptrdiff_t most = MOST / vectors, parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

/* The first row, or column, of a window at `at` that contains pixels; pixels are `apart` and begin at `begin`. */
static ptrdiff_t first_of(ptrdiff_t at, ptrdiff_t begin, ptrdiff_t apart) {
    const ptrdiff_t over = (at - begin) % apart;
    return over > 0 ? apart - over : -over;
}

/* Convolves a framed image with weights [row][column][channel][columns], at all positions or with a stride. If an
   image's pixels are apart with zeros between them, positions at the same distance have the same pixels in their windows. */
static void convolved(const frame *f, const float *x, ptrdiff_t down, ptrdiff_t along, ptrdiff_t in, ptrdiff_t out,
                      ptrdiff_t tall, ptrdiff_t wide, ptrdiff_t height, ptrdiff_t width, const float *weight,
                      const float *bias, float *to, ptrdiff_t to_step) {
    const ptrdiff_t columns = filled(out), row = f->full_width * in, sets = f->along;
    for (ptrdiff_t j = 0; j < out; j += ACROSS_MOST * WIDE) {
        const ptrdiff_t left = out - j, vectors = left > WIDE ? 2 : 1;
        float own[ACROSS_MOST * WIDE] = {0};
        if (bias) memcpy(own, bias + j, 4 * (size_t)(left < ACROSS_MOST * WIDE ? left : ACROSS_MOST * WIDE));
        window p = {tall, sets > 1 ? wide : 1, sets > 1 ? in : wide * in, row, 0, f->down, 0, sets, sets * along * in,
                    sets * to_step, columns, left > 2 * WIDE ? WIDE : left - (vectors - 1) * WIDE};
        for (ptrdiff_t h = 0; h < height; h++)
            for (ptrdiff_t set = 0; set < sets && set < width; set++) {
                const ptrdiff_t count = (width - set + sets - 1) / sets, each = at_once(count, vectors);
                p.first = first_of(h * down, f->above, f->down);
                p.first_tap = first_of(set, f->beside, sets);
                for (ptrdiff_t w = 0; w < count; w += each) {
                    const ptrdiff_t at = set + w * sets;
                    tiles((int)(count - w < each ? count - w : each), (int)vectors, &p,
                          x + h * down * row + at * along * in, weight + j, bias ? own : 0,
                          to + (h * width + at) * to_step + j);
                }
            }
    }
}

/* A group's weights, packed by channels of the result, or transposed, by channels of the image. */
static void arranged(const conv *c, ptrdiff_t group, int turned, float *to) {
    const ptrdiff_t in = turned ? c->out : c->in, out = turned ? c->in : c->out, columns = filled(out);
    const float *from = c->weight + group * c->out * c->weight_out;
    memset(to, 0, 4 * (size_t)(c->tall * c->wide * in * columns));
    for (ptrdiff_t t = 0; t < c->tall; t++)
        for (ptrdiff_t w = 0; w < c->wide; w++, to += in * columns) {
            const ptrdiff_t row = turned ? c->tall - 1 - t : t, column = turned ? c->wide - 1 - w : w;
            const float *at = from + row * c->weight_row + column * c->weight_column;
            for (ptrdiff_t i = 0; i < in; i++)
                for (ptrdiff_t o = 0; o < out; o++)
                    to[i * columns + o] = at[(turned ? i : o) * c->weight_out + (turned ? o : i) * c->weight_in];
        }
}

static frame around(const conv *c) {
    return (frame){c->height, c->width, c->above, c->beside, 1, 1, c->height + 2 * c->above, c->width + 2 * c->beside};
}

void hfta_conv(const conv *c) {
    const frame f = around(c);
    const ptrdiff_t in_step = c->groups * c->in, out_step = c->groups * c->out;
    float *weight = c->room, *image = weight + c->tall * c->wide * c->in * filled(c->out);
    for (ptrdiff_t g = 0; g < c->groups; g++) {
        arranged(c, g, 0, weight);
        for (ptrdiff_t n = 0; n < c->samples; n++) {
            framed(&f, c->x + n * c->height * c->width * in_step + g * c->in, in_step, c->in, image);
            convolved(&f, image, c->down, c->along, c->in, c->out, c->tall, c->wide, c->made_height,
                      c->made_width, weight, c->bias ? c->bias + g * c->out : 0,
                      c->result + n * c->made_height * c->made_width * out_step + g * c->out, out_step);
        }
    }
}

static void by_weight(const conv *c, const float *image, const float *grad, float *to) {
    const ptrdiff_t across = (c->width + 2 * c->beside) * c->in, run = c->wide * c->in, columns = filled(c->out);
    for (ptrdiff_t j = 0; j < c->out; j += ACROSS_MOST * WIDE) {
        const ptrdiff_t left = c->out - j, vectors = left > WIDE ? 2 : 1, each = at_once(run, vectors);
        const ptrdiff_t last = left > 2 * WIDE ? WIDE : left - (vectors - 1) * WIDE;
        for (ptrdiff_t t = 0; t < c->tall; t++)
            for (ptrdiff_t e = 0; e < run; e += each)
                all_sums((int)(run - e < each ? run - e : each), (int)vectors, image + t * across + e, c->down * across,
                         c->along * c->in, grad + j, c->groups * c->out, c->made_height, c->made_width, last,
                         to + (t * run + e) * columns + j, columns);
    }
}

/* The gradients. With `grad` as the image and `by_x` as the result, a transposed convolution, which may have a bias. */
void hfta_conv_backward(const conv *c) {
    const ptrdiff_t in_step = c->groups * c->in, out_step = c->groups * c->out, columns = filled(c->out);
    const ptrdiff_t pixels = c->made_height * c->made_width, window = c->tall * c->wide;
    const frame own = around(c), made = {c->made_height,         c->made_width, c->tall - 1 - c->above,
                                         c->wide - 1 - c->beside, c->down,       c->along,
                                         c->height + c->tall - 1, c->width + c->wide - 1};
    float *weight = c->room, *image = weight + window * larger_of(c->in * columns, c->out * filled(c->in));
    for (ptrdiff_t g = 0; g < c->groups; g++) {
        if (c->by_weight) {
            memset(weight, 0, 4 * (size_t)(window * c->in * columns));
            for (ptrdiff_t n = 0; n < c->samples; n++) {
                framed(&own, c->x + n * c->height * c->width * in_step + g * c->in, in_step, c->in, image);
                by_weight(c, image, c->grad + n * pixels * out_step + g * c->out, weight);
            }
            for (ptrdiff_t k = 0; k < window * c->in; k++) {
                const ptrdiff_t row = k / (c->wide * c->in), column = k / c->in % c->wide, channel = k % c->in;
                float *to = c->by_weight + g * c->out * c->given_out + row * c->given_row + column * c->given_column +
                            channel * c->given_in;
                for (ptrdiff_t o = 0; o < c->out; o++) to[o * c->given_out] = weight[k * columns + o];
            }
        }
        if (c->by_x) {
            arranged(c, g, 1, weight);
            for (ptrdiff_t n = 0; n < c->samples; n++) {
                framed(&made, c->grad + n * pixels * out_step + g * c->out, out_step, c->out, image);
                convolved(&made, image, 1, 1, c->out, c->in, c->tall, c->wide, c->height, c->width, weight,
                          c->bias ? c->bias + g * c->in : 0,
                          c->by_x + n * c->height * c->width * in_step + g * c->in, in_step);
            }
        }
    }
    if (!c->by_bias) return;
    memset(c->by_bias, 0, 4 * (size_t)out_step);
    for (ptrdiff_t n = 0; n < c->samples; n++)
        for (ptrdiff_t j = 0; j < out_step; j += WIDE) {
            vec sum = {0};
            const float *grad = c->grad + n * pixels * out_step + j;
            for (ptrdiff_t h = 0; h < c->made_height; h++) {
                vec row = {0};
                for (ptrdiff_t w = 0; w < c->made_width; w++, grad += out_step) row += part(grad, out_step - j);
                sum += row;
            }
            put(c->by_bias + j, part(c->by_bias + j, out_step - j) + sum, out_step - j);
        }
}
