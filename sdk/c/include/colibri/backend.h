/* SPDX-License-Identifier: Apache-2.0 */
/* Experts computed elsewhere: by an NPU, an FPGA, a GPU, a second chip. One operation, expert_ffn, and a
 * list that says which experts of which layers go where. docs/porting.md ("Binding an accelerator") is the
 * guide, ports/fake_npu an example. A backend gives the bits of docs/numerics.md or is not bound. */
#ifndef COLIBRI_BACKEND_H
#define COLIBRI_BACKEND_H

#include "colibri/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One expert on its tokens. For t < tokens, with i = in_rows[t], o = out_rows[t], x = row i of the input:
 *
 *     g = gate x + gate_bias             u = up x + up_bias
 *     g = g * row_weights[o]             u = u * row_weights[o]          when there are row_weights
 *     a = activation(g) * u
 *     out row o = down quantised(a) + down_bias
 *
 * each step as docs/numerics.md writes it (sections 3, 4, 6). Everything is in the descriptor. */
typedef struct colibri_expert_ffn {
    uint32_t struct_bytes;
    uint32_t layer;
    uint32_t expert;            /* id in the layer */
    uint32_t tokens;            /* 0 in a call of bind */
    const void *record;         /* the expert's weights: the matrices and biases below lie in these bytes, */
    uint32_t record_bytes;      /* so one transfer brings them all */
    uint32_t activation;        /* COLIBRI_ACTIVATION_* */
    float activation_limit;     /* CLAMPED only */
    float activation_alpha;
    colibri_matrix gate;        /* inner x hidden */
    colibri_matrix up;          /* inner x hidden */
    colibri_matrix down;        /* hidden x inner */
    const float *gate_bias;     /* one element a row, or NULL; the next two too */
    const float *up_bias;
    const float *down_bias;
    const float *values;        /* inputs */
    const int8_t *codes;        /* the same quantised with the group of gate and up. NULL when these are of a */
    const float *scales;        /* float type or have different groups: quantise values where a matrix asks */
    const float *row_weights;   /* or NULL */
    const uint16_t *in_rows;
    const uint16_t *out_rows;
    float *out;
    uint32_t value_stride;      /* floats between input rows */
    uint32_t code_stride;       /* bytes between input rows */
    uint32_t scale_stride;      /* floats between input rows */
    uint32_t out_stride;        /* floats between output rows */
} colibri_expert_ffn;

/* What bind, start and wait return: 0, one of these, or any other number of the port's own. */
enum {
    COLIBRI_BACKEND_UNABLE = 1, /* cannot compute this expert to the bit */
    COLIBRI_BACKEND_MEMORY = 2, /* its weights do not fit the device */
    COLIBRI_BACKEND_FAULT = 3   /* the device failed */
};

/* bind:  called by colibri_init for each bound expert, in order; the place to copy weights to the device and
 *        to refuse what it cannot compute exactly. NULL: weights are used where they lie. Streamed experts lie in a
 *        slot, from call to call another, and only until bind or the call's wait returns.
 * start: begins a call and may return at once. The descriptor is valid until start returns, what it points to
 *        until the call's wait has returned; nobody changes the inputs or touches the output rows meanwhile.
 *        A full queue is waited for inside. Non-zero: the call was not begun and gets no wait.
 * wait:  returns when that call is done, with its result. Every begun call is waited for once, in the order of
 *        the starts, after a failure too; then the device does not touch the call's memory any more.
 *
 * All come from the thread that called the runtime. How wait sleeps is the port's affair. */
typedef struct colibri_backend {
    uint32_t struct_bytes;
    uint32_t reserved;
    void *context;
    int (*bind)(void *context, const colibri_expert_ffn *expert);
    int (*start)(void *context, const colibri_expert_ffn *call);
    int (*wait)(void *context, uint32_t layer, uint32_t expert);
} colibri_backend;

/* Entry of colibri_platform.bindings. */
struct colibri_binding {
    uint16_t layer;
    uint16_t expert;
    const colibri_backend *backend;
};

/* The operation itself, on the calling thread with a table's kernels: what every backend must give, bit for
 * bit. scratch: colibri_expert_ffn_scratch bytes, aligned to 4, for any number of tokens. */
void colibri_expert_ffn_run(const colibri_expert_ffn *call, const colibri_kernels *kernels, void *scratch);
uint32_t colibri_expert_ffn_scratch(const colibri_expert_ffn *call);

#ifdef __cplusplus
}
#endif
#endif
