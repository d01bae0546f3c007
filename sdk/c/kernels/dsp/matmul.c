/* SPDX-License-Identifier: Apache-2.0 */
/* Products of q8 and q4 weights: SMLAD over two rows at a time, against activations that were widened to 16 bits
 * once for all rows. The bits are those of docs/numerics.md section 4: the dot of a group is exact in int32 in
 * any order, and the floats are added group by group.
 *
 * The inner loops are assembly because compilers that schedule them keep more alive than there are registers. */
#include <arm_acle.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../src/options.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "dsp.h"

#if !defined(__OPTIMIZE__) && !defined(__clang__)
#error "compile this file with -O1 or more: unoptimised, GCC keeps too few registers for the assembly"
#endif

#define COLUMNS 192u /* widened at a time: 384 bytes of stack */
#define UNIT 32u     /* columns that the assembly does at once; a group has one, two or four of them */

/* One group of one token's activations. */
struct group {
    int32_t start; /* of the sum of its products */
    float scale;
};

/* A few groups; pairs of 16 bits in the order in which the weights meet them. */
struct panel {
    int32_t pairs[COLUMNS / 2];
    struct group group[COLUMNS / UNIT];
    uint32_t groups;
    uint32_t units; /* of a group */
};

/* Rows of weights, two by two, where the panel's groups start. */
struct rows {
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t stride; /* bytes of codes */
    uint32_t groups; /* scales of a row */
    uint32_t twos;
    bool begin;      /* sums start from +0, else from out */
    float *out;
};

/* Where the two rows and the activations have got to. */
struct cursor {
    const int32_t *pair;
    const uint8_t *codes0, *codes1;
    int32_t sum0, sum1;
};

#define INLINE static inline __attribute__((always_inline))

/* Codes lie at multiples of four (colibri/kernels.h). */
INLINE int32_t four(const int8_t *codes)
{
    typedef int32_t __attribute__((may_alias)) word;
    return *(const word *)(const void *)codes;
}

INLINE int32_t even(int32_t bytes)
{
    return __sxtb16(bytes);
}

INLINE int32_t odd(int32_t bytes)
{
    return __sxtb16((int32_t)((uint32_t)bytes >> 8));
}

static void widen_q8(struct panel *x, const int8_t *codes)
{
    const int8_t *end = codes + x->groups * x->units * UNIT;
    for (int32_t *pair = x->pairs; codes < end; codes += 4) {
        int32_t bytes = four(codes);
        *pair++ = even(bytes);
        *pair++ = odd(bytes);
    }
    for (uint32_t g = 0; g < x->groups; g++)
        x->group[g].start = 0;
}

/* Four weights of W against the pairs A and B. */
#define FOUR(SUM, W, A, B)                   \
    "sxtb16 r12, " W "\n\t"                  \
    "smlad " SUM ", r12, " A ", " SUM "\n\t" \
    "sxtb16 r12, " W ", ror #8\n\t"          \
    "smlad " SUM ", r12, " B ", " SUM "\n\t"

#define EIGHT_COLUMNS                                                 \
    "ldmia %[pair]!, {r0-r3}\n\t"                                     \
    "ldrd r4, r5, [%[w0]], #8\n\t"                                    \
    FOUR("%[sum0]", "r4", "r0", "r1") FOUR("%[sum0]", "r5", "r2", "r3") \
    "ldrd r4, r5, [%[w1]], #8\n\t"                                    \
    FOUR("%[sum1]", "r4", "r0", "r1") FOUR("%[sum1]", "r5", "r2", "r3")

INLINE struct cursor unit_q8(struct cursor at)
{
    __asm__(EIGHT_COLUMNS EIGHT_COLUMNS EIGHT_COLUMNS EIGHT_COLUMNS
            : [pair] "+r"(at.pair), [w0] "+r"(at.codes0), [w1] "+r"(at.codes1), [sum0] "+r"(at.sum0), [sum1] "+r"(at.sum1)
            :
            : "r0", "r1", "r2", "r3", "r4", "r5", "r12", "memory");
    return at;
}

/* A byte is low + 16 * high. With L and H the activations that meet its two halves,
 *     16 * (low * L + high * H)  =  byte * H + low * (16 * L - H),
 * so the high half needs no instruction that takes it out. */
INLINE int32_t mixed(int32_t low, int32_t high)
{
    return __ssub16((int32_t)((uint32_t)low << 4 & 0xFFF0FFF0u), high);
}

/* A nibble is the code + 8: the eights are taken off at the start of the sum. */
static void widen_q4(struct panel *x, const int8_t *codes)
{
    const int32_t ones = 0x00010001;
    uint32_t half = x->units * UNIT / 2;
    int32_t *pair = x->pairs;
    for (uint32_t g = 0; g < x->groups; g++, codes += half) {
        int32_t sum = 0;
        for (const int8_t *end = codes + half; codes < end; codes += 4) {
            int32_t low = four(codes), high = four(codes + half);
            *pair++ = mixed(even(low), even(high));
            *pair++ = even(high);
            *pair++ = mixed(odd(low), odd(high));
            *pair++ = odd(high);
            sum = __smlad(even(low), ones, __smlad(odd(low), ones, sum));
            sum = __smlad(even(high), ones, __smlad(odd(high), ones, sum));
        }
        x->group[g].start = -8 * 16 * sum;
    }
}

