/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass. Read this file first: init carves memory, infer cuts a batch into steps, step runs
 * embedding -> layers (attention.c, dispatch.c or ffn.c) -> norm -> logits. */
#include <string.h>

#include "dispatch.h"
#include "float_math.h"
#include "image_rules.h"
#include "offload.h"
#include "options.h"
#include "preference.h"
#include "rope.h"
#include "size.h"
#include "step_tokens.h"
#include "stream.h"

_Static_assert(sizeof(struct engine) <= sizeof(colibri_engine), "the handle must hold the engine");

/* Nearest rounding, and subnormals kept: what docs/numerics.md is written for. */
static bool fp_environment_ok(void)
{
    volatile float tiny = 0x1p-126f, one = 1.0f, ulp = 0x1p-24f;
    volatile float half = tiny * 0.5f, tie = one + ulp, above = one + 1.5f * ulp;
    return half > 0.0f && tie == one && above > one && -one - ulp == -one;
}

/* A file of the image where it lies, or copied to memory of the plan. */
static colibri_status map_file(const colibri_storage *s, uint32_t file, uint64_t bytes, const uint8_t **out,
                               colibri_error *error)
{
    if (bytes > SIZE_MAX)
        return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, 7, bytes, SIZE_MAX);
    *out = s->map != NULL ? s->map(s->context, file, 0, bytes) : NULL;
    if (*out == NULL)
        return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, 7, COLIBRI_WEIGHTS_MAPPED,
                            COLIBRI_WEIGHTS_LOADED);
    if (((uintptr_t)*out & 7u) != 0)
        return colibri_fail(error, COLIBRI_ERR_ALIGNMENT, COLIBRI_MAX_REGIONS, 0, 8);
    return COLIBRI_OK;
}

static colibri_status load_file(const struct engine *e, uint32_t file, uint64_t bytes, uint8_t *memory,
                                colibri_error *error)
{
    const colibri_storage *s = e->image->storage;
    const void *source = s->map != NULL ? s->map(s->context, file, 0, bytes) : NULL;
    if (source != NULL)
        memcpy(memory, source, (size_t)bytes);
    else if (s->read == NULL || s->read(s->context, file, 0, memory, bytes) != 0)
        return colibri_fail(error, COLIBRI_ERR_STORAGE, COLIBRI_NO_EXPERT | file, 0, bytes);
    colibri_trace(e, COLIBRI_EVENT_READ, COLIBRI_GLOBAL_LAYER, file, 1, bytes, 0);
    return COLIBRI_OK;
}

static colibri_status load_weights(struct engine *e, colibri_error *error)
{
    if (e->limits.weights >= COLIBRI_WEIGHTS_STREAMED)
        return colibri_stream_init(e, error);
    const bool loaded = e->limits.weights == COLIBRI_WEIGHTS_LOADED;
    uint8_t *memory = e->buffers[COLIBRI_BUFFER_WEIGHTS];
    colibri_status status = COLIBRI_OK;
    for (uint32_t i = 0; status == COLIBRI_OK && i <= colibri_companions(e->image); i++) {
        const uint64_t size = colibri_file_bytes(e->image, i);
        const uint8_t *bytes = memory;
        status = loaded ? load_file(e, i, size, memory, error)
                        : map_file(e->image->storage, i, size, &bytes, error);
        if (i == 0)
            e->weights = bytes;
#if COLIBRI_WITH_COMPANIONS
        else
            e->companions[i - 1] = bytes;
        uint64_t padded; /* as colibri_check_files adds them up */
        (void)colibri_align(size, 64, &padded);
        if (loaded)
            memory += (size_t)padded;
#endif
    }
    return status;
}

