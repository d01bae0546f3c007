/* SPDX-License-Identifier: Apache-2.0 */
/* What every operation needs of sixteen lanes: widening, the sum's tree, exp. */
#ifndef COLIBRI_RVV_LANES_H
#define COLIBRI_RVV_LANES_H

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

#include "../../src/float_math.h"

enum { COLIBRI_RVV_LANES = 16 };

/* convert.h in lanes: the multiplication moves subnormals and all exponents at once. */
static inline vfloat32m4_t colibri_rvv_load_f16(const uint16_t *p, size_t n)
{
    vint16m2_t half = __riscv_vle16_v_i16m2((const int16_t *)p, n);
    vint32m4_t wide = __riscv_vsll_vx_i32m4(__riscv_vsext_vf2_i32m4(half, n), 13, n);
    vuint32m4_t bits = __riscv_vand_vx_u32m4(__riscv_vreinterpret_v_i32m4_u32m4(wide), 0x8FFFE000u, n);
    vfloat32m4_t moved = __riscv_vfmul_vf_f32m4(__riscv_vreinterpret_v_u32m4_f32m4(bits), 0x1p112f, n);
    vuint32m4_t exponent = __riscv_vand_vx_u32m4(bits, 0x0F800000u, n);
    vbool8_t special = __riscv_vmseq_vx_u32m4_b8(exponent, 0x0F800000u, n); /* infinity, NaN */
    vuint32m4_t value = __riscv_vreinterpret_v_f32m4_u32m4(moved);
    value = __riscv_vor_vx_u32m4_mu(special, value, value, 0x7F800000u, n);
    return __riscv_vreinterpret_v_u32m4_f32m4(value);
}

static inline vfloat32m4_t colibri_rvv_load_bf16(const uint16_t *p, size_t n)
{
    vuint32m4_t wide = __riscv_vzext_vf2_u32m4(__riscv_vle16_v_u16m2(p, n), n);
    return __riscv_vreinterpret_v_u32m4_f32m4(__riscv_vsll_vx_u32m4(wide, 16, n));
}

/* The tree of ref/sums.h: i + (i + 8), then i + (i + 4), then i + (i + 2), then even + odd. */
static inline float colibri_rvv_tree(vfloat32m4_t s)
{
    for (size_t n = COLIBRI_RVV_LANES / 2; n > 0; n /= 2)
        s = __riscv_vfadd_vv_f32m4(s, __riscv_vslidedown_vx_f32m4(s, n, n), n);
    return __riscv_vfmv_f_s_f32m4_f32(s);
}

static inline vfloat32m4_t colibri_rvv_step(vfloat32m4_t y, vfloat32m4_t r, float c, size_t n)
{
    return __riscv_vfadd_vf_f32m4(__riscv_vfmul_vv_f32m4(y, r, n), c, n);
}

/* colibri_exp: the same operations in the same order. */
static inline vfloat32m4_t colibri_rvv_exp(vfloat32m4_t x, size_t n)
{
    vbool8_t zero = __riscv_vmflt_vf_f32m4_b8(x, COLIBRI_EXP_LOW, n);
    vbool8_t high = __riscv_vmfgt_vf_f32m4_b8(x, COLIBRI_EXP_HIGH, n); /* vfmin would lose a NaN */
    x = __riscv_vfmerge_vfm_f32m4(x, COLIBRI_EXP_HIGH, high, n);
    vfloat32m4_t t = __riscv_vfmul_vf_f32m4(x, COLIBRI_LOG2_E, n);
    t = __riscv_vfadd_vf_f32m4(t, COLIBRI_ROUND_MAGIC, n);
    vuint32m4_t power = __riscv_vreinterpret_v_f32m4_u32m4(t);
    power = __riscv_vsub_vx_u32m4(power, COLIBRI_ROUND_BITS - 127u, n);
    power = __riscv_vsll_vx_u32m4(power, 23, n);
    t = __riscv_vfsub_vf_f32m4(t, COLIBRI_ROUND_MAGIC, n);
    vfloat32m4_t r = __riscv_vfsub_vv_f32m4(x, __riscv_vfmul_vf_f32m4(t, COLIBRI_LN2_HIGH, n), n);
    r = __riscv_vfsub_vv_f32m4(r, __riscv_vfmul_vf_f32m4(t, COLIBRI_LN2_LOW, n), n);
    vfloat32m4_t y = __riscv_vfmul_vf_f32m4(r, COLIBRI_EXP_0, n);
    y = __riscv_vfadd_vf_f32m4(y, COLIBRI_EXP_1, n);
    y = colibri_rvv_step(y, r, COLIBRI_EXP_2, n);
    y = colibri_rvv_step(y, r, COLIBRI_EXP_3, n);
    y = colibri_rvv_step(y, r, COLIBRI_EXP_4, n);
    y = colibri_rvv_step(y, r, COLIBRI_EXP_5, n);
    y = __riscv_vfmul_vv_f32m4(y, __riscv_vfmul_vv_f32m4(r, r, n), n);
    y = __riscv_vfadd_vf_f32m4(__riscv_vfadd_vv_f32m4(y, r, n), 1.0f, n);
    y = __riscv_vfmul_vv_f32m4(y, __riscv_vreinterpret_v_u32m4_f32m4(power), n);
    return __riscv_vfmerge_vfm_f32m4(y, 0.0f, zero, n);
}

#endif
