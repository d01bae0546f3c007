/* SPDX-License-Identifier: Apache-2.0 */
/* What each buffer is called and for. Leave this file out to save the text. */
#include "buffers.h"
#include "colibri/plan.h"

static const char *const names[COLIBRI_BUFFER_COUNT][2] = {
    [COLIBRI_BUFFER_STATE] = {"state", "length of each sequence"},
    [COLIBRI_BUFFER_STEP] = {"step", "position and sequence of each token of a step"},
    [COLIBRI_BUFFER_ROPE] = {"rope", "cosines and sines of the step's positions"},
    [COLIBRI_BUFFER_HIDDEN] = {"hidden", "residual stream"},
    [COLIBRI_BUFFER_NORMED] = {"normed", "normalised input of a block, then its output"},
    [COLIBRI_BUFFER_WORK] = {"work", "queries and attention output; shared or dense FFN output"},
    [COLIBRI_BUFFER_KEY_VALUE] = {"key_value", "keys and values before they enter the cache"},
    [COLIBRI_BUFFER_LATENT] = {"latent", "queries carried into the latent, then their results"},
    [COLIBRI_BUFFER_CODES] = {"codes", "activations quantised to int8"},
    [COLIBRI_BUFFER_CODE_SCALES] = {"code_scales", "scales of the quantised activations"},
    [COLIBRI_BUFFER_SCORES] = {"scores", "attention scores, one row a worker"},
    [COLIBRI_BUFFER_ROUTER] = {"router", "router scores"},
    [COLIBRI_BUFFER_ROUTES] = {"routes", "chosen experts and their weights"},
    [COLIBRI_BUFFER_DISPATCH] = {"dispatch", "tokens packed by expert"},
    [COLIBRI_BUFFER_FFN_GATE] = {"ffn_gate", "intermediate activations, gate side"},
    [COLIBRI_BUFFER_FFN_UP] = {"ffn_up", "intermediate activations, up side"},
    [COLIBRI_BUFFER_FFN_CODES] = {"ffn_codes", "intermediate activations quantised to int8"},
    [COLIBRI_BUFFER_FFN_SCALES] = {"ffn_scales", "scales of the quantised intermediate activations"},
    [COLIBRI_BUFFER_EXPERT_OUT] = {"expert_out", "output of each chosen expert for each token"},
    [COLIBRI_BUFFER_BESIDE] = {"beside", "experts' output while a dense FFN runs beside them"},
    [COLIBRI_BUFFER_RECURRENT] = {"recurrent", "states of layers without a cache"},
    [COLIBRI_BUFFER_KV] = {"kv_cache", "keys and values of every position"},
    [COLIBRI_BUFFER_WEIGHTS] = {"weights", "weights loaded from storage"},
    [COLIBRI_BUFFER_EXPERT_CACHE] = {"expert_cache", "which expert lies in which slot"},
    [COLIBRI_BUFFER_EXPERT_SLOTS] = {"expert_slots", "experts streamed from storage"},
};

const char *colibri_buffer_name(uint32_t kind)
{
    return kind < COLIBRI_BUFFER_COUNT ? names[kind][0] : "?";
}

const char *colibri_buffer_purpose(uint32_t kind)
{
    return kind < COLIBRI_BUFFER_COUNT ? names[kind][1] : "?";
}
