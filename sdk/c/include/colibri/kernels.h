/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations that a backend provides. The reference in plain C is the truth; every other
 * table gives the same bits (docs/numerics.md). A chip vendor fills one of these and passes it in
 * colibri_platform.kernels. No operation keeps state or calls back. */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H

#include <stdint.h>

#include "colibri/platform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weight matrix where it lies. q8, q4 in order ROWS: row r's codes at codes + r * stride, its scales (f16, one
 * per group) at scales + r * groups. Order TILES: rows t * 16 .. t * 16 + 15 share the bytes of sixteen such rows,
 * interleaved as docs/spec.md section 4 has it; the last rows % 16 rows lie as in ROWS. Float types: row r's
 * elements at codes + r * stride, scales NULL. */
typedef struct colibri_matrix {
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t type;    /* COLIBRI_F32 ... COLIBRI_Q4 */
    uint32_t rows;
    uint32_t columns;
    uint32_t group;   /* 0 for float types */
    uint32_t groups;  /* per row: columns / group, rounded up */
    uint32_t stride;  /* bytes */
    uint32_t order;   /* COLIBRI_ORDER_* */
} colibri_matrix;

/* Alignment, as the engine has it: codes of weights at multiples of 16, of activations of 4; keys and values of attend at
 * multiples of 4 when head_size is even. */

/* out[o(t)][r] = dot(weight row r, in[i(t)]) + bias[r] for t < tokens and the rows of the call.
 * Quantised weights read codes and scales of the activation, float weights read values. */
typedef struct colibri_matmul {
    const colibri_matrix *weight;
    const float *bias;          /* rows, or NULL */
    const float *values;        /* activations, float */
    const int8_t *codes;        /* activations, quantised by quantize with the weight's group */
    const float *scales;
    uint32_t value_stride;      /* floats between activation rows */
    uint32_t code_stride;       /* bytes between activation rows */
    uint32_t scale_stride;      /* floats between activation rows */
    uint32_t out_stride;        /* floats between output rows */
    const uint16_t *in_rows;    /* i(t); NULL: t */
    const uint16_t *out_rows;   /* o(t); NULL: t */
    float *out;
    uint32_t tokens;
} colibri_matmul;

/* One head of one token against its KV cache. Keys and values of position p lie stride bytes apart. */
typedef struct colibri_attend {
    const float *query;     /* head_size */
    const uint8_t *keys;
    const uint8_t *values;
    uint32_t stride;
    uint32_t kv;            /* COLIBRI_F32, _F16, _Q8 */
    uint32_t head_size;     /* elements of query and keys */
    uint32_t value_size;    /* elements of values and out, at most head_size */
    uint32_t positions;     /* attended: 0 .. positions - 1, at least 1 */
    float scale;
    const float *sink;      /* one more logit in the softmax, with no value; or NULL */
    float *scores;          /* positions floats of scratch */
    float *out;             /* value_size; may be the query */
} colibri_attend;

struct colibri_kernels {
    uint32_t struct_bytes;
    uint32_t reserved;
    const char *name; /* "ref", "avx2", ... */

    /* int8 codes and one scale per group; the last group's missing elements become code 0. */
    void (*quantize)(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales);

    /* Rows row_begin .. row_end - 1 of a product, all its tokens. */
    void (*matmul)(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);

    /* out = x * rsqrt(mean(x^2) + epsilon) * weight; out may be x. */
    void (*rms_norm)(const float *x, const float *weight, uint32_t n, float epsilon, float *out);

    /* gate = silu(gate) * up */
    void (*silu_gate)(float *gate, const float *up, uint32_t n);

    void (*attend)(const colibri_attend *a);

    /* What colibri_crc32 computes: streamed records are checked with it. NULL: colibri_crc32 itself. */
    uint32_t (*crc32)(uint32_t crc, const void *data, uint64_t bytes);
};

extern const colibri_kernels colibri_kernels_ref;

/* Cortex-M: with the DSP extension (M4, M7, M33), with Helium (M55, M85). Built for such a CPU only. */
extern const colibri_kernels colibri_kernels_dsp;
extern const colibri_kernels colibri_kernels_mve;

/* AArch64: any core; with SDOT; with SMMLA too. RISC-V: V 1.0. Firmware links the one for its core. */
extern const colibri_kernels colibri_kernels_neon;
extern const colibri_kernels colibri_kernels_neon_dot;
extern const colibri_kernels colibri_kernels_neon_i8mm;
extern const colibri_kernels colibri_kernels_rvv;

/* x86-64 with AVX2, or NULL when this CPU or build has none. */
const colibri_kernels *colibri_kernels_avx2(void);

/* x86-64 with AVX-512 (F, BW, VL, VNNI), or NULL likewise. */
const colibri_kernels *colibri_kernels_avx512(void);

/* The matrix of a tensor that lies at data. group must be checked (image.c does). */
struct colibri_tensor;
void colibri_matrix_init(colibri_matrix *matrix, const struct colibri_tensor *tensor, const void *data);

#ifdef __cplusplus
}
#endif
#endif