static colibri_status carve(struct engine *e, const colibri_plan_result *plan,
                            const colibri_region *regions, colibri_error *error)
{
    for (uint32_t r = 0; r < plan->region_count; r++) {
        if (plan->used[r] != 0 && (regions[r].base == NULL ||
                                   ((uintptr_t)regions[r].base & (plan->alignment - 1u)) != 0))
            return colibri_fail(error, COLIBRI_ERR_ALIGNMENT, r,
                                (uintptr_t)regions[r].base & (plan->alignment - 1u), plan->alignment);
        e->used[r] = plan->used[r];
    }
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        const colibri_buffer *b = &plan->buffers[i];
        e->buffers[b->kind] = (uint8_t *)regions[b->region].base + (size_t)b->offset;
    }
    e->region_count = plan->region_count;
    e->limits = plan->limits;
    return COLIBRI_OK;
}

enum { OWNER = 8 }; /* bytes in front of the state */

/* Whose memory this is: the handle of the last init here. */
static uintptr_t *owner(const struct engine *e)
{
    return (uintptr_t *)(void *)(e->buffers[COLIBRI_BUFFER_STATE] - OWNER);
}

/* False too when another engine has been made in the same memory. */
static bool alive(const struct engine *e)
{
    return e != NULL && e->image != NULL && *owner(e) == (uintptr_t)e;
}

static colibri_status fill_engine(struct engine *e, const colibri_plan_result *plan, const colibri_region *regions,
                                  const colibri_platform *platform, colibri_error *error)
{
    if (platform != NULL)
        memcpy(&e->platform, platform, platform->struct_bytes < sizeof e->platform
                                           ? platform->struct_bytes : sizeof e->platform);
    const colibri_pool *pool = e->platform.pool;
    if (pool != NULL && pool->workers > plan->limits.workers)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 4, plan->limits.workers, pool->workers);
    e->kernels = e->platform.kernels != NULL ? e->platform.kernels : &colibri_kernels_ref;
    colibri_status status = carve(e, plan, regions, error);
    if (status != COLIBRI_OK)
        return status;
    memset(e->buffers[COLIBRI_BUFFER_STATE], 0, OWNER + (size_t)e->limits.sequences * 8); /* an older engine's end */
    e->buffers[COLIBRI_BUFFER_STATE] += OWNER;
    colibri_preference_init(e);
    e->error = error;
    status = load_weights(e, error);
    if (status == COLIBRI_OK)
        status = colibri_offload_bind(e);
    e->error = NULL;
    *owner(e) = (uintptr_t)e;
    return status;
}

/* Built in the caller's handle: beside a plan it would be the largest thing on the stack. */
colibri_status colibri_init(colibri_engine *handle, const colibri_image *image,
                            const colibri_limits *limits, const colibri_region *regions,
                            uint32_t region_count, const colibri_platform *platform,
                            colibri_error *error)
{
    colibri_plan_result plan;
    if (handle == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 1, 0, 0);
    memset(handle, 0, sizeof *handle);
    colibri_status status = colibri_plan(image, limits, regions, region_count, &plan, error);
    if (status != COLIBRI_OK)
        return status;
    if (!fp_environment_ok())
        return colibri_fail(error, COLIBRI_ERR_FP_ENV, 0, 0, 0);
    struct engine *e = colibri_engine_of(handle);
    e->image = image;
    status = fill_engine(e, &plan, regions, platform, error);
    if (status != COLIBRI_OK)
        memset(handle, 0, sizeof *handle); /* a failed init leaves a handle that every call refuses */
    return status;
}

#define BROKEN UINT32_MAX /* length of a sequence whose states a failed call has left halfway */

/* length[s], then saved[s] for taking a failed call back */
static uint32_t *lengths(const struct engine *e)
{
    return (uint32_t *)(void *)e->buffers[COLIBRI_BUFFER_STATE];
}

struct step {
    const struct engine *engine;
    const uint32_t *tokens;
    colibri_matrix embedding;
};

static void embed_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct step *s = arg;
    uint32_t n = s->embedding.columns;
    float *row = colibri_floats(s->engine, COLIBRI_BUFFER_HIDDEN) + (size_t)token * n;
    (void)worker;
    colibri_row_values(&s->embedding, s->tokens[token], row);
    for (uint32_t i = 0; i < n; i++)
        row[i] = row[i] * s->engine->image->config.embedding_scale;
}

