/* SPDX-License-Identifier: Apache-2.0 */
/* Experts bound to backends: what init and the dispatcher have to do with them. */
#ifndef COLIBRI_OFFLOAD_H
#define COLIBRI_OFFLOAD_H

#include "dispatch.h"
#include "options.h"
#include "stream.h"

/* Calls of one layer that have been begun: experts active[first] .. of the dispatch. */
struct colibri_offload {
    const struct colibri_dispatch *dispatch;
    uint32_t first;
    uint32_t begun;
};

#if COLIBRI_WITH_BACKENDS
/* Checks the platform's bindings and offers each expert to its backend. */
colibri_status colibri_offload_bind(const struct engine *e);

/* Takes the bound experts off the active list and begins their calls. weights: one a slot, or NULL.
 * BACKEND when one cannot be begun; nothing is under way then. */
colibri_status colibri_offload_start(struct colibri_offload *o, struct colibri_dispatch *d,
                                     struct activations *in, const float *weights, float *outputs);

/* Returns when every call is done; BACKEND when one has failed. */
colibri_status colibri_offload_wait(const struct colibri_offload *o);
#else
static inline colibri_status colibri_offload_bind(const struct engine *e)
{
    uint32_t count = e->platform.binding_count; /* must not be passed over in silence */
    return count == 0 ? COLIBRI_OK : colibri_fail(e->error, COLIBRI_ERR_UNSUPPORTED, 8, count, 0);
}

static inline colibri_status colibri_offload_start(struct colibri_offload *o, struct colibri_dispatch *d,
                                                   struct activations *in, const float *weights, float *outputs)
{
    (void)o, (void)d, (void)in, (void)weights, (void)outputs;
    return COLIBRI_OK;
}

static inline colibri_status colibri_offload_wait(const struct colibri_offload *o)
{
    (void)o;
    return COLIBRI_OK;
}
#endif

#endif
