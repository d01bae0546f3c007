/* SPDX-License-Identifier: Apache-2.0 */
/* Experts bound to backends: offered to them at init, begun before the CPU computes the others, waited for
 * before the outputs are added. They write the rows that the CPU would have written. */
#include "offload.h"

#include "colibri/backend.h"

#if COLIBRI_WITH_BACKENDS
static uint32_t key_of(uint32_t layer, uint32_t expert)
{
    return layer << 16 | expert;
}

/* The backend of an expert, or NULL. */
static const colibri_backend *backend_of(const struct engine *e, uint32_t layer, uint32_t expert)
{
    uint32_t low = 0, high = e->platform.binding_count, key = key_of(layer, expert);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const colibri_binding *b = &e->platform.bindings[middle];
        if (key_of(b->layer, b->expert) == key)
            return b->backend;
        if (key_of(b->layer, b->expert) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* A matrix of the expert's record, and its bias when the layer has them. */
static void part_of(const struct engine *e, const colibri_expert_ffn *call, uint32_t role, colibri_matrix *w,
                    const float **bias)
{
    const uint8_t *record = call->record;
    colibri_tensor t;
    if (colibri_image_find(e->image, call->layer, role, &t) == COLIBRI_OK)
        colibri_matrix_init(w, &t, record + (size_t)t.offset);
    if (colibri_image_find(e->image, call->layer, role + 3, &t) == COLIBRI_OK)
        *bias = (const float *)(const void *)(record + (size_t)t.offset);
}

/* What does not depend on a step. first: the layer's first entry in the expert table. */
static colibri_expert_ffn describe(const struct engine *e, uint32_t layer, uint32_t first, uint32_t expert)
{
    const colibri_config *c = &e->image->config;
    colibri_expert record;
    (void)colibri_image_expert(e->image, first + expert, &record);
    colibri_expert_ffn call = {
        .struct_bytes = sizeof call,
        .layer = layer,
        .expert = expert,
        .record = colibri_record_of(e, first + expert),
        .record_bytes = record.bytes,
        .activation = c->activation,
        .activation_limit = c->activation_limit,
        .activation_alpha = c->activation_alpha,
    };
    part_of(e, &call, COLIBRI_ROLE_EXPERT_GATE, &call.gate, &call.gate_bias);
    part_of(e, &call, COLIBRI_ROLE_EXPERT_UP, &call.up, &call.up_bias);
    part_of(e, &call, COLIBRI_ROLE_EXPERT_DOWN, &call.down, &call.down_bias);
    return call;
}

/* Ascending, of an expert that has weights, to a backend that is complete. */
static bool binding_ok(const struct engine *e, uint32_t index)
{
    const colibri_config *c = &e->image->config;
    const colibri_binding *b = &e->platform.bindings[index];
    colibri_layer kind;
    if (index != 0 && key_of(b->layer, b->expert) <= key_of(b[-1].layer, b[-1].expert))
        return false;
    if (b->layer >= c->layers || b->expert >= c->experts - c->identities || b->backend == NULL)
        return false;
    colibri_image_layer(e->image, b->layer, &kind);
    return (kind.ffn & COLIBRI_FFN_MOE) != 0 && b->backend->struct_bytes >= sizeof *b->backend &&
           b->backend->start != NULL && b->backend->wait != NULL;
}

/* Shows an expert to its backend; a streamed one comes into a slot for it and stays until others need the place. */
static colibri_status offer(const struct engine *e, const colibri_binding *b)
{
    struct colibri_dispatch d = {.engine = e, .layer = b->layer, .first = colibri_first_expert(e->image, b->layer)};
    colibri_status status = colibri_stream_fetch(&d, b->expert);
    if (status != COLIBRI_OK)
        return status;
    colibri_expert_ffn call = describe(e, b->layer, d.first, b->expert);
    int result = b->backend->bind(b->backend->context, &call);
#if COLIBRI_WITH_STREAMING
    if (colibri_streams(e))
        colibri_cache_release(&e->cache, d.first + b->expert);
#endif
    if (result != 0)
        return colibri_fail(e->error, COLIBRI_ERR_BACKEND, key_of(b->layer, b->expert), (uint32_t)result, 0);
    colibri_trace(e, COLIBRI_EVENT_BACKEND_COPY, b->layer, b->expert, 0, call.record_bytes, 0);
    return COLIBRI_OK;
}

colibri_status colibri_offload_bind(const struct engine *e)
{
    if (e->platform.binding_count != 0 && e->platform.bindings == NULL)
        return colibri_fail(e->error, COLIBRI_ERR_ARGUMENT, 6, 0, 0);
    for (uint32_t i = 0; i < e->platform.binding_count; i++) {
        const colibri_binding *b = &e->platform.bindings[i];
        if (!binding_ok(e, i))
            return colibri_fail(e->error, COLIBRI_ERR_ARGUMENT, 6, i, 0);
        colibri_status status = b->backend->bind != NULL ? offer(e, b) : COLIBRI_OK;
        if (status != COLIBRI_OK)
            return status;
    }
    return COLIBRI_OK;
}

/* Group of a tensor; `otherwise` for none and for float types, which do not touch the codes. */
static uint32_t group_of(const struct engine *e, uint32_t layer, uint32_t role, uint32_t otherwise)
{
    colibri_tensor t;
    bool found = colibri_image_find(e->image, layer, role, &t) == COLIBRI_OK;
    return found && t.group != 0 ? t.group : otherwise;
}

/* Codes can be lent to a backend when nobody makes others in their place before the wait. */
static bool codes_stay(const struct engine *e, uint32_t layer, const colibri_expert_ffn *call)
{
    uint32_t group = call->gate.group;
    return group != 0 && call->up.group == group &&
           group_of(e, layer, COLIBRI_ROLE_SHARED_GATE, group) == group &&
           group_of(e, layer, COLIBRI_ROLE_SHARED_UP, group) == group;
}

static void lend_inputs(const struct colibri_dispatch *d, struct activations *in, colibri_expert_ffn *call)
{
    uint32_t first = d->start[call->expert];
    call->tokens = (uint32_t)d->start[call->expert + 1u] - first;
    call->in_rows = d->token + first;
    call->out_rows = d->slot + first;
    call->values = in->values;
    call->value_stride = in->stride;
    if (!codes_stay(d->engine, d->layer, call))
        return;
    colibri_quantize(d->engine, in, call->gate.group);
    call->codes = in->codes;
    call->scales = in->scales;
    call->code_stride = call->gate.groups * call->gate.group;
    call->scale_stride = call->gate.groups;
}

static void trace_start(const struct engine *e, const colibri_expert_ffn *c)
{
    uint64_t row = c->codes != NULL ? c->code_stride + c->scale_stride * 4u : c->gate.columns * 4u;
    uint64_t weights = (uint64_t)c->gate.rows * c->gate.columns * 3u;
    colibri_trace(e, COLIBRI_EVENT_BACKEND_COPY, c->layer, c->expert, c->tokens,
                  (row + c->down.rows * 4u) * c->tokens, 0);
    colibri_trace(e, COLIBRI_EVENT_BACKEND_START, c->layer, c->expert, c->tokens, c->record_bytes,
                  weights * c->tokens);
}

/* Moves the bound experts behind the others, which stay in order; returns how many there are. */
static uint32_t set_apart(struct colibri_dispatch *d)
{
    uint32_t count = d->active_count;
    d->active_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t expert = d->active[i];
        if (backend_of(d->engine, d->layer, expert) != NULL)
            continue;
        d->active[i] = d->active[d->active_count];
        d->active[d->active_count++] = expert;
    }
    return count - d->active_count;
}

colibri_status colibri_offload_start(struct colibri_offload *o, struct colibri_dispatch *d,
                                     struct activations *in, const float *weights, float *outputs)
{
    const struct engine *e = d->engine;
    uint32_t bound = e->platform.binding_count != 0 ? set_apart(d) : 0;
    *o = (struct colibri_offload){.dispatch = d, .first = d->active_count};
    for (; o->begun < bound; o->begun++) {
        uint32_t expert = d->active[o->first + o->begun];
        const colibri_backend *backend = backend_of(e, d->layer, expert);
        colibri_expert_ffn call = describe(e, d->layer, d->first, expert);
        lend_inputs(d, in, &call);
        call.row_weights = weights;
        call.out = outputs;
        call.out_stride = e->image->config.hidden;
        trace_start(e, &call);
        int result = backend->start(backend->context, &call);
        if (result != 0) {
            (void)colibri_offload_wait(o);
            return colibri_fail(e->error, COLIBRI_ERR_BACKEND, key_of(d->layer, expert), (uint32_t)result, 0);
        }
    }
    return COLIBRI_OK;
}

/* Every call is waited for, so that nobody writes into the arena after a failure. */
colibri_status colibri_offload_wait(const struct colibri_offload *o)
{
    const struct colibri_dispatch *d = o->dispatch;
    const struct engine *e = d->engine;
    colibri_status status = COLIBRI_OK;
    for (uint32_t i = 0; i < o->begun; i++) {
        uint32_t expert = d->active[o->first + i];
        const colibri_backend *backend = backend_of(e, d->layer, expert);
        int result = backend->wait(backend->context, d->layer, expert);
        colibri_trace(e, COLIBRI_EVENT_BACKEND_WAIT, d->layer, expert, 0, 0, 0);
        if (result != 0 && status == COLIBRI_OK)
            status = colibri_fail(e->error, COLIBRI_ERR_BACKEND, key_of(d->layer, expert), (uint32_t)result, 0);
    }
    return status;
}
#endif
