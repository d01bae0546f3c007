/* SPDX-License-Identifier: Apache-2.0 */
/* Products of q8 and q4 weights. Tiles: 64 bytes, four columns of sixteen rows, meet four activations
 * repeated sixteen times; a lane collects one row's products. Rows that lie one after the other: one at a
 * time. */
#include <stdbool.h>

#include "../../src/convert.h"
#include "../../src/options.h"
#include "../../src/tiles.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "lanes.h"
#include "rvv.h"

enum {
    ROWS = COLIBRI_RVV_LANES, /* of a tile */
    BYTES = 4 * ROWS,         /* four columns of q8, eight of q4 */
    BAND_ROWS = 64,           /* rows whose weights stay in a cache while all tokens meet them */
    CHUNK_GROUPS = 64,        /* groups whose activation sums are kept at a time */
};

#if COLIBRI_WITH_Q8 || COLIBRI_WITH_Q4

/* Where one token's product begins. */
struct place {
    const colibri_matrix *w;
    const int8_t *x;
    const float *d;
    float *out;
};

static struct place place_of(const colibri_matmul *m, uint32_t t)
{
    uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
    uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
    return (struct place){m->weight, m->codes + (size_t)in_row * m->code_stride,
                          m->scales + (size_t)in_row * m->scale_stride,
                          m->out + (size_t)out_row * m->out_stride};
}

static bool is_q4(const colibri_matrix *w)
{
    return COLIBRI_WITH_Q4 && (!COLIBRI_WITH_Q8 || w->type == COLIBRI_Q4);
}

#if COLIBRI_WITH_TILES
/* Four activations, sixteen times. x is aligned to four bytes. */
static inline vint8m4_t repeat(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, __builtin_assume_aligned(x, 4), sizeof four); /* one load */
    return __riscv_vreinterpret_v_i32m4_i8m4(__riscv_vmv_v_x_i32m4(four, ROWS));
}

/* Lanes 2r and 2r + 1 added. */
static inline vint32m8_t add_pairs16(vint16m8_t v)
{
    vint32m8_t both = __riscv_vreinterpret_v_i16m8_i32m8(v);
    vint16m4_t low = __riscv_vnsra_wx_i16m4(both, 0, 2 * ROWS);
    vint16m4_t high = __riscv_vnsra_wx_i16m4(both, 16, 2 * ROWS);
    return __riscv_vwadd_vv_i32m8(low, high, 2 * ROWS);
}

static inline vint32m4_t add_pairs32(vint32m8_t v)
{
    vint64m8_t both = __riscv_vreinterpret_v_i32m8_i64m8(v);
    vint32m4_t low = __riscv_vnsra_wx_i32m4(both, 0, ROWS);
    vint32m4_t high = __riscv_vnsra_wx_i32m4(both, 32, ROWS);
    return __riscv_vadd_vv_i32m4(low, high, ROWS);
}

/* Two products of +-127 * 127 fit 16 bits. */
static inline vint32m4_t tile_q8(const uint8_t *codes, const int8_t *x, size_t group)
{
    const int8_t *w = (const int8_t *)codes, *end = x + group;
    vint32m8_t sum = __riscv_vmv_v_x_i32m8(0, 2 * ROWS);
    do {
        vint8m4_t a = repeat(x), b = repeat(x + 4);
        vint16m8_t products = __riscv_vwmul_vv_i16m8(__riscv_vle8_v_i8m4(w, BYTES), a, BYTES);
        products = __riscv_vwmacc_vv_i16m8(products, __riscv_vle8_v_i8m4(w + BYTES, BYTES), b, BYTES);
        vint32m8_t both = __riscv_vreinterpret_v_i16m8_i32m8(products);
        sum = __riscv_vwadd_wv_i32m8(sum, __riscv_vnsra_wx_i16m4(both, 0, 2 * ROWS), 2 * ROWS);
        sum = __riscv_vwadd_wv_i32m8(sum, __riscv_vnsra_wx_i16m4(both, 16, 2 * ROWS), 2 * ROWS);
        x += 8;
        w += 2 * BYTES;
    } while (x < end);
    return add_pairs32(sum);
}