/* What the block's output is added to is the stream, or with a tensor of that role the block's input (MiniMax:
 * transformers modeling_minimax.py, MiniMaxDecoderLayer). Returns what multiplies the output. */
static float keep(const struct engine *e, uint32_t l, uint32_t role, const struct activations *normed)
{
#if COLIBRI_WITH_NORMED_RESIDUAL
    const float *factors = colibri_vector_of(e, l, role);
    if (factors != NULL) {
        float *hidden = colibri_floats(e, COLIBRI_BUFFER_HIDDEN);
        for (size_t i = 0; i < (size_t)e->tokens * e->image->config.hidden; i++)
            hidden[i] = normed->values[i] * factors[0];
        return factors[1];
    }
#endif
    (void)l;
    (void)role;
    (void)normed;
    return e->image->config.residual_scale;
}

static colibri_status mix(const struct engine *e, uint32_t l, const colibri_layer *kind, struct activations *normed)
{
    colibri_norm(e, colibri_floats(e, COLIBRI_BUFFER_HIDDEN), l, COLIBRI_ROLE_ATTENTION_NORM,
                 COLIBRI_ROLE_ATTENTION_NORM_BIAS, normed);
    float scale = keep(e, l, COLIBRI_ROLE_ATTENTION_RESIDUAL, normed);
#if COLIBRI_WITH_LATENT
    if (kind->mixer == COLIBRI_MIXER_LATENT)
        colibri_latent_attention(e, l, normed);
#endif
#if COLIBRI_WITH_LINEAR
    if (kind->mixer >= COLIBRI_MIXER_DELTA && kind->mixer != COLIBRI_MIXER_MAMBA)
        colibri_linear_attention(e, l, normed);
#endif
#if COLIBRI_WITH_MAMBA
    if (kind->mixer == COLIBRI_MIXER_MAMBA)
        colibri_mamba(e, l, normed);
#endif
#if COLIBRI_WITH_CONV
    if (kind->mixer == COLIBRI_MIXER_CONV)
        colibri_conv(e, l, normed);
#endif
    colibri_status status = COLIBRI_OK;
    if (kind->mixer == COLIBRI_MIXER_ATTENTION || kind->mixer == COLIBRI_MIXER_EXPERTS)
        status = colibri_attention(e, l, normed);
    colibri_add_block(e, l, COLIBRI_ROLE_ATTENTION_POST_NORM, scale, normed);
    return status;
}

/* Routes what has not been routed before the mixer. */
static colibri_status experts(const struct engine *e, uint32_t l, struct colibri_mixture *m, struct activations *in)
{
    colibri_status status = m->dispatch.engine != NULL ? COLIBRI_OK : colibri_mixture_route(m, e, l, in);
    return status == COLIBRI_OK ? colibri_mixture_run(m, in) : status;
}

#if COLIBRI_WITH_BESIDE
/* Experts beside a dense FFN: their output waits in a buffer of its own. */
static colibri_status experts_beside(const struct engine *e, uint32_t l, struct colibri_mixture *m,
                                     struct activations *normed)
{
    struct activations beside = *normed;
    beside.values = colibri_floats(e, COLIBRI_BUFFER_BESIDE);
    if (colibri_vector_of(e, l, COLIBRI_ROLE_EXPERTS_NORM) != NULL)
        colibri_norm(e, colibri_floats(e, COLIBRI_BUFFER_HIDDEN), l, COLIBRI_ROLE_EXPERTS_NORM, 0, &beside);
    else
        memcpy(beside.values, normed->values, (size_t)normed->rows * normed->columns * sizeof *normed->values);
    colibri_status status = experts(e, l, m, &beside);
    if (status == COLIBRI_OK && colibri_vector_of(e, l, COLIBRI_ROLE_EXPERTS_POST_NORM) != NULL)
        colibri_norm(e, beside.values, l, COLIBRI_ROLE_EXPERTS_POST_NORM, 0, &beside);
    normed->group = 0; /* its codes have been written over */
    return status;
}

