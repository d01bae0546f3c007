/* SPDX-License-Identifier: Apache-2.0 */
/* What a colibri_engine holds. Pointers live here, in the caller's handle; the arena has none. */
#ifndef COLIBRI_ENGINE_STATE_H
#define COLIBRI_ENGINE_STATE_H

#include "buffers.h"
#include "colibri/engine.h"
#include "colibri/kernels.h"
#include "expert_cache.h"
#include "fail.h"
#include "options.h"
#include "tensor.h"

struct engine {
    const colibri_image *image;
    const colibri_kernels *kernels;
    colibri_platform platform;
    colibri_limits limits;
    const uint8_t *weights; /* byte 0 of the image, or of its dense part */
#if COLIBRI_WITH_COMPANIONS
    const uint8_t *companions[COLIBRI_MAX_COMPANIONS]; /* byte 0 of each */
#endif
#if COLIBRI_WITH_STREAMING
    uint64_t weights_from;  /* offset in the image of what lies at weights */
    struct colibri_expert_cache cache; /* without slots when nothing is streamed */
    uint8_t *slots;
    size_t slot_bytes;
#endif
    uint8_t *buffers[COLIBRI_BUFFER_COUNT];
    uint64_t used[COLIBRI_MAX_REGIONS];
    uint32_t region_count;
    uint32_t tokens;        /* of the current step */
    bool stepped;           /* the current call has changed states that only reset can mend */
    colibri_error *error;   /* of the current call */
};

/* Rows of activations, and whether their int8 form is at hand. */
struct activations {
    float *values;
    uint32_t columns;
    uint32_t stride;        /* floats between rows of values; codes lie close */
    uint32_t rows;
    const uint16_t *list;   /* which rows when not the first ones, or NULL */
    int8_t *codes;
    float *scales;
    uint32_t group;         /* of codes; 0: none made yet */
};

static inline uint32_t colibri_row(const struct activations *a, uint32_t i)
{
#if COLIBRI_WITH_STREAMING
    if (a->list != NULL)
        return a->list[i];
#endif
    (void)a;
    return i;
}

static inline struct engine *colibri_engine_of(colibri_engine *handle)
{
    return (struct engine *)(void *)handle;
}

static inline bool colibri_streams(const struct engine *e)
{
#if COLIBRI_WITH_STREAMING
    return e->cache.slot_count != 0;
#else
    (void)e;
    return false;
#endif
}

/* Where the record of an expert lies: in its slot, in a companion, or in the image. index: in the expert table. */
static inline const uint8_t *colibri_record_of(const struct engine *e, uint32_t index)
{
#if COLIBRI_WITH_STREAMING
    if (colibri_streams(e))
        return e->slots + (size_t)e->cache.places[index] * e->slot_bytes;
#endif
    colibri_expert record;
    (void)colibri_image_expert(e->image, index, &record);
#if COLIBRI_WITH_COMPANIONS
    if (record.file != 0)
        return e->companions[record.file - 1] + (size_t)record.offset;
#endif
    return e->weights + (size_t)record.offset;
}

static inline float *colibri_floats(const struct engine *e, uint32_t buffer)
{
    return (float *)(void *)e->buffers[buffer];
}

/* Bytes of a tensor that is not in a record. */
static inline const uint8_t *colibri_weights_at(const struct engine *e, uint64_t offset)
{
#if COLIBRI_WITH_STREAMING
    offset -= e->weights_from;
#endif
    return e->weights + (size_t)offset;
}

/* step.c: work over items, over rows of so many elements, and the products every block is made of. */
void colibri_run(const struct engine *e, uint32_t items, colibri_task fn, void *arg);
void colibri_run_rows(const struct engine *e, uint32_t rows, uint32_t columns, colibri_task fn, void *arg);
void colibri_trace(const struct engine *e, uint32_t kind, uint32_t layer, uint32_t index, uint32_t count,
                   uint64_t bytes, uint64_t work);

/* False when the image has no such tensor. */
bool colibri_matrix_of(const struct engine *e, uint32_t layer, uint32_t role, colibri_matrix *matrix);

/* An f32 vector of the image, or NULL. */
const float *colibri_vector_of(const struct engine *e, uint32_t layer, uint32_t role);

void colibri_quantize(const struct engine *e, struct activations *a, uint32_t group);

/* out = norm(x) with the weight of a role; bias_role 0: always RMS, without a bias. */
void colibri_norm(const struct engine *e, const float *x, uint32_t layer, uint32_t role, uint32_t bias_role,
                  struct activations *out);
void colibri_norm_row(const struct engine *e, const float *x, const float *weight, const float *bias,
                      float epsilon, uint32_t columns, float *out);

/* out[row] = tensor x in[row] (+ bias), rows stride floats apart. bias_role 0: none. */
void colibri_linear(const struct engine *e, uint32_t layer, uint32_t role, uint32_t bias_role,
                    struct activations *in, float *out, uint32_t stride);

/* Up to COLIBRI_LINEARS products of the same input, side by side. */
enum { COLIBRI_LINEARS = 3 };
struct colibri_linear_to {
    uint32_t role;
    uint32_t bias_role; /* 0: none */
    float *out;
    uint32_t stride;    /* floats between rows of out */
};
void colibri_linears(const struct engine *e, uint32_t layer, struct activations *in,
                     const struct colibri_linear_to *to, uint32_t count);

/* The parts of a product that linear and the dispatcher share: rows an item takes, the input side. */
uint32_t colibri_chunk(const struct engine *e, uint32_t rows);
void colibri_matmul_inputs(colibri_matmul *m, const colibri_matrix *w, const struct activations *in);

/* hidden += scale * norm(y); the norm only when the layer has one with that role. */
void colibri_add_block(const struct engine *e, uint32_t layer, uint32_t post_norm, float scale, struct activations *y);

/* attention.c, latent.c, linear_attention.c, mamba.c, conv.c: normed.values become the block's output. */
/* NONFINITE when a router of attention's experts says so. */
colibri_status colibri_attention(const struct engine *e, uint32_t layer, struct activations *normed);
void colibri_latent_attention(const struct engine *e, uint32_t layer, struct activations *normed);
void colibri_linear_attention(const struct engine *e, uint32_t layer, struct activations *normed);
void colibri_mamba(const struct engine *e, uint32_t layer, struct activations *normed);
void colibri_conv(const struct engine *e, uint32_t layer, struct activations *normed);
void colibri_trace_attention(const struct engine *e, uint32_t layer, uint32_t planes, uint32_t elements);

/* ffn.c: out = down(act(gate(in)) * up(in)); the roles of gate, up and down follow each other. */
void colibri_dense_ffn(const struct engine *e, uint32_t layer, struct activations *in,
                       uint32_t gate_role, uint32_t size, float *out);
struct activations colibri_ffn_inner(const struct engine *e, uint32_t rows, uint32_t columns);

/* gate = act(gate) * up, rows first multiplied by weights when there are any. */
void colibri_activate(const struct engine *e, struct activations *gate, float *up, const float *weights);

#endif