/* Nibbles count as 0 .. 15. A lane takes two products of 15 * 127 for eight columns: 64 columns fit 16 bits. */
static inline vint32m4_t tile_q4(const uint8_t *codes, const int8_t *x, size_t group, int32_t start)
{
    const size_t piece = group < 64 ? group : 64;
    const int8_t *end = x + group;
    vint32m4_t total = __riscv_vmv_v_x_i32m4(start, ROWS);
    do {
        const int8_t *stop = x + piece;
        vint16m8_t sum = __riscv_vmv_v_x_i16m8(0, BYTES);
        do {
            vint8m4_t a = repeat(x), b = repeat(x + 4);
            vuint8m4_t bytes = __riscv_vle8_v_u8m4(codes, BYTES);
            sum = __riscv_vwmaccsu_vv_i16m8(sum, a, __riscv_vand_vx_u8m4(bytes, 15, BYTES), BYTES);
            sum = __riscv_vwmaccsu_vv_i16m8(sum, b, __riscv_vsrl_vx_u8m4(bytes, 4, BYTES), BYTES);
            x += 8;
            codes += BYTES;
        } while (x < stop);
        total = __riscv_vadd_vv_i32m4(total, add_pairs32(add_pairs16(sum)), ROWS);
    } while (x < end);
    return total;
}

/* -8 * sum of a group's activation codes. */
static int32_t minus_eights(const int8_t *x, uint32_t group)
{
    vint16m1_t sum = __riscv_vmv_s_x_i16m1(0, 1);
    for (uint32_t i = 0; i < group; i += 32) /* |sum| <= 128 * 127 */
        sum = __riscv_vwredsum_vs_i8m2_i16m1(__riscv_vle8_v_i8m2(x + i, 32), sum, 32);
    return -8 * __riscv_vmv_x_s_i16m1_i16(sum);
}

/* Groups first .. end - 1 of one tile, for which q4 is a constant. Sums wait in out: registers are scarcer. */
static inline __attribute__((always_inline)) void tile(const struct place *p, bool q4, uint32_t row,
                                                       uint32_t first, uint32_t end, const int32_t *eights)
{
    const colibri_matrix *w = p->w;
    const size_t group = w->group, bytes = ROWS * group / (q4 ? 2 : 1);
    const uint8_t *codes = w->codes + (size_t)row * w->stride + first * bytes;
    const uint16_t *scales = w->scales + (size_t)row * w->groups + (size_t)first * ROWS;
    const int8_t *x = p->x + first * group;
    const float *d = p->d + first, *last = p->d + end;
    float *out = p->out + row;
    if (first == 0)
        __riscv_vse32_v_f32m4(out, __riscv_vfmv_v_f_f32m4(0.0f, ROWS), ROWS);
    for (; d < last; d++, codes += bytes, scales += ROWS, x += group) {
        vint32m4_t dot = q4 ? tile_q4(codes, x, group, *eights++) : tile_q8(codes, x, group);
        vfloat32m4_t scale = __riscv_vfmul_vf_f32m4(colibri_rvv_load_f16(scales, ROWS), *d, ROWS);
        scale = __riscv_vfmul_vv_f32m4(__riscv_vfcvt_f_x_v_f32m4(dot, ROWS), scale, ROWS);
        scale = __riscv_vfadd_vv_f32m4(__riscv_vle32_v_f32m4(out, ROWS), scale, ROWS);
        __riscv_vse32_v_f32m4(out, scale, ROWS);
    }
}

static void tiles_q4(const struct place *p, uint32_t row, uint32_t row_end, uint32_t first, uint32_t end)
{
    int32_t eights[CHUNK_GROUPS];
    for (uint32_t g = first; g < end; g++)
        eights[g - first] = minus_eights(p->x + (size_t)g * p->w->group, p->w->group);
    for (; row < row_end; row += ROWS)
        tile(p, true, row, first, end, eights);
}

static void tiles_q8(const struct place *p, uint32_t row, uint32_t row_end, uint32_t first, uint32_t end)
{
    for (; row < row_end; row += ROWS)
        tile(p, false, row, first, end, NULL);
}

/* All tokens against a band of whole tiles, some groups at a time. */
static void tiles(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const uint32_t groups = m->weight->groups;
    for (uint32_t t = 0; t < m->tokens; t++) {
        struct place p = place_of(m, t);
        for (uint32_t g = 0, end; g < groups; g = end) {
            end = groups - g < CHUNK_GROUPS ? groups : g + CHUNK_GROUPS;
            if (is_q4(m->weight))
                tiles_q4(&p, row_begin, row_end, g, end);
            else
                tiles_q8(&p, row_begin, row_end, g, end);
        }
        for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
            p.out[r] = p.out[r] + m->bias[r];
    }
}
#endif