static void add_beside(const struct engine *e, float *x)
{
    const float *y = colibri_floats(e, COLIBRI_BUFFER_BESIDE);
    for (size_t i = 0; i < (size_t)e->tokens * e->image->config.hidden; i++)
        x[i] = x[i] + y[i];
}
#endif

static colibri_status feed(const struct engine *e, uint32_t l, const colibri_layer *kind, struct colibri_mixture *m,
                           struct activations *normed)
{
    colibri_status status = COLIBRI_OK;
    colibri_norm(e, colibri_floats(e, COLIBRI_BUFFER_HIDDEN), l, COLIBRI_ROLE_FFN_NORM,
                 COLIBRI_ROLE_FFN_NORM_BIAS, normed);
    float scale = keep(e, l, COLIBRI_ROLE_FFN_RESIDUAL, normed);
    if (kind->ffn == COLIBRI_FFN_MOE)
        status = experts(e, l, m, normed);
#if COLIBRI_WITH_BESIDE
    if (kind->ffn == COLIBRI_FFN_BOTH)
        status = experts_beside(e, l, m, normed);
#endif
#if COLIBRI_WITH_DENSE
    if (kind->ffn & COLIBRI_FFN_DENSE)
        colibri_dense_ffn(e, l, normed, COLIBRI_ROLE_DENSE_GATE, e->image->config.dense_size,
                          normed->values);
#endif
#if COLIBRI_WITH_BESIDE
    if (colibri_vector_of(e, l, COLIBRI_ROLE_DENSE_POST_NORM) != NULL)
        colibri_norm(e, normed->values, l, COLIBRI_ROLE_DENSE_POST_NORM, 0, normed);
    if (kind->ffn == COLIBRI_FFN_BOTH && !(kind->flags & COLIBRI_LAYER_HOLD))
        add_beside(e, normed->values);
#endif
    colibri_add_block(e, l, COLIBRI_ROLE_FFN_POST_NORM, scale, normed);
    return status;
}

/* hidden += mixer(norm(hidden)); hidden += ffn(norm(hidden)) */
static colibri_status layer(const struct engine *e, uint32_t l, struct activations *normed)
{
    float *hidden = colibri_floats(e, COLIBRI_BUFFER_HIDDEN);
    colibri_layer kind;
    struct colibri_mixture mixture;
    colibri_status status = COLIBRI_OK;
    colibri_image_layer(e->image, l, &kind);
    colibri_trace(e, COLIBRI_EVENT_LAYER, l, 0, e->tokens, 0, 0);
    mixture.dispatch.engine = NULL; /* not routed */
    if (kind.flags & COLIBRI_LAYER_EARLY_ROUTER)
        status = colibri_mixture_route_early(&mixture, e, l);
    if (status == COLIBRI_OK)
        status = mix(e, l, &kind, normed);
    if (status == COLIBRI_OK)
        status = feed(e, l, &kind, &mixture, normed);
#if COLIBRI_WITH_BESIDE
    if (kind.flags & COLIBRI_LAYER_RELEASE)
        add_beside(e, hidden);
#endif
    const float *scale = colibri_vector_of(e, l, COLIBRI_ROLE_LAYER_SCALE);
    for (size_t i = 0; scale != NULL && i < (size_t)e->tokens * e->image->config.hidden; i++)
        hidden[i] = hidden[i] * *scale;
    return status;
}

