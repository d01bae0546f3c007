/* SPDX-License-Identifier: Apache-2.0 */
/* Products of q8 and q4 weights: SMLAD over two rows at a time, against activations that were widened to 16 bits
 * once for all rows. The bits are those of docs/numerics.md section 4: the dot of a group is exact in int32 in
 * any order, and the floats are added group by group. */
#include <arm_acle.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../src/options.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "dsp.h"

#define COLUMNS 256u /* widened at a time: 512 bytes of stack */
#define GROUPS (COLUMNS / 32u)

/* Activations of a few groups, as pairs of 16 bits in the order in which the weights meet them. */
struct panel {
    int32_t pairs[COLUMNS / 2];
    int32_t start[GROUPS]; /* what the sum of a group starts from */
    const float *scales;
    uint32_t group;
    uint32_t groups;
};

/* Two rows of weights, where the panel's groups start. */
struct rows {
    const uint8_t *codes[2];
    const uint16_t *scales[2];
};

/* Two rows over the panel: sums go on from what they hold. */
typedef void two_rows(const struct panel *x, const struct rows *w, float sums[2]);

/* Codes lie at multiples of four (colibri/kernels.h). */
static inline int32_t four(const int8_t *codes)
{
    typedef int32_t __attribute__((may_alias)) word;
    return *(const word *)(const void *)codes;
}

static inline int32_t even(int32_t bytes)
{
    return __sxtb16(bytes);
}

static inline int32_t odd(int32_t bytes)
{
    return __sxtb16((int32_t)((uint32_t)bytes >> 8));
}

#if COLIBRI_WITH_Q8
static void widen_q8(struct panel *x, const int8_t *codes)
{
    int32_t *pair = x->pairs;
    for (uint32_t i = 0; i < x->groups * x->group; i += 4, pair += 2) {
        pair[0] = even(four(codes + i));
        pair[1] = odd(four(codes + i));
    }
}

/* Four weights of W against the pairs A and B. */
#define FOUR(SUM, W, A, B)                   \
    "sxtb16 r12, " W "\n\t"                  \
    "smlad " SUM ", r12, " A ", " SUM "\n\t" \
    "sxtb16 r12, " W ", ror #8\n\t"          \
    "smlad " SUM ", r12, " B ", " SUM "\n\t"

#define EIGHT_COLUMNS                                               \
    "ldmia %[x]!, {r0-r3}\n\t"                                      \
    "ldrd r4, r5, [%[w0]], #8\n\t"                                  \
    FOUR("%[s0]", "r4", "r0", "r1") FOUR("%[s0]", "r5", "r2", "r3") \
    "ldrd r4, r5, [%[w1]], #8\n\t"                                  \
    FOUR("%[s1]", "r4", "r0", "r1") FOUR("%[s1]", "r5", "r2", "r3")

static inline void rows_q8(const struct panel *x, const struct rows *w, float sums[2])
{
    const uint8_t *w0 = w->codes[0], *w1 = w->codes[1];
    const uint16_t *scale0 = w->scales[0], *scale1 = w->scales[1];
    const int32_t *pair = x->pairs;
    float sum0 = sums[0], sum1 = sums[1];
    for (uint32_t g = 0; g < x->groups; g++) {
        int32_t s0 = 0, s1 = 0;
        for (uint32_t n = x->group / 32; n != 0; n--)
            __asm__(EIGHT_COLUMNS EIGHT_COLUMNS EIGHT_COLUMNS EIGHT_COLUMNS
                    : [x] "+r"(pair), [w0] "+r"(w0), [w1] "+r"(w1), [s0] "+r"(s0), [s1] "+r"(s1)
                    :
                    : "r0", "r1", "r2", "r3", "r4", "r5", "r12", "memory");
        sum0 = sum0 + (float)s0 * (colibri_dsp_f16(scale0[g]) * x->scales[g]);
        sum1 = sum1 + (float)s1 * (colibri_dsp_f16(scale1[g]) * x->scales[g]);
    }
    sums[0] = sum0;
    sums[1] = sum1;
}
#endif

#if COLIBRI_WITH_Q4
/* A byte is low + 16 * high. With L and H the activations that meet its two halves,
 *     16 * (low * L + high * H)  =  byte * H + low * (16 * L - H),
 * so the high half needs no instruction that takes it out. */
static inline int32_t mixed(int32_t low, int32_t high)
{
    return __ssub16((int32_t)((uint32_t)low << 4 & 0xFFF0FFF0u), high);
}

/* The nibble is the code + 8: the eight is taken off at the start of the sum. */
static void widen_q4(struct panel *x, const int8_t *codes)
{
    const int32_t ones = 0x00010001;
    uint32_t half = x->group / 2;
    int32_t *pair = x->pairs;
    for (uint32_t g = 0; g < x->groups; g++, codes += x->group) {
        int32_t sum = 0;
        for (uint32_t j = 0; j < half; j += 4, pair += 4) {
            int32_t low = four(codes + j), high = four(codes + half + j);
            pair[0] = mixed(even(low), even(high));
            pair[1] = even(high);
            pair[2] = mixed(odd(low), odd(high));
            pair[3] = odd(high);
            sum = __smlad(even(low), ones, __smlad(odd(low), ones, sum));
            sum = __smlad(even(high), ones, __smlad(odd(high), ones, sum));
        }
        x->start[g] = -8 * 16 * sum;
    }
}

