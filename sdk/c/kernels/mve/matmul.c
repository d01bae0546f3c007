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

#define GROUPS 16u /* of a row at a time: what is known of them takes 128 bytes of stack */
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
    struct group group[GROUPS];
};

/* Rows of weights, four by four, where the panel's groups start. */
struct rows {
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t stride; /* bytes of codes */
    uint32_t groups; /* scales of a row */
    uint32_t fours;
    bool begin;      /* sums start from +0, else from out */
    float *out;
};

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

INLINE int32x4_t vector(int32_t a, int32_t b, int32_t c, int32_t d)
{
#if defined(__clang__)
    return (int32x4_t){a, b, c, d};
#else /* GCC 12 would go through memory */
    int32x4_t v = vuninitializedq_s32();
    __asm__("vmov %q0[2], %q0[0], %1, %2" : "+w"(v) : "r"(a), "r"(c));
    __asm__("vmov %q0[3], %q0[1], %1, %2" : "+w"(v) : "r"(b), "r"(d));
    return v;
#endif
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

/* Four dots, kept in integer registers. What is constant where a function is inlined decides: no loop runs inside a group. */
struct dots {
    int32_t row[4];
};

INLINE int32_t dot_q8(int32_t sum, bool first, const uint8_t *w, int8x16_t left, int8x16_t right)
{
    const int8_t *codes = (const int8_t *)w;
    sum = first ? vmladavq_s8(vldrbq_s8(codes), left) : vmladavaq_s8(sum, vldrbq_s8(codes), left);
    return vmladavaq_s8(sum, vldrbq_s8(codes + 16), right);
}

INLINE int32_t dot_q4(int32_t sum, bool first, const uint8_t *w, int8x16_t left, int8x16_t right)
{
    uint8x16_t both = vldrbq_u8(w);
    int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
    int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    sum = first ? vmladavq_s8(low, left) : vmladavaq_s8(sum, low, left);
    return vmladavaq_s8(sum, high, right);
}

INLINE int32_t dot(bool q4, int32_t sum, bool first, const uint8_t *w, int8x16_t left, int8x16_t right)
{
    return q4 ? dot_q4(sum, first, w, left, right) : dot_q8(sum, first, w, left, right);
}

/* Unit u of the units of a group. */
INLINE void unit(bool q4, struct dots *dots, const uint8_t *const w[4], const int8_t *x, uint32_t u, uint32_t units)
{
    uint32_t at = q4 ? u * 16 : u * 32;
    int8x16_t left = vldrbq_s8(x + at), right = vldrbq_s8(x + at + (q4 ? units * 16 : 16));
    dots->row[0] = dot(q4, dots->row[0], u == 0, w[0] + at, left, right);
    dots->row[1] = dot(q4, dots->row[1], u == 0, w[1] + at, left, right);
    dots->row[2] = dot(q4, dots->row[2], u == 0, w[2] + at, left, right);
    dots->row[3] = dot(q4, dots->row[3], u == 0, w[3] + at, left, right);
}

INLINE int32x4_t group_dots(bool q4, const uint8_t *const w[4], const int8_t *x, uint32_t units)
{
    struct dots dots;
    unit(q4, &dots, w, x, 0, units);
    if (units > 1)
        unit(q4, &dots, w, x, 1, units);
    if (units > 2) {
        unit(q4, &dots, w, x, 2, units);
        unit(q4, &dots, w, x, 3, units);
    }
    return vector(dots.row[0], dots.row[1], dots.row[2], dots.row[3]);
}

INLINE void rows_by(bool q4, uint32_t units, const struct panel *x, const struct rows *rows)
{
    const uint32x4_t at = vmulq_n_u32(vidupq_n_u32(0, 1), rows->groups);
    const uint32_t bytes = q4 ? units * 16 : units * 32;
    const uint8_t *codes = rows->codes;
    const uint16_t *scales = rows->scales;
    float *out = rows->out;
    for (uint32_t n = rows->fours; n != 0; n--) {
        const uint8_t *w[4] = {codes, codes + rows->stride, codes + 2 * rows->stride, codes + 3 * rows->stride};
        float32x4_t sums = rows->begin ? vdupq_n_f32(0.0f) : vld1q_f32(out);
        const int8_t *activations = x->codes;
        const struct group *group = x->group;
        const uint16_t *scale = scales;
        for (uint32_t g = x->groups; g != 0; g--, group++, scale++) {
            int32x4_t dots = group_dots(q4, w, activations, units);
            if (q4)
                dots = vsubq_n_s32(dots, group->eights);
            sums = scaled(sums, dots, scale, at, group->scale);
            activations += units * UNIT;
            w[0] += bytes, w[1] += bytes, w[2] += bytes, w[3] += bytes;
        }
        vst1q_f32(out, sums);
        out += 4;
        codes += 4 * (size_t)rows->stride;
        scales += 4 * (size_t)rows->groups;
    }
}

static void q8_32(const struct panel *x, const struct rows *rows) { rows_by(false, 1, x, rows); }
static void q8_64(const struct panel *x, const struct rows *rows) { rows_by(false, 2, x, rows); }
static void q8_128(const struct panel *x, const struct rows *rows) { rows_by(false, 4, x, rows); }
static void q4_32(const struct panel *x, const struct rows *rows) { rows_by(true, 1, x, rows); }
static void q4_64(const struct panel *x, const struct rows *rows) { rows_by(true, 2, x, rows); }
static void q4_128(const struct panel *x, const struct rows *rows) { rows_by(true, 4, x, rows); }

static void rows_of(const colibri_matrix *w, const struct panel *x, const struct rows *rows)
{
    if (COLIBRI_WITH_Q8 && w->type == COLIBRI_Q8)
        (w->group == 32 ? q8_32 : w->group == 64 ? q8_64 : q8_128)(x, rows);
    if (COLIBRI_WITH_Q4 && w->type == COLIBRI_Q4)
        (w->group == 32 ? q4_32 : w->group == 64 ? q4_64 : q4_128)(x, rows);
}

/* The panel's rows, the first of which is `row`. The one to three that make no four are done one by one, as four equal ones. */
static void panel_rows(const colibri_matrix *w, const struct panel *x, uint32_t first, uint32_t row, uint32_t row_end, float *out)
{
    size_t codes = (size_t)first * (w->type == COLIBRI_Q4 ? w->group / 2 : w->group);
    struct rows rows = {.codes = w->codes + (size_t)row * w->stride + codes,
                        .scales = w->scales + (size_t)row * w->groups + first,
                        .stride = w->stride, .groups = w->groups, .fours = (row_end - row) / 4,
                        .begin = first == 0, .out = out + row};
    rows_of(w, x, &rows);
    for (row += 4 * rows.fours; row < row_end; row++) {
        float same[4] = {out[row], 0.0f, 0.0f, 0.0f};
        const struct rows one = {.codes = w->codes + (size_t)row * w->stride + codes,
                                 .scales = w->scales + (size_t)row * w->groups + first,
                                 .fours = 1, .begin = first == 0, .out = same};
        rows_of(w, x, &one);
        out[row] = same[0];
    }
}

static void fill(struct panel *x, const colibri_matmul *m, uint32_t first)
{
    const colibri_matrix *w = m->weight;
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

/* A product of one token. */
static void token(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    struct panel x;
    if (!safe(m->scales, w->groups)) {
        colibri_ref_matmul(m, row_begin, row_end);
        return;
    }
    for (uint32_t first = 0; first < w->groups; first += x.groups) {
        fill(&x, m, first);
        panel_rows(w, &x, first, row_begin, row_end, m->out);
    }
    for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
        m->out[r] = m->out[r] + m->bias[r]; /* a bias may be subnormal */
}

void colibri_mve_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    colibri_ref_by_token(m, row_begin, row_end, token);
}