/* Eight weights of a row. */
#define EIGHT(SUM, ROW)                  \
    "ldr r4, [" ROW "], #4\n\t"          \
    "uxtb16 r5, r4\n\t"                  \
    "smlad " SUM ", r5, r1, " SUM "\n\t" \
    "and r5, r4, #0x000F000F\n\t"        \
    "smlad " SUM ", r5, r0, " SUM "\n\t" \
    "uxtb16 r4, r4, ror #8\n\t"          \
    "smlad " SUM ", r4, r3, " SUM "\n\t" \
    "and r4, r4, #0x000F000F\n\t"        \
    "smlad " SUM ", r4, r2, " SUM "\n\t"

#define TWICE_FOUR_COLUMNS "ldmia %[pair]!, {r0-r3}\n\t" EIGHT("%[sum0]", "%[w0]") EIGHT("%[sum1]", "%[w1]")

INLINE struct cursor unit_q4(struct cursor at)
{
    __asm__(TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS TWICE_FOUR_COLUMNS
            : [pair] "+r"(at.pair), [w0] "+r"(at.codes0), [w1] "+r"(at.codes1), [sum0] "+r"(at.sum0), [sum1] "+r"(at.sum1)
            :
            : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
    return at;
}

/* The dot of a group as a float: the sum, or (q4) a sixteenth of it. */
INLINE float dot(bool q4, int32_t sum)
{
#if defined(__ARM_FP)
    float value;
    if (!q4)
        return (float)sum;
    __asm__("vmov %0, %1\n\tvcvt.f32.s32 %0, %0, #4" : "=t"(value) : "r"(sum));
    return value;
#else
    return (float)(q4 ? sum / 16 : sum);
#endif
}

/* Sums go on in out. */
INLINE void rows_by(bool q4, const struct panel *x, const struct rows *rows)
{
    const uint8_t *codes = rows->codes;
    const uint16_t *scale0 = rows->scales, *scale1 = scale0 + rows->groups;
    float *out = rows->out;
    for (uint32_t n = rows->twos; n != 0; n--, out += 2) {
        struct cursor c = {.pair = x->pairs, .codes0 = codes, .codes1 = codes + rows->stride};
        const struct group *group = x->group, *end = group + x->groups;
        float sum0 = rows->begin ? 0.0f : out[0], sum1 = rows->begin ? 0.0f : out[1];
        do {
            uint32_t units = x->units;
            c.sum0 = c.sum1 = group->start;
            do
                c = q4 ? unit_q4(c) : unit_q8(c);
            while (--units != 0);
            float scale = group->scale;
            sum0 = sum0 + dot(q4, c.sum0) * (colibri_dsp_f16(*scale0++) * scale);
            sum1 = sum1 + dot(q4, c.sum1) * (colibri_dsp_f16(*scale1++) * scale);
        } while (++group < end);
        out[0] = sum0;
        out[1] = sum1;
        codes += 2 * (size_t)rows->stride;
        scale0 += 2 * (size_t)rows->groups - x->groups;
        scale1 += 2 * (size_t)rows->groups - x->groups;
    }
}

static __attribute__((noinline)) void rows_of(uint32_t type, const struct panel *x, const struct rows *rows)
{
    if (COLIBRI_WITH_Q8 && type == COLIBRI_Q8)
        rows_by(false, x, rows);
    if (COLIBRI_WITH_Q4 && type == COLIBRI_Q4)
        rows_by(true, x, rows);
}

/* The panel's rows, the first of which is `row`. An odd last one is done as two equal ones. */
static void panel_rows(const colibri_matrix *w, const struct panel *x, uint32_t first, uint32_t row, uint32_t row_end, float *out)
{
    size_t bytes = (size_t)first * (w->type == COLIBRI_Q4 ? w->group / 2 : w->group);
    struct rows rows = {.codes = w->codes + (size_t)row * w->stride + bytes,
                        .scales = w->scales + (size_t)row * w->groups + first,
                        .stride = w->stride, .groups = w->groups, .twos = (row_end - row) / 2,
                        .begin = first == 0, .out = out + row};
    rows_of(w->type, x, &rows);
    if ((row_end - row) % 2 != 0) {
        float same[2] = {out[row_end - 1], 0.0f};
        rows.codes += (size_t)rows.twos * 2 * w->stride;
        rows.scales += (size_t)rows.twos * 2 * w->groups;
        rows.stride = rows.groups = 0;
        rows.twos = 1;
        rows.out = same;
        rows_of(w->type, x, &rows);
        out[row_end - 1] = same[0];
    }
}

static void widen(struct panel *x, const colibri_matmul *m, uint32_t first)
{
    const colibri_matrix *w = m->weight;
    const int8_t *codes = m->codes + (size_t)first * w->group;
    uint32_t left = w->groups - first, most = COLUMNS / w->group;
    x->units = w->group / UNIT;
    x->groups = left < most ? left : most;
    for (uint32_t g = 0; g < x->groups; g++)
        x->group[g].scale = m->scales[first + g];
    if (COLIBRI_WITH_Q8 && w->type == COLIBRI_Q8)
        widen_q8(x, codes);
    if (COLIBRI_WITH_Q4 && w->type == COLIBRI_Q4)
        widen_q4(x, codes);
}

/* A product of one token. */
static void token(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    struct panel x;
    for (uint32_t first = 0; first < m->weight->groups; first += x.groups) {
        widen(&x, m, first);
        panel_rows(m->weight, &x, first, row_begin, row_end, m->out);
    }
    for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
        m->out[r] = m->out[r] + m->bias[r];
}

void colibri_dsp_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    colibri_ref_by_token(m, row_begin, row_end, token);
}