/* Eight weights of a row. */
#define EIGHT(SUM, ROW)                     \
    "ldr r4, [" ROW "], #4\n\t"             \
    "uxtb16 r5, r4\n\t"                     \
    "smlad " SUM ", r5, r1, " SUM "\n\t"    \
    "and r5, r4, #0x000F000F\n\t"           \
    "smlad " SUM ", r5, r0, " SUM "\n\t"    \
    "uxtb16 r4, r4, ror #8\n\t"             \
    "smlad " SUM ", r4, r3, " SUM "\n\t"    \
    "and r4, r4, #0x000F000F\n\t"           \
    "smlad " SUM ", r4, r2, " SUM "\n\t"

#define TWICE_FOUR_COLUMNS "ldmia %[x]!, {r0-r3}\n\t" EIGHT("%[s0]", "%[w0]") EIGHT("%[s1]", "%[w1]")

/* A sixteenth of a sum, as a float. */
static inline float sixteenth(int32_t sum)
{
#if defined(__ARM_FP)
    float value;
    __asm__("vmov %0, %1\n\tvcvt.f32.s32 %0, %0, #4" : "=t"(value) : "r"(sum));
    return value;
#else
    return (float)(sum / 16);
#endif
}

static inline void rows_q4(const struct panel *x, const struct rows *w, float sums[2])
{
    const uint8_t *w0 = w->codes[0], *w1 = w->codes[1];
    const uint16_t *scale0 = w->scales[0], *scale1 = w->scales[1];
    const int32_t *pair = x->pairs;
    float sum0 = sums[0], sum1 = sums[1];
    for (uint32_t g = 0; g < x->groups; g++) {
        int32_t s0 = x->start[g], s1 = s0;
        for (uint32_t n = x->group / 32; n != 0; n--)
            __asm__(TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS
                    : [x] "+r"(pair), [w0] "+r"(w0), [w1] "+r"(w1), [s0] "+r"(s0), [s1] "+r"(s1)
                    :
                    : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
        sum0 = sum0 + sixteenth(s0) * (colibri_dsp_f16(scale0[g]) * x->scales[g]);
        sum1 = sum1 + sixteenth(s1) * (colibri_dsp_f16(scale1[g]) * x->scales[g]);
    }
    sums[0] = sum0;
    sums[1] = sum1;
}
#endif

/* Row by row over the panel's groups, the first of which is `first`. Sums go on in out: from +0 at the first panel, with
 * the bias at the last. An odd last row is done twice. */
static inline __attribute__((always_inline)) void panel_rows(const colibri_matmul *m, const struct panel *x, uint32_t first,
                                                             uint32_t row_begin, uint32_t row_end, float *out, two_rows *kernel)
{
    const colibri_matrix *w = m->weight;
    const float *bias = first + x->groups == w->groups ? m->bias : NULL;
    uint32_t bytes = x->group >> (w->type == COLIBRI_Q4);
    const uint8_t *codes = w->codes + (size_t)row_begin * w->stride + (size_t)first * bytes;
    const uint16_t *scales = w->scales + (size_t)row_begin * w->groups + first;
    for (uint32_t r = row_begin; r < row_end; r += 2) {
        uint32_t step = r + 1 < row_end;
        const struct rows at = {{codes, codes + step * w->stride}, {scales, scales + step * w->groups}};
        float sums[2] = {0.0f, 0.0f};
        if (first != 0)
            sums[0] = out[r], sums[1] = out[r + step];
        kernel(x, &at, sums);
        out[r + step] = bias != NULL ? sums[1] + bias[r + step] : sums[1];
        out[r] = bias != NULL ? sums[0] + bias[r] : sums[0];
        codes += 2 * (size_t)w->stride;
        scales += 2 * (size_t)w->groups;
    }
}

static void panel(const colibri_matmul *m, struct panel *x, uint32_t first, uint32_t in_row, uint32_t row_begin,
                  uint32_t row_end, float *out)
{
    const int8_t *codes = m->codes + (size_t)in_row * m->code_stride + (size_t)first * x->group;
    x->scales = m->scales + (size_t)in_row * m->scale_stride + first;
#if COLIBRI_WITH_Q8
    if (m->weight->type == COLIBRI_Q8) {
        widen_q8(x, codes);
        panel_rows(m, x, first, row_begin, row_end, out, rows_q8);
    }
#endif
#if COLIBRI_WITH_Q4
    if (m->weight->type == COLIBRI_Q4) {
        widen_q4(x, codes);
        panel_rows(m, x, first, row_begin, row_end, out, rows_q4);
    }
#endif
}

void colibri_dsp_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    if (w->groups == 0 || w->order != COLIBRI_ORDER_ROWS) {
        colibri_ref_matmul(m, row_begin, row_end);
        return;
    }
    struct panel x; /* 560 bytes, filled as far as needed */
    x.group = w->group;
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
        uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
        float *out = m->out + (size_t)out_row * m->out_stride;
        for (uint32_t first = 0; first < w->groups; first += x.groups) {
            uint32_t left = w->groups - first, most = COLUMNS / w->group;
            x.groups = left < most ? left : most;
            panel(m, &x, first, in_row, row_begin, row_end, out);
        }
    }
}