/* Logits of the wanted rows, in order. */
static colibri_status project(const struct engine *e, uint32_t wanted, struct activations *normed,
                              float *logits)
{
    const colibri_config *c = &e->image->config;
    const float *hidden = colibri_floats(e, COLIBRI_BUFFER_HIDDEN);
    const float *weight = colibri_vector_of(e, COLIBRI_GLOBAL_LAYER, COLIBRI_ROLE_OUTPUT_NORM);
    const float *bias = colibri_vector_of(e, COLIBRI_GLOBAL_LAYER, COLIBRI_ROLE_OUTPUT_NORM_BIAS);
    for (uint32_t i = 0; i < wanted; i++)
        colibri_norm_row(e, hidden + (size_t)colibri_wanted(e)[i] * c->hidden, weight, bias,
                         c->output_epsilon > 0.0f ? c->output_epsilon : c->norm_epsilon, c->hidden,
                         normed->values + (size_t)i * c->hidden);
    normed->rows = wanted;
    normed->group = 0;
    colibri_linear(e, COLIBRI_GLOBAL_LAYER, c->tied ? COLIBRI_ROLE_EMBEDDING : COLIBRI_ROLE_OUTPUT,
                   COLIBRI_ROLE_OUTPUT_BIAS, normed, logits, c->vocabulary);
    for (uint32_t i = 0; i < wanted; i++) {
        for (uint32_t v = 0; v < c->vocabulary; v++, logits++) {
            *logits = *logits * c->logits_scale;
            if (c->logits_cap > 0.0f)
                *logits = colibri_tanh(*logits / c->logits_cap) * c->logits_cap;
            if (!colibri_finite_bits(colibri_float_bits(*logits)))
                return colibri_fail(e->error, COLIBRI_ERR_NONFINITE, i, v, 0);
        }
    }
    return COLIBRI_OK;
}

static colibri_status step(const struct engine *e, const uint32_t *tokens, uint32_t wanted, float *logits)
{
    const colibri_config *c = &e->image->config;
    struct step s = {.engine = e, .tokens = tokens};
    struct activations normed = {
        .values = colibri_floats(e, COLIBRI_BUFFER_NORMED),
        .columns = c->hidden,
        .stride = c->hidden,
        .rows = e->tokens,
        .codes = (int8_t *)e->buffers[COLIBRI_BUFFER_CODES],
        .scales = colibri_floats(e, COLIBRI_BUFFER_CODE_SCALES),
    };
    colibri_status status = COLIBRI_OK;
    colibri_trace(e, COLIBRI_EVENT_STEP, 0, 0, e->tokens, 0, 0);
    colibri_stream_step(e);
    (void)colibri_matrix_of(e, COLIBRI_GLOBAL_LAYER, COLIBRI_ROLE_EMBEDDING, &s.embedding);
    colibri_run(e, e->tokens, embed_token, &s);
    for (uint32_t set = 1; set <= 2; set++)
        if (e->image->rope_sets & set)
            colibri_rope_table(e, set);
    for (uint32_t l = 0; status == COLIBRI_OK && l < c->layers; l++)
        status = layer(e, l, &normed);
    if (status == COLIBRI_OK && wanted != 0)
        status = project(e, wanted, &normed, logits);
    colibri_stream_step_end(e);
    return status;
}

static bool wants(const colibri_batch *b, uint32_t i)
{
    return b->want_logits != NULL ? b->want_logits[i] != 0 : i + 1 == b->count;
}

/* Every token of the batch must be in the vocabulary, in a sequence, and have a place in it. */
static colibri_status check_batch(const struct engine *e, const colibri_batch *b)
{
    uint32_t *length = lengths(e);
    uint64_t rows = 0, need;
    for (uint32_t i = 0; i < b->count; i++) {
        uint32_t s = b->sequences != NULL ? b->sequences[i] : 0;
        if (b->tokens[i] >= e->image->config.vocabulary)
            return colibri_fail(e->error, COLIBRI_ERR_TOKEN, i, b->tokens[i], e->image->config.vocabulary);
        if (s >= e->limits.sequences)
            return colibri_fail(e->error, COLIBRI_ERR_SEQUENCE, i, s, e->limits.sequences);
        if (length[s] == BROKEN)
            return colibri_fail(e->error, COLIBRI_ERR_BROKEN, s, 0, 0);
        length[s]++;
        rows += wants(b, i);
    }
    for (uint32_t s = 0; s < e->limits.sequences; s++)
        if (length[s] != BROKEN && length[s] > e->limits.context)
            return colibri_fail(e->error, COLIBRI_ERR_CONTEXT, s, e->limits.context, length[s]);
    if (!colibri_mul(rows, e->image->config.vocabulary, &need) || need > b->logits_floats ||
        (need != 0 && b->logits == NULL))
        return colibri_fail(e->error, COLIBRI_ERR_LOGITS, 0, b->logits_floats, need);
    return COLIBRI_OK;
}

