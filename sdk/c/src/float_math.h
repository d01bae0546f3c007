/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions a forward pass needs, with a fixed order of IEEE single operations
 * (docs/numerics.md section 5). Polynomials: Cephes single precision (Moshier), coefficients as published there. */
#ifndef COLIBRI_FLOAT_MATH_H
#define COLIBRI_FLOAT_MATH_H

#include "bytes.h"

#define COLIBRI_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
#define COLIBRI_ROUND_BITS 0x4B400000u  /* its bits: the integer is what is added to them */

#define COLIBRI_EXP_LOW (-87.0f) /* below: +0, so that the result is never subnormal */
#define COLIBRI_EXP_HIGH 88.0f   /* above: as at 88 */
#define COLIBRI_LOG2_E 1.44269504f
#define COLIBRI_LN2_HIGH 0.693359375f     /* 9 bits: its product with the exponent is exact */
#define COLIBRI_LN2_LOW (-2.12194440e-4f)

#define COLIBRI_EXP_0 1.9875691500e-4f
#define COLIBRI_EXP_1 1.3981999507e-3f
#define COLIBRI_EXP_2 8.3334519073e-3f
#define COLIBRI_EXP_3 4.1665795894e-2f
#define COLIBRI_EXP_4 1.6666665459e-1f
#define COLIBRI_EXP_5 5.0000001201e-1f

float colibri_exp(float x);            /* within 2 ulp on [-87, 88] */
float colibri_sigmoid(float x);        /* 1 / (1 + exp(-x)) */
void colibri_silu(float *x, uint32_t n); /* x / (1 + exp(-x)), in place */
float colibri_log(float x);            /* within 2 ulp for normal positive x */
float colibri_softplus(float x);       /* log(1 + exp(x)) */
float colibri_tanh(float x);           /* 1 - 2 / (1 + exp(2x)): absolute error below 2e-7 */
float colibri_rsqrt(float x);          /* within 2 ulp from 2^-125 up */
void colibri_sincos(float x, float *sine, float *cosine); /* |x| <= 131072: absolute error below 2e-7 */

#endif
