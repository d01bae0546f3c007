/* SPDX-License-Identifier: Apache-2.0 */
/* Products of q8 and q4 weights: four rows at a time, sixteen integer products an instruction, and the four rows'
 * scales in one float vector. Helium's floats flush subnormals; `safe` admits only activations with which none can
 * occur (docs/numerics.md section 4), others go the scalar way. */
#include <arm_mve.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../src/bytes.h"
#include "../../src/options.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "mve.h"

#define GROUPS 32u /* of a row at a time: what is known of them takes 256 bytes of stack */
#define UNIT 32u   /* columns that are done at once; a group has one, two or four of them */
#define LEAST_SCALE 0x19800000u /* the bits of 2^-76 */

/* One group of one token's activations. */
struct group {
    float scale;
    int32_t eights; /* q4: eight times the sum of its codes, because a nibble is the code + 8 */
};

struct panel {
    const int8_t *codes;
    uint32_t groups;
    uint32_t units; /* of a group */
    struct group group[GROUPS];
};

/* Four rows of weights, where the panel's groups start. */
struct rows {
    const uint8_t *codes[4];
    const uint16_t *scales;
    uint32x4_t scale_at; /* of each row, from there */
};

/* Four rows over the panel: sums go on from what they hold. */
typedef float32x4_t four_rows(const struct panel *x, const struct rows *w, float32x4_t sums);

#define INLINE static inline __attribute__((always_inline))

static bool safe(const float *scales, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t magnitude = colibri_float_bits(scales[g]) & 0x7FFFFFFFu;
        if (magnitude - 1u < LEAST_SCALE - 1u)
            return false;
    }
    return true;
}

/* GCC 12 would go through memory. */
INLINE int32x4_t vector(int32_t a, int32_t b, int32_t c, int32_t d)
{
    int32x4_t v = vuninitializedq_s32();
    __asm__("vmov %q0[2], %q0[0], %1, %2" : "+w"(v) : "r"(a), "r"(c));
    __asm__("vmov %q0[3], %q0[1], %1, %2" : "+w"(v) : "r"(b), "r"(d));
    return v;
}

/* The f16 in the lower half of each lane, exactly. GNU as 2.40 encodes the instruction wrongly but for q0. */
INLINE float32x4_t widened(uint32x4_t halves)
{
#if defined(__clang__)
    return vcvtbq_f32_f16(vreinterpretq_f16_u32(halves));
#else
    register uint32x4_t q0 __asm__("q0") = halves;
    __asm__("vcvtb.f32.f16 q0, q0" : "+w"(q0));
    return vreinterpretq_f32_u32(q0);
#endif
}

/* sums + float(dots) * (weight scale * activation scale), a row in each lane. */
INLINE float32x4_t scaled(float32x4_t sums, int32x4_t dots, const uint16_t *scales, uint32x4_t at, float scale)
{
    float32x4_t weight = widened(vldrhq_gather_shifted_offset_u32(scales, at));
    return vaddq_f32(sums, vmulq_f32(vcvtq_f32_s32(dots), vmulq_n_f32(weight, scale)));
}

#if COLIBRI_WITH_Q8
INLINE int32_t dot_q8(int32_t sum, const uint8_t *w, int8x16_t left, int8x16_t right)
{
    const int8_t *codes = (const int8_t *)w;
    return vmladavaq_s8(vmladavaq_s8(sum, vldrbq_s8(codes), left), vldrbq_s8(codes + 16), right);
}

static inline float32x4_t rows_q8(const struct panel *x, const struct rows *w, float32x4_t sums)
{
    const uint8_t *w0 = w->codes[0], *w1 = w->codes[1], *w2 = w->codes[2], *w3 = w->codes[3];
    const int8_t *codes = x->codes;
    const struct group *group = x->group, *end = group + x->groups;
    const uint16_t *scales = w->scales;
    do {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        uint32_t n = x->units;
        do {
            int8x16_t left = vldrbq_s8(codes), right = vldrbq_s8(codes + 16);
            s0 = dot_q8(s0, w0, left, right);
            s1 = dot_q8(s1, w1, left, right);
            s2 = dot_q8(s2, w2, left, right);
            s3 = dot_q8(s3, w3, left, right);
            codes += UNIT, w0 += UNIT, w1 += UNIT, w2 += UNIT, w3 += UNIT;
        } while (--n != 0);
        sums = scaled(sums, vector(s0, s1, s2, s3), scales++, w->scale_at, group->scale);
    } while (++group < end);
    return sums;
}
#endif

#if COLIBRI_WITH_Q4
INLINE int32_t dot_q4(int32_t sum, const uint8_t *w, int8x16_t low, int8x16_t high)
{
    uint8x16_t both = vldrbq_u8(w);
    sum = vmladavaq_s8(sum, vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), low);
    return vmladavaq_s8(sum, vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), high);
}

