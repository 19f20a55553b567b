/* Vectors of float32 by extensions of GCC and clang (partial vectors by AVX-512's masks). */

#ifndef HFTA_VECTORS
#define HFTA_VECTORS

#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDE 16
#define ACROSS 4
#else
#define WIDE 8
#define ACROSS 2
#endif
typedef float vec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

/* v where x is positive or NaN, otherwise zero. */
INLINE vec where_positive(vec x, vec v) {
    const vec zero = {0};
    return (vec)(~(ivec)(x <= zero) & (ivec)v);
}

/* The first `count` entries, fewer than a full vector; the rest are zero. */
#if defined(__AVX512F__)
#define FIRST(count) ((__mmask16)((1u << (count)) - 1))
INLINE vec some(const float *p, ptrdiff_t count) { return (vec)_mm512_maskz_loadu_ps(FIRST(count), p); }
INLINE void put_some(float *p, vec v, ptrdiff_t count) { _mm512_mask_storeu_ps(p, FIRST(count), (__m512)v); }
#else
INLINE vec some(const float *p, ptrdiff_t count) {
    vec v = {0};
    memcpy(&v, p, 4 * (size_t)count);
    return v;
}
INLINE void put_some(float *p, vec v, ptrdiff_t count) { memcpy(p, &v, 4 * (size_t)count); }
#endif

#if defined(__has_builtin) && !defined(HFTA_NO_SHUFFLE) /* defined by tests; GCC 11 and older lack the builtin */
#if __has_builtin(__builtin_shufflevector)
#define PICK __builtin_shufflevector
#if WIDE == 16
#define SHUFFLED
#endif
#endif
#endif

/* exp as 2^n times a polynomial in r, |r| <= ln(2) / 2; NaN stays NaN. */
INLINE vec exponential(vec x) {
    const vec zero = {0};
    const ivec low = x < zero - 87.0f, high = x > zero + 88.0f;
    x = (vec)((low & (ivec)(zero - 87.0f)) | (~low & (ivec)x));
    x = (vec)((high & (ivec)(zero + 88.0f)) | (~high & (ivec)x));
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
    const ivec number = n == n;
    const ivec e = (__builtin_convertvector((vec)(number & (ivec)n), ivec) + 127) << 23;
    return p * (vec)e;
}

/* 1 / (1 + exp(-x)) with an absolute error of 1e-7: rounding errors of a large exponent are negligible. NaN stays NaN. */
INLINE vec logistic(vec x) {
    const vec zero = {0};
    vec y = x * -1.44269504f;
#if defined(__AVX512F__)
    y = (vec)_mm512_min_ps((__m512)(zero + 125.0f), (__m512)y); /* for a NaN and a number, returns the second */
    y = (vec)_mm512_max_ps((__m512)(zero - 125.0f), (__m512)y);
    const vec n = (vec)_mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const ivec low = y < zero - 125.0f, high = y > zero + 125.0f;
    y = (vec)((low & (ivec)(zero - 125.0f)) | (~low & (ivec)y));
    y = (vec)((high & (ivec)(zero + 125.0f)) | (~high & (ivec)y));
    const vec magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    const vec n = (y + magic) - magic;
#endif
    const vec r = y - n; /* 2^r, to 2e-9 */
    vec p = zero + 1.53533619e-04f;
    p = p * r + 1.33988744e-03f;
    p = p * r + 9.61843736e-03f;
    p = p * r + 5.55033247e-02f;
    p = p * r + 2.40226479e-01f;
    p = p * r + 6.93147203e-01f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    const vec d = 1.0f + (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
    const vec about = (vec)_mm512_rcp14_ps((__m512)d);
    return about + about * (1.0f - d * about);
#else
    const ivec number = n == n;
    const ivec e = (__builtin_convertvector((vec)(number & (ivec)n), ivec) + 127) << 23;
    return 1.0f / (1.0f + p * (vec)e);
#endif
}

INLINE vec larger(vec a, vec b) {
    const ivec first = a > b;
    return (vec)((first & (ivec)a) | (~first & (ivec)b));
}

/* The sum or the maximum of a vector: halves are combined until one entry is left. */
#if defined(PICK)
#define JOIN(joined, ...) \
    w = PICK(v, v, __VA_ARGS__); \
    v = joined;
#if WIDE == 16
#define JOIN_ALL(joined) \
    JOIN(joined, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7) \
    JOIN(joined, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11) \
    JOIN(joined, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13) \
    JOIN(joined, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#else
#define JOIN_ALL(joined) \
    JOIN(joined, 4, 5, 6, 7, 0, 1, 2, 3) \
    JOIN(joined, 2, 3, 0, 1, 6, 7, 4, 5) \
    JOIN(joined, 1, 0, 3, 2, 5, 4, 7, 6)
#endif
#else
#define JOIN_ALL(joined) \
    const vec all = v; \
    for (int i = 1; i < WIDE; i++) { \
        w[0] = all[i]; \
        v = joined; \
    }
#endif
#define ACROSS_ALL(name, joined) \
    INLINE float name(vec v) { \
        vec w = v; \
        JOIN_ALL(joined) \
        return v[0]; \
    }
ACROSS_ALL(sum_of, v + w)
ACROSS_ALL(largest_of, larger(v, w))

/* The mask of a vector's first `count` entries. */
INLINE ivec among(ptrdiff_t count) {
    ivec lane;
    UNROLLED for (int i = 0; i < WIDE; i++) lane[i] = i;
    const ivec limit = {0};
    return lane < limit + (int)(count < WIDE ? count : WIDE);
}

INLINE ptrdiff_t filled(ptrdiff_t count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* Loads and stores up to a vector of remaining entries; the entries beyond them are set to zero. */
INLINE vec part(const float *row, ptrdiff_t left) { return left >= WIDE ? load(row) : some(row, left); }

INLINE void put(float *row, vec v, ptrdiff_t left) {
    if (left >= WIDE)
        store(row, v);
    else
        put_some(row, v, left);
}

INLINE vec kept(vec v, ptrdiff_t left) { return left >= WIDE ? v : (vec)(among(left) & (ivec)v); }

INLINE vec root_of(vec v) {
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)v);
#else
    for (int i = 0; i < WIDE; i++) v[i] = sqrtf(v[i]);
    return v;
#endif
}

#endif
