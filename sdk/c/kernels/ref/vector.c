/* SPDX-License-Identifier: Apache-2.0 */
#include "../../src/float_math.h"
#include "ref.h"
#include "sums.h"

float colibri_sums_tree(const colibri_sums *s)
{
    float eight[8], four[4];
    for (int i = 0; i < 8; i++)
        eight[i] = s->part[i] + s->part[i + 8];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    float even = four[0] + four[2], odd = four[1] + four[3];
    return even + odd;
}

float colibri_dot(const float *a, const float *b, uint32_t n)
{
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + a[i] * b[i];
    return colibri_sums_tree(&s);
}

void colibri_ref_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    float r = colibri_rsqrt(colibri_dot(x, x, n) / (float)n + epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (x[i] * r) * weight[i];
}

void colibri_ref_silu_gate(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = (gate[i] / (1.0f + colibri_exp(-gate[i]))) * up[i];
}