static inline float32x4_t rows_q4(const struct panel *x, const struct rows *w, float32x4_t sums)
{
    const uint8_t *w0 = w->codes[0], *w1 = w->codes[1], *w2 = w->codes[2], *w3 = w->codes[3];
    const int8_t *low = x->codes, *high = low + x->units * (UNIT / 2);
    const struct group *group = x->group, *end = group + x->groups;
    const uint16_t *scales = w->scales;
    do {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        uint32_t n = x->units;
        do {
            int8x16_t l = vldrbq_s8(low), h = vldrbq_s8(high);
            s0 = dot_q4(s0, w0, l, h);
            s1 = dot_q4(s1, w1, l, h);
            s2 = dot_q4(s2, w2, l, h);
            s3 = dot_q4(s3, w3, l, h);
            low += 16, high += 16, w0 += 16, w1 += 16, w2 += 16, w3 += 16;
        } while (--n != 0);
        int32x4_t dots = vsubq_n_s32(vector(s0, s1, s2, s3), group->eights);
        sums = scaled(sums, dots, scales++, w->scale_at, group->scale);
        low = high;
        high += x->units * (UNIT / 2);
    } while (++group < end);
    return sums;
}
#endif

/* Rows of the panel whose first group is `first`. Sums go on in out, from +0 at the first panel. Fewer than four rows at
 * the end are filled up with the last one. */
INLINE void panel_rows(const colibri_matrix *w, const struct panel *x, uint32_t first, uint32_t row, uint32_t row_end,
                       float *out, four_rows *kernel)
{
    size_t codes = (size_t)first * (w->type == COLIBRI_Q4 ? w->group / 2 : w->group);
    for (; row < row_end; row += 4) {
        uint32_t last = row_end - row > 4 ? 3 : row_end - row - 1;
        uint32x4_t lane = vminq_u32(vidupq_n_u32(0, 1), vdupq_n_u32(last));
        struct rows at = {.scales = w->scales + (size_t)row * w->groups + first, .scale_at = vmulq_n_u32(lane, w->groups)};
        for (uint32_t i = 0; i < 4; i++)
            at.codes[i] = w->codes + (size_t)(row + (i < last ? i : last)) * w->stride + codes;
        float kept[4];
        float *sums = last == 3 ? out + row : kept;
        for (uint32_t i = 0; i < 4 && last < 3; i++)
            kept[i] = out[row + (i < last ? i : last)];
        vst1q_f32(sums, kernel(x, &at, first == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(sums)));
        for (uint32_t i = 0; i <= last && last < 3; i++)
            out[row + i] = kept[i];
    }
}

static void fill(struct panel *x, const colibri_matmul *m, uint32_t first)
{
    const colibri_matrix *w = m->weight;
    x->units = w->group / UNIT;
    x->groups = w->groups - first < GROUPS ? w->groups - first : GROUPS;
    x->codes = m->codes + (size_t)first * w->group;
    const int8_t *codes = x->codes;
    for (uint32_t g = 0; g < x->groups; g++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < w->group; i += 16, codes += 16)
            sum = vaddvaq_s8(sum, vldrbq_s8(codes));
        x->group[g].scale = m->scales[first + g];
        x->group[g].eights = 8 * sum;
    }
}

/* One token, activations and outputs where m points to. */
static void token(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    struct panel x;
    for (uint32_t first = 0; first < w->groups; first += x.groups) {
        fill(&x, m, first);
#if COLIBRI_WITH_Q8
        if (w->type == COLIBRI_Q8)
            panel_rows(w, &x, first, row_begin, row_end, m->out, rows_q8);
#endif
#if COLIBRI_WITH_Q4
        if (w->type == COLIBRI_Q4)
            panel_rows(w, &x, first, row_begin, row_end, m->out, rows_q4);
#endif
    }
    for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
        m->out[r] = m->out[r] + m->bias[r]; /* a bias may be subnormal */
}

void colibri_mve_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    if (m->weight->groups == 0) {
        colibri_ref_matmul(m, row_begin, row_end);
        return;
    }
    for (uint32_t t = 0; t < m->tokens; t++) {
        size_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
        size_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
        colibri_matmul one = *m;
        one.codes += in_row * m->code_stride;
        one.scales += in_row * m->scale_stride;
        one.out += out_row * m->out_stride;
        one.in_rows = one.out_rows = NULL;
        one.tokens = 1;
        if (safe(one.scales, m->weight->groups))
            token(&one, row_begin, row_end);
        else
            colibri_ref_matmul(&one, row_begin, row_end);
    }
}
