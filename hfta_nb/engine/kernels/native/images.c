/* Batch norm and group norm of float32 images, with optional subsequent ReLU (or an activation for each channel) and
   2 x 2 max-pooling, and the gradients; of a batch norm, in training alone.

   Intermediate values are never written: forward computes them where they are needed, and backward recomputes them.
   Group norm processes one sample after another, so that a sample stays in cache from its sums to its result. Sums of 64
   entries in float32 are added up in float64. */

#include "alive.h"
#include "images.h"

ptrdiff_t hfta_images_room(const images *n) {
    return 5 * filled(n->channels) + (n->turned ? filled(n->channels * n->height * n->width) : 0);
}

static columns columns_of(const images *n) {
    const ptrdiff_t wide = filled(n->channels);
    float *room = n->room;
    memset(room, 0, 20 * (size_t)wide);
    return (columns){room, room + wide, room + 2 * wide, room + 3 * wide, room + 4 * wide};
}

static void sum_sample(const images *n, const float *x, const float *mean, double *sums) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width;
    for (ptrdiff_t c = 0; c < channels && !n->last; c++)
        sums[c] += mean ? sum_first(x + c * pixels, pixels, mean[c], 1) : sum_first(x + c * pixels, pixels, 0, 0);
    for (ptrdiff_t j = 0; j < channels && n->last; j += WIDE)
        if (channels - j >= WIDE)
            sum_last(x + j, pixels, channels, mean ? mean + j : 0, sums + j, channels - j, 1);
        else
            sum_last(x + j, pixels, channels, mean ? mean + j : 0, sums + j, channels - j, 0);
}

INLINE void apply_sample(const images *n, const float *x, float *out, columns c, const int act) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width;
    for (ptrdiff_t i = 0; i < channels && !n->last; i++)
        apply_first(x + i * pixels, out + i * pixels, pixels, c.mean[i], c.scale[i], c.shift[i], act,
                    act == BY_CHANNEL ? n->kinds[i] : 0);
    for (ptrdiff_t j = 0; j < channels && n->last; j += WIDE)
        if (channels - j >= WIDE)
            apply_last(n, x, out + (n->pool ? j : 0), c, j, 1, act);
        else
            apply_last(n, x, out + (n->pool ? j : 0), c, j, 0, act);
}

INLINE void collect_sample(const images *n, const float *x, const float *grad, float *out, columns c, double *sums,
                           double *products, const int act) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width;
    if (act == BY_CHANNEL && n->pool && (n->height % 2 || n->width % 2)) /* pixels of no window have no gradient */
        memset(out, 0, 4 * (size_t)(channels * pixels));
    for (ptrdiff_t i = 0; i < channels && !n->last; i++)
        collect_first(x + i * pixels, grad + i * pixels, out + i * pixels, pixels, c.mean[i], c.scale[i], c.shift[i],
                      sums + i, products + i, act, act == BY_CHANNEL ? n->kinds[i] : 0);
    for (ptrdiff_t j = 0; j < channels && n->last; j += WIDE)
        if (channels - j >= WIDE)
            collect_last(n, x, grad, out, c, sums + j, products + j, j, 1, act);
        else
            collect_last(n, x, grad, out, c, sums + j, products + j, j, 0, act);
}

/* Of activations by channel, `grad` is `out`: it already has the gradient of the norm's result. */
INLINE void spread_sample(const images *n, const float *x, const float *grad, float *out, columns c, const int act) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width;
    for (ptrdiff_t i = 0; i < channels && !n->last; i++)
        spread_first(x + i * pixels, grad + i * pixels, out + i * pixels, pixels, c.mean[i], c.scale[i], c.shift[i],
                     c.off[i], c.along[i], act);
    for (ptrdiff_t j = 0; j < channels && n->last; j += WIDE)
        if (channels - j >= WIDE)
            spread_last(n, x, grad, out, c, j, 1, act);
        else
            spread_last(n, x, grad, out, c, j, 0, act);
}

static double total(const double *sums, ptrdiff_t count) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < count; i++) sum += sums[i];
    return sum;
}

/* The factor and the summand of each channel, from its group's new or given scale. */
static void affine(const images *n, columns c, const float *mean, const float *scale, ptrdiff_t group) {
    for (ptrdiff_t i = 0; i < n->channels; i++) {
        c.mean[i] = mean[i / group];
        c.scale[i] = n->weight ? scale[i / group] * n->weight[i] : scale[i / group];
        c.shift[i] = n->bias ? n->bias[i] : 0;
    }
}

static void follow_all(const images *n, columns c, ptrdiff_t first, ptrdiff_t stop, ptrdiff_t size, ptrdiff_t made) {
    for (ptrdiff_t s = first; s < stop; s++)
        if (n->kinds)
            apply_sample(n, n->x + s * size, n->out + s * made, c, BY_CHANNEL);
        else if (n->relu)
            apply_sample(n, n->x + s * size, n->out + s * made, c, 1);
        else
            apply_sample(n, n->x + s * size, n->out + s * made, c, 0);
}