static int32_t row_dot_q8(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    vint32m8_t sum = __riscv_vmv_v_x_i32m8(0, 32);
    for (uint32_t i = 0; i < group; i += 32) {
        vint8m2_t w = __riscv_vle8_v_i8m2((const int8_t *)codes + i, 32);
        vint16m4_t products = __riscv_vwmul_vv_i16m4(w, __riscv_vle8_v_i8m2(x + i, 32), 32);
        sum = __riscv_vwadd_wv_i32m8(sum, products, 32);
    }
    vint32m1_t zero = __riscv_vmv_s_x_i32m1(0, 1);
    return __riscv_vmv_x_s_i32m1_i32(__riscv_vredsum_vs_i32m8_i32m1(sum, zero, 32));
}

static int32_t row_dot_q4(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    vint32m4_t sum = __riscv_vmv_v_x_i32m4(0, 16);
    for (uint32_t i = 0; i < group / 2; i += 16) {
        vuint8m1_t bytes = __riscv_vle8_v_u8m1(codes + i, 16);
        vint8m1_t low = __riscv_vreinterpret_v_u8m1_i8m1(__riscv_vand_vx_u8m1(bytes, 15, 16));
        vint8m1_t high = __riscv_vreinterpret_v_u8m1_i8m1(__riscv_vsrl_vx_u8m1(bytes, 4, 16));
        low = __riscv_vadd_vx_i8m1(low, -8, 16);
        high = __riscv_vadd_vx_i8m1(high, -8, 16);
        vint16m2_t products = __riscv_vwmul_vv_i16m2(low, __riscv_vle8_v_i8m1(x + i, 16), 16);
        vint8m1_t upper = __riscv_vle8_v_i8m1(x + group / 2 + i, 16);
        sum = __riscv_vwadd_wv_i32m4(sum, __riscv_vwmacc_vv_i16m2(products, high, upper, 16), 16);
    }
    vint32m1_t zero = __riscv_vmv_s_x_i32m1(0, 1);
    return __riscv_vmv_x_s_i32m1_i32(__riscv_vredsum_vs_i32m4_i32m1(sum, zero, 16));
}

static float row_product(const struct place *p, uint32_t row)
{
    const colibri_matrix *w = p->w;
    const bool q4 = is_q4(w);
    const uint8_t *codes = w->codes + (size_t)row * w->stride;
    const uint16_t *scales = w->scales + (size_t)row * w->groups;
    const int8_t *x = p->x;
    float sum = 0.0f;
    for (uint32_t g = 0; g < w->groups; g++, x += w->group, codes += q4 ? w->group / 2 : w->group) {
        int32_t dot = q4 ? row_dot_q4(codes, x, w->group) : row_dot_q8(codes, x, w->group);
        sum = sum + (float)dot * (colibri_f16_to_float(scales[g]) * p->d[g]);
    }
    return sum;
}

static void rows(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t r = row_begin; r < row_end; r++) {
        for (uint32_t t = 0; t < m->tokens; t++) {
            struct place p = place_of(m, t);
            float sum = row_product(&p, r);
            p.out[r] = m->bias != NULL ? sum + m->bias[r] : sum;
        }
    }
}

#if COLIBRI_WITH_TILES
static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static bool aligned(const colibri_matmul *m)
{
    return (((uintptr_t)m->codes | m->code_stride) & 3u) == 0;
}

/* Part of a tile: the reference; whole tiles in bands; then the rows that fill no tile. */
static void matmul_tiles(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    struct colibri_tile_cut cut = colibri_cut_tiles(m->weight, row_begin, row_end);
    if (!aligned(m))
        cut.part = cut.whole;
    const uint32_t step = m->tokens > 1 ? BAND_ROWS : cut.part - cut.whole;
    if (row_begin < cut.whole)
        colibri_ref_matmul(m, row_begin, cut.whole);
    for (uint32_t begin = cut.whole; begin < cut.part; begin += step)
        tiles(m, begin, at_most(cut.part, begin + step));
    if (cut.part < cut.plain)
        colibri_ref_matmul(m, cut.part, cut.plain);
    if (cut.plain < row_end)
        rows(m, cut.plain, row_end);
}
#endif
#endif

void colibri_rvv_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
#if COLIBRI_WITH_Q8 || COLIBRI_WITH_Q4
#if COLIBRI_WITH_TILES
    if (m->weight->groups != 0 && m->weight->order == COLIBRI_ORDER_TILES) {
        matmul_tiles(m, row_begin, row_end);
        return;
    }
#endif
    if (m->weight->groups != 0) {
        rows(m, row_begin, row_end);
        return;
    }
#endif
    colibri_rvv_matmul_float(m, row_begin, row_end);
}
