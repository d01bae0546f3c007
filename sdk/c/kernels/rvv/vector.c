/* SPDX-License-Identifier: Apache-2.0 */
/* The RISC-V V table; element-wise operations. Without fused multiply-add: every float operation is the
 * reference's. */
#include "../ref/ref.h"
#include "lanes.h"
#include "rvv.h"

enum { LANES = COLIBRI_RVV_LANES };

/* Largest magnitude of a multiple of sixteen elements; vfmax passes over NaN. */
static float largest_magnitude(const float *x, uint32_t n)
{
    vfloat32m4_t top = __riscv_vfmv_v_f_f32m4(0.0f, LANES);
    for (uint32_t i = 0; i < n; i += LANES) {
        vfloat32m4_t a = __riscv_vfabs_v_f32m4(__riscv_vle32_v_f32m4(x + i, LANES), LANES);
        top = __riscv_vfmax_vv_f32m4(top, a, LANES);
    }
    vfloat32m1_t zero = __riscv_vfmv_s_f_f32m1(0.0f, 1);
    return __riscv_vfmv_f_s_f32m1_f32(__riscv_vfredmax_vs_f32m4_f32m1(top, zero, LANES));
}

static void quantize_group(const float *x, uint32_t group, int8_t *codes, float *scale)
{
    float amax = largest_magnitude(x, group);
    if (amax < 0x1p-64f) { /* zero or very small */
        colibri_ref_quantize(x, group, group, codes, scale);
        return;
    }
    float inverse = 127.0f / amax;
    *scale = amax / 127.0f;
    for (uint32_t i = 0; i < group; i += LANES) {
        vfloat32m4_t t = __riscv_vfmul_vf_f32m4(__riscv_vle32_v_f32m4(x + i, LANES), inverse, LANES);
        t = __riscv_vfmax_vf_f32m4(t, -127.0f, LANES); /* NaN becomes -127 */
        t = __riscv_vfmin_vf_f32m4(t, 127.0f, LANES);
        vint16m2_t half = __riscv_vncvt_x_x_w_i16m2(__riscv_vfcvt_x_f_v_i32m4(t, LANES), LANES);
        __riscv_vse8_v_i8m1(codes + i, __riscv_vncvt_x_x_w_i8m1(half, LANES), LANES);
    }
}

static void quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales)
{
    uint32_t whole = group % LANES == 0 ? n / group : 0;
    for (uint32_t g = 0; g < whole; g++)
        quantize_group(x + (size_t)g * group, group, codes + (size_t)g * group, scales + g);
    colibri_ref_quantize(x + (size_t)whole * group, n - whole * group, group,
                         codes + (size_t)whole * group, scales + whole);
}

static void rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    vfloat32m4_t sums = __riscv_vfmv_v_f_f32m4(0.0f, LANES);
    for (uint32_t i = 0; i < n; i += LANES) { /* lanes that the tail lacks stay as they are */
        size_t here = n - i < LANES ? n - i : LANES;
        vfloat32m4_t a = __riscv_vle32_v_f32m4(x + i, here);
        sums = __riscv_vfadd_vv_f32m4_tu(sums, sums, __riscv_vfmul_vv_f32m4(a, a, here), here);
    }
    float r = colibri_rsqrt(colibri_rvv_tree(sums) / (float)n + epsilon);
    for (uint32_t i = 0; i < n; i += LANES) {
        size_t here = n - i < LANES ? n - i : LANES;
        vfloat32m4_t a = __riscv_vfmul_vf_f32m4(__riscv_vle32_v_f32m4(x + i, here), r, here);
        vfloat32m4_t w = __riscv_vle32_v_f32m4(weight + i, here);
        __riscv_vse32_v_f32m4(out + i, __riscv_vfmul_vv_f32m4(a, w, here), here);
    }
}

static void silu_gate(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        size_t here = n - i < LANES ? n - i : LANES;
        vfloat32m4_t g = __riscv_vle32_v_f32m4(gate + i, here);
        vfloat32m4_t e = colibri_rvv_exp(__riscv_vfneg_v_f32m4(g, here), here);
        g = __riscv_vfdiv_vv_f32m4(g, __riscv_vfadd_vf_f32m4(e, 1.0f, here), here);
        vfloat32m4_t u = __riscv_vle32_v_f32m4(up + i, here);
        __riscv_vse32_v_f32m4(gate + i, __riscv_vfmul_vv_f32m4(g, u, here), here);
    }
}

const colibri_kernels colibri_kernels_rvv = {
    .struct_bytes = sizeof(colibri_kernels),
    .name = "rvv",
    .quantize = quantize,
    .matmul = colibri_rvv_matmul,
    .rms_norm = rms_norm,
    .silu_gate = silu_gate,
    .attend = colibri_rvv_attend,
};
