/* SPDX-License-Identifier: Apache-2.0 */
#include "../../src/float_math.h"
#include "ref.h"
#include "sums.h"

void colibri_ref_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + x[i] * x[i];
    float mean = colibri_sums_tree(&s) / (float)n;
    float r = colibri_rsqrt(mean + epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (x[i] * r) * weight[i];
}

void colibri_ref_silu_gate(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = (gate[i] / (1.0f + colibri_exp(-gate[i]))) * up[i];
}
