/* Activations that a channel may have, with their slopes. */

#ifndef HFTA_ACTIVATIONS
#define HFTA_ACTIVATIONS

#include "vectors.h"

enum { IDENTITY, RELU, GELU, TANH, SILU, KINDS };

INLINE vec either(ivec which, vec yes, vec no) { return (vec)((which & (ivec)yes) | (~which & (ivec)no)); }

/* The normal distribution: probability up to y, with an error of 1e-7 (Abramowitz and Stegun 7.1.26), and density. */
INLINE vec probability(vec y, vec *density) {
    const vec zero = {0}, size = larger(y, -y), d = 1.0f + 0.231641888f * size;
#if defined(__AVX512F__)
    const vec about = (vec)_mm512_rcp14_ps((__m512)d), t = about + about * (1.0f - d * about);
#else
    const vec t = 1.0f / d;
#endif
    const vec e = exponential(-0.5f * y * y);
    vec p = zero + 0.5307027145f;
    p = p * t - 0.7265760135f;
    p = p * t + 0.7107068705f;
    p = p * t - 0.142248368f;
    p = p * t + 0.127414796f;
    const vec beyond = p * t * e;
    *density = 0.398942280f * e;
    return either(y < zero, beyond, 1.0f - beyond);
}

INLINE vec activated(int kind, vec y) {
    vec density;
    if (kind == RELU) return where_positive(y, y);
    if (kind == GELU) return y * probability(y, &density);
    if (kind == TANH) return 2.0f * logistic(y + y) - 1.0f;
    return kind == SILU ? (vec)(y * logistic(y)) : y;
}

INLINE vec slope(int kind, vec y) {
    const vec one = (vec){0} + 1.0f;
    vec density;
    if (kind == RELU) return where_positive(y, one);
    if (kind == GELU) {
        const vec up_to = probability(y, &density);
        return up_to + y * density;
    }
    if (kind == IDENTITY) return one;
    const vec part = logistic(kind == TANH ? (vec)(y + y) : y);
    return kind == TANH ? (vec)(4.0f * part * (1.0f - part)) : (vec)(part * (1.0f + y * (1.0f - part)));
}

/* The kinds of a vector of channels: one for all, and others with the channels that have them. */
typedef struct {
    int first, count, kind[KINDS - 1];
    ivec own[KINDS - 1];
} several;

INLINE several kinds_at(const int *kinds, ptrdiff_t at, const int wanted) {
    several by = {0};
    if (!wanted) return by;
    ivec given;
    memcpy(&given, kinds + at, sizeof given);
    by.first = kinds[at];
    for (int kind = 0; kind < KINDS; kind++) {
        const ivec own = given == kind;
        int any = 0;
        for (int i = 0; i < WIDE; i++) any |= own[i];
        if (!any || kind == by.first) continue;
        by.kind[by.count] = kind;
        by.own[by.count++] = own;
    }
    return by;
}

INLINE vec activated_by(const several *by, vec y) {
    vec found = activated(by->first, y);
    for (int i = 0; i < by->count; i++) found = either(by->own[i], activated(by->kind[i], y), found);
    return found;
}

INLINE vec slope_by(const several *by, vec y) {
    vec found = slope(by->first, y);
    for (int i = 0; i < by->count; i++) found = either(by->own[i], slope(by->kind[i], y), found);
    return found;
}

#endif
