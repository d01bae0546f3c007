/* SPDX-License-Identifier: Apache-2.0 */
/* The middle of a gated feed-forward (docs/numerics.md section 6), for ffn.c and expert_ffn.c. */
#ifndef COLIBRI_FFN_GATE_H
#define COLIBRI_FFN_GATE_H

#include "colibri/kernels.h"

/* gate = activation(gate) * up. limit, alpha: of COLIBRI_ACTIVATION_CLAMPED. */
void colibri_gate(const colibri_kernels *kernels, uint32_t activation, float limit, float alpha, float *gate,
                  float *up, uint32_t n);

/* A choice's weight on the expert's input: both products are linear in it. */
static inline void colibri_weigh_gate(float *gate, float *up, float weight, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        gate[i] = gate[i] * weight;
        up[i] = up[i] * weight;
    }
}

#endif
