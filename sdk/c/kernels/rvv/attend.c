/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one head: sixteen elements or sixteen positions at a time. */
#include "../../src/options.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "lanes.h"
#include "rvv.h"

enum { LANES = COLIBRI_RVV_LANES };

/* A q8 vector starts with its f32 scale; the other types have none. */
static inline float vector_scale(uint32_t kv, const uint8_t *vector)
{
    return COLIBRI_WITH_KV_Q8 && kv == COLIBRI_Q8 ? *(const float *)(const void *)vector : 1.0f;
}

static inline vfloat32m4_t load(uint32_t kv, const uint8_t *vector, float scale, uint32_t i, size_t n)
{
    if (COLIBRI_WITH_KV_F16 && kv == COLIBRI_F16)
        return colibri_rvv_load_f16((const uint16_t *)(const void *)vector + i, n);
    if (COLIBRI_WITH_KV_Q8 && kv == COLIBRI_Q8) {
        vint8m1_t codes = __riscv_vle8_v_i8m1((const int8_t *)vector + 4 + i, n);
        vfloat32m4_t value = __riscv_vfcvt_f_x_v_f32m4(__riscv_vsext_vf4_i32m4(codes, n), n);
        return __riscv_vfmul_vf_f32m4(value, scale, n);
    }
    return __riscv_vle32_v_f32m4((const float *)(const void *)vector + i, n);
}

static float score(const colibri_attend *a, uint32_t position)
{
    const uint8_t *key = a->keys + (size_t)position * a->stride;
    float scale = vector_scale(a->kv, key);
    vfloat32m4_t sums = __riscv_vfmv_v_f_f32m4(0.0f, LANES);
    for (uint32_t i = 0; i < a->head_size; i += LANES) {
        size_t here = a->head_size - i < LANES ? a->head_size - i : LANES;
        vfloat32m4_t query = __riscv_vle32_v_f32m4(a->query + i, here);
        query = __riscv_vfmul_vv_f32m4(query, load(a->kv, key, scale, i, here), here);
        sums = __riscv_vfadd_vv_f32m4_tu(sums, sums, query, here);
    }
    return colibri_rvv_tree(sums) * a->scale;
}

/* Scores become exp(score - maximum); returns one over their sum, the sink included. */
static float soften(float *scores, uint32_t n, const float *sink)
{
    float maximum = sink != NULL ? *sink : scores[0];
    for (uint32_t p = 0; p < n; p++)
        maximum = scores[p] > maximum ? scores[p] : maximum;
    vfloat32m4_t sums = __riscv_vfmv_v_f_f32m4(0.0f, LANES);
    for (uint32_t p = 0; p < n; p += LANES) {
        size_t here = n - p < LANES ? n - p : LANES;
        vfloat32m4_t e = __riscv_vle32_v_f32m4(scores + p, here);
        e = colibri_rvv_exp(__riscv_vfsub_vf_f32m4(e, maximum, here), here);
        __riscv_vse32_v_f32m4(scores + p, e, here);
        sums = __riscv_vfadd_vv_f32m4_tu(sums, sums, e, here);
    }
    float sum = colibri_rvv_tree(sums);
    if (sink != NULL)
        sum = sum + colibri_exp(*sink - maximum);
    return 1.0f / sum;
}

/* Sixteen elements of the output at a time, all positions in order. */
static void gather(const colibri_attend *a, uint32_t i, float inverse)
{
    size_t here = a->value_size - i < LANES ? a->value_size - i : LANES;
    const uint8_t *value = a->values;
    vfloat32m4_t sum = __riscv_vfmv_v_f_f32m4(0.0f, here);
    for (uint32_t p = 0; p < a->positions; p++, value += a->stride) {
        vfloat32m4_t v = load(a->kv, value, vector_scale(a->kv, value), i, here);
        sum = __riscv_vfadd_vv_f32m4(sum, __riscv_vfmul_vf_f32m4(v, a->scores[p], here), here);
    }
    __riscv_vse32_v_f32m4(a->out + i, __riscv_vfmul_vf_f32m4(sum, inverse, here), here);
}

void colibri_rvv_attend(const colibri_attend *a)
{
    for (uint32_t p = 0; p < a->positions; p++)
        a->scores[p] = score(a, p);
    float inverse = soften(a->scores, a->positions, a->sink);
    for (uint32_t i = 0; i < a->value_size; i += LANES)
        gather(a, i, inverse);
}