void hfta_images(const images *n) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width, size = channels * pixels;
    const ptrdiff_t made = n->pool ? channels * (n->height / 2) * (n->width / 2) : size;
    const ptrdiff_t together = n->groups ? 1 : n->samples, groups = n->groups ? n->groups : channels;
    const ptrdiff_t group = channels / groups;
    const double count = (double)(group * pixels * together), kept = 1 - n->momentum;
    const columns c = columns_of(n);
    if (n->fixed) {
        for (ptrdiff_t i = 0; i < channels; i++) c.off[i] = (float)(1 / sqrt((double)n->running_var[i] + n->eps));
        affine(n, c, n->running_mean, c.off, 1);
        follow_all(n, c, 0, n->samples, size, made);
        return;
    }
    for (ptrdiff_t first = 0; first < n->samples; first += together) {
        float *mean = n->mean + (n->groups ? first * groups : 0), *scale = n->scale + (n->groups ? first * groups : 0);
        memset(n->sums, 0, 8 * (size_t)channels);
        for (ptrdiff_t s = first; s < first + together; s++) sum_sample(n, n->x + s * size, 0, n->sums);
        for (ptrdiff_t g = 0; g < groups; g++) mean[g] = (float)(total(n->sums + g * group, group) / count);
        for (ptrdiff_t i = 0; i < channels; i++) c.mean[i] = mean[i / group];
        memset(n->sums, 0, 8 * (size_t)channels);
        for (ptrdiff_t s = first; s < first + together; s++) sum_sample(n, n->x + s * size, c.mean, n->sums);
        for (ptrdiff_t g = 0; g < groups; g++) {
            const double squares = total(n->sums + g * group, group);
            scale[g] = (float)(1 / sqrt(squares / count + n->eps));
            if (n->running_mean)
                n->running_mean[g] = (float)(kept * (double)n->running_mean[g] + n->momentum * (double)mean[g]);
            if (n->running_var)
                n->running_var[g] = (float)(kept * (double)n->running_var[g] + n->momentum * squares / (count - 1));
        }
        affine(n, c, mean, scale, group);
        follow_all(n, c, first, first + together, size, made);
    }
}

/* The gradient of a sample's result, in the layout of the image. */
static const float *gradient(const images *n, ptrdiff_t sample, ptrdiff_t made) {
    const float *grad = n->grad + sample * made;
    if (!n->turned) return grad;
    const ptrdiff_t channels = n->channels, pixels = made / channels;
    float *room = n->room + 5 * filled(channels);
    for (ptrdiff_t p = 0; p < pixels; p++)
        for (ptrdiff_t c = 0; c < channels; c++) room[p * channels + c] = grad[c * pixels + p];
    return room;
}

/* For images with a common deviation: dx = scale (w g - mean(w g) - y mean(w g y)), with y = (x - mean) scale. */
void hfta_images_backward(const images *n) {
    const ptrdiff_t channels = n->channels, pixels = n->height * n->width, size = channels * pixels;
    const ptrdiff_t made = n->pool ? channels * (n->height / 2) * (n->width / 2) : size;
    const ptrdiff_t together = n->groups ? 1 : n->samples, groups = n->groups ? n->groups : channels;
    const ptrdiff_t group = channels / groups;
    const double count = (double)(group * pixels * together);
    const columns c = columns_of(n);
    double *sums = n->sums, *products = sums + channels, *by_weight = products + channels, *by_bias = by_weight + channels;
    memset(by_weight, 0, 16 * (size_t)channels);
    for (ptrdiff_t first = 0; first < n->samples; first += together) {
        const float *mean = n->mean + (n->groups ? first * groups : 0);
        const float *scale = n->scale + (n->groups ? first * groups : 0);
        affine(n, c, mean, scale, group);
        memset(sums, 0, 16 * (size_t)channels);
        for (ptrdiff_t s = first; s < first + together; s++) {
            const float *x = n->x + s * size, *grad = gradient(n, s, made);
            float *out = n->out + s * size;
            if (n->kinds)
                collect_sample(n, x, grad, out, c, sums, products, BY_CHANNEL);
            else if (n->relu)
                collect_sample(n, x, grad, out, c, sums, products, 1);
            else
                collect_sample(n, x, grad, out, c, sums, products, 0);
        }
        for (ptrdiff_t g = 0; g < groups; g++) {
            const double deviation = (double)scale[g];
            double sum = 0, product = 0;
            for (ptrdiff_t i = g * group; i < (g + 1) * group; i++) {
                const double weight = n->weight ? (double)n->weight[i] : 1;
                by_bias[i] += sums[i];
                by_weight[i] += products[i] * deviation;
                sum += weight * sums[i];
                product += weight * products[i];
            }
            for (ptrdiff_t i = g * group; i < (g + 1) * group; i++) {
                c.off[i] = (float)(deviation * sum / count);
                c.along[i] = (float)(deviation * deviation * deviation * product / count);
            }
        }
        for (ptrdiff_t s = first; s < first + together; s++) {
            float *out = n->out + s * size;
            const float *x = n->x + s * size, *grad = n->kinds ? out : gradient(n, s, made);
            if (n->kinds)
                spread_sample(n, x, grad, out, c, BY_CHANNEL);
            else if (n->relu)
                spread_sample(n, x, grad, out, c, 1);
            else
                spread_sample(n, x, grad, out, c, 0);
        }
    }
    for (ptrdiff_t i = 0; i < channels; i++) {
        if (n->weight_grad) n->weight_grad[i] = (float)by_weight[i];
        if (n->bias_grad) n->bias_grad[i] = (float)by_bias[i];
    }
}