/* Sets up positions of the next tokens; returns how many of them want logits. */
static uint32_t place_step(struct engine *e, const colibri_batch *b, uint32_t begin)
{
    uint32_t wanted = 0;
    e->tokens = b->count - begin < e->limits.batch ? b->count - begin : e->limits.batch;
    for (uint32_t t = 0; t < e->tokens; t++) {
        uint32_t s = b->sequences != NULL ? b->sequences[begin + t] : 0;
        colibri_sequences(e)[t] = s;
        colibri_positions(e)[t] = lengths(e)[s]++;
        if (wants(b, begin + t))
            colibri_wanted(e)[wanted++] = (uint16_t)t;
    }
    return wanted;
}

/* After a failed call. A cache forgets by its length; a recurrent state cannot go back. */
static void take_back(const struct engine *e, uint32_t *length, const uint32_t *saved)
{
    bool recurrent = e->stepped && e->image->conv_layers + e->image->linear_layers != 0;
    for (uint32_t s = 0; s < e->limits.sequences; s++)
        length[s] = recurrent && length[s] != saved[s] ? BROKEN : saved[s];
    colibri_preference_take_back(e);
}

colibri_status colibri_infer(colibri_engine *handle, const colibri_batch *batch, colibri_error *error)
{
    struct engine *e = colibri_engine_of(handle);
    if (!alive(e))
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 1, 0, 0);
    if (batch == NULL || batch->count == 0 || batch->tokens == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 2, 0, 1);
    uint32_t *length = lengths(e), *saved = length + e->limits.sequences;
    size_t state = (size_t)e->limits.sequences * sizeof *length;
    float *logits = batch->logits;
    e->error = error;
    e->stepped = false;
    memcpy(saved, length, state);
    colibri_preference_save(e);
    colibri_status status = check_batch(e, batch);
    memcpy(length, saved, state);
    for (uint32_t begin = 0; status == COLIBRI_OK && begin < batch->count; begin += e->tokens) {
        uint32_t wanted = place_step(e, batch, begin);
        e->stepped = true;
        status = step(e, batch->tokens + begin, wanted, logits);
        logits = wanted != 0 ? logits + (size_t)wanted * e->image->config.vocabulary : logits;
    }
    if (status != COLIBRI_OK)
        take_back(e, length, saved);
    e->error = NULL;
    return status;
}

colibri_status colibri_reset(colibri_engine *handle, uint32_t sequence)
{
    struct engine *e = colibri_engine_of(handle);
    if (!alive(e))
        return COLIBRI_ERR_ARGUMENT;
    if (sequence >= e->limits.sequences)
        return COLIBRI_ERR_SEQUENCE;
    lengths(e)[sequence] = 0;
    colibri_preference_reset(e, sequence);
    return COLIBRI_OK;
}

uint32_t colibri_length(const colibri_engine *handle, uint32_t sequence)
{
    const struct engine *e = (const struct engine *)(const void *)handle;
    return alive(e) && sequence < e->limits.sequences && lengths(e)[sequence] != BROKEN ? lengths(e)[sequence] : 0;
}

uint64_t colibri_high_water(const colibri_engine *handle, uint32_t region)
{
    const struct engine *e = (const struct engine *)(const void *)handle;
    return e != NULL && region < e->region_count ? e->used[region] : 0;
}
