/* SPDX-License-Identifier: Apache-2.0 */
/* Meaning of an image's config: ranges of its words, and what they must have in common with the layers. */
#include "image_rules.h"

#include "bytes.h"
#include "fail.h"
#include "options.h"

#define WORD(field) (uint32_t)(offsetof(colibri_config, field) / 4)

static bool within(uint32_t x, uint32_t low, uint32_t high)
{
    return x >= low && x <= high;
}

/* Index of the first word that is out of range, or UINT32_MAX. */
static uint32_t bad_size_word(const colibri_config *c)
{
    if (!within(c->vocabulary, 1, 1u << 24))
        return WORD(vocabulary);
    if (!within(c->hidden, 1, 65536))
        return WORD(hidden);
    if (!within(c->layers, 1, 1024))
        return WORD(layers);
    if (!within(c->context, 1, COLIBRI_MAX_POSITION))
        return WORD(context);
    if (!within(c->heads, 1, 1024))
        return WORD(heads);
    if (!within(c->kv_heads, 1, c->heads) || c->heads % c->kv_heads != 0)
        return WORD(kv_heads);
    if (!within(c->head_size, 2, 1024) || c->head_size % 2 != 0 || c->heads * c->head_size > 131072)
        return WORD(head_size);
    if (c->rope_size > c->head_size || c->rope_size % 2 != 0)
        return WORD(rope_size);
    if (c->tied > 1)
        return WORD(tied);
    if (c->conv_size == 1 || c->conv_size > 64)
        return WORD(conv_size);
    if (c->rope_size_2 > 1024 || c->rope_size_2 % 2 != 0)
        return WORD(rope_size_2);
    return UINT32_MAX;
}

static uint32_t bad_latent_word(const colibri_config *c, bool latent)
{
    if (!(latent ? within(c->value_size, 1, 1024) : c->value_size == 0) || c->heads * c->value_size > 131072)
        return WORD(value_size);
    if (!(latent ? within(c->latent_size, 1, 8192) : c->latent_size == 0))
        return WORD(latent_size);
    if (c->query_latent > (latent ? 65536u : 0u))
        return WORD(query_latent);
    if (latent && (c->rope_size == 0 || c->rope_size == c->head_size))
        return WORD(rope_size);
    return UINT32_MAX;
}

static uint32_t bad_linear_word(const colibri_config *c, bool linear, bool mamba)
{
    if (!(linear ? within(c->linear_keys, 1, mamba ? 1 : 1024) : c->linear_keys == 0))
        return WORD(linear_keys);
    if (!(linear ? within(c->linear_values, 1, 131072) && c->linear_values % c->linear_keys == 0
                 : c->linear_values == 0))
        return WORD(linear_values);
    if (!(linear ? within(c->linear_key_size, 1, 1024) : c->linear_key_size == 0) ||
        c->linear_keys * c->linear_key_size > 131072)
        return WORD(linear_key_size);
    if (!(linear ? within(c->linear_value_size, 1, mamba ? 1 : 1024) : c->linear_value_size == 0) ||
        c->linear_values * c->linear_value_size > 131072)
        return WORD(linear_value_size);
    if (!(mamba ? within(c->linear_rank, 1, 65536) : c->linear_rank == 0))
        return WORD(linear_rank);
    return UINT32_MAX;
}

static uint32_t bad_kind_word(const colibri_config *c)
{
    if (c->rope_style > COLIBRI_ROPE_PAIRS)
        return WORD(rope_style);
    if (!within(c->activation, COLIBRI_ACTIVATION_SILU,
                COLIBRI_WITH_ACTIVATIONS ? COLIBRI_ACTIVATION_CLAMPED : COLIBRI_ACTIVATION_SILU))
        return WORD(activation);
    if (c->norm > (COLIBRI_WITH_LAYER_NORM ? COLIBRI_NORM_LAYER : COLIBRI_NORM_RMS))
        return WORD(norm);
    if (!COLIBRI_WITH_ATTENTION_EXTRAS && c->clip != 0.0f)
        return WORD(clip);
    return UINT32_MAX;
}

/* Words 19 .. 21 and router_scale .. logits_cap are floats. */
static uint32_t bad_float_word(const colibri_config *c)
{
    const uint32_t *words = (const uint32_t *)(const void *)c;
    for (uint32_t i = WORD(norm_epsilon); i <= WORD(logits_cap); i++)
        if ((i <= WORD(rope_scale) || i >= WORD(router_scale)) && !colibri_finite_bits(words[i]))
            return i;
    if (!(c->norm_epsilon > 0.0f))
        return WORD(norm_epsilon);
    if (!(c->router_epsilon >= 0.0f))
        return WORD(router_epsilon);
    if (!(c->clip >= 0.0f))
        return WORD(clip);
    if (!colibri_finite_bits(words[WORD(output_epsilon)]) || !(c->output_epsilon >= 0.0f))
        return WORD(output_epsilon);
    if (!(c->latent_epsilon >= 0.0f))
        return WORD(latent_epsilon);
    if (!(c->logits_cap >= 0.0f))
        return WORD(logits_cap);
    return c->temperature_floor >= 0.0f ? UINT32_MAX : WORD(temperature_floor);
}

static bool router_built(uint32_t router)
{
    switch (router) {
    case COLIBRI_ROUTER_SOFTMAX: return true;
    case COLIBRI_ROUTER_SIGMOID: return COLIBRI_WITH_ROUTER_SIGMOID;
    case COLIBRI_ROUTER_SPARSEMIXER: return COLIBRI_WITH_ROUTER_SPARSEMIXER;
    default: return COLIBRI_WITH_ROUTER_TOPK && within(router, COLIBRI_ROUTER_SOFTMAX, COLIBRI_ROUTER_TOPK_SIGMOID);
    }
}

/* At most 64 groups of equal size, enough experts in those that stay. */
static bool groups_ok(const colibri_config *c)
{
    uint32_t ranks = c->router_flags & (COLIBRI_ROUTER_GROUP_BEST | COLIBRI_ROUTER_GROUP_TWO);
    if (c->router_groups == 0)
        return c->router_groups_kept == 0 && ranks == 0;
    return COLIBRI_WITH_ROUTER_GROUPS && c->router_groups <= 64 && c->experts % c->router_groups == 0 &&
           within(c->router_groups_kept, 1, c->router_groups) &&
           c->experts / c->router_groups * c->router_groups_kept >= c->top_k &&
           (ranks == COLIBRI_ROUTER_GROUP_BEST || ranks == COLIBRI_ROUTER_GROUP_TWO);
}

static uint32_t bad_expert_word(const colibri_config *c, uint32_t moe_layers, uint32_t dense_layers)
{
    bool none = moe_layers == 0;
    if (none ? c->router != 0 : !router_built(c->router))
        return WORD(router);
    if (c->router_flags > (none ? 0u : 63u))
        return WORD(router_flags);
    if (!(none ? c->experts == 0 : within(c->experts, 1, 4096)))
        return WORD(experts);
    if (!(none ? c->top_k == 0 : within(c->top_k, 1, c->experts < 64 ? c->experts : 64)) ||
        (c->router == COLIBRI_ROUTER_SPARSEMIXER && c->top_k != 2))
        return WORD(top_k);
    if (!(none ? c->expert_size == 0 : within(c->expert_size, 1, 65536)))
        return WORD(expert_size);
    if (c->shared_size > (none ? 0u : 65536u))
        return WORD(shared_size);
    if (c->shared_flags > (c->shared_size == 0 ? 0u : COLIBRI_SHARED_SIGMOID))
        return WORD(shared_flags);
    if (!(dense_layers == 0 ? c->dense_size == 0 : within(c->dense_size, 1, 65536)))
        return WORD(dense_size);
    if (c->identities >= (none ? 1 : c->experts))
        return WORD(identities);
    return groups_ok(c) ? UINT32_MAX : WORD(router_groups);
}

/* Every layer's heads stay within bounds, and its rotation within its heads. */
static uint32_t bad_layer_sizes(const colibri_image *image)
{
    const colibri_config *c = &image->config;
    for (uint32_t i = 0; i < c->layers; i++) {
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        uint32_t rotated = l.rope == 2 && c->rope_size_2 != 0 ? c->rope_size_2 : c->rope_size;
        if (c->heads * l.head_size > 131072)
            return WORD(head_size);
        if (l.rope != 0 && colibri_layer_attends(&l) && rotated > l.head_size)
            return WORD(rope_size);
    }
    return UINT32_MAX;
}

static colibri_status bad_word(const colibri_config *c, uint32_t bad, colibri_error *error)
{
    if (bad == UINT32_MAX)
        return COLIBRI_OK;
    return colibri_fail(error, COLIBRI_ERR_CONFIG, bad, ((const uint32_t *)(const void *)c)[bad], 0);
}

colibri_status colibri_check_sizes(const colibri_config *c, colibri_error *error)
{
    return bad_word(c, bad_size_word(c), error);
}

colibri_status colibri_check_config(const colibri_image *image, colibri_error *error)
{
    const colibri_config *c = &image->config;
    uint32_t bad = UINT32_MAX;
    if ((c->conv_size != 0) != (image->filter_layers != 0))
        bad = WORD(conv_size);
    if (bad == UINT32_MAX)
        bad = bad_layer_sizes(image);
    if (bad == UINT32_MAX)
        bad = bad_latent_word(c, image->latent_layers != 0);
    if (bad == UINT32_MAX)
        bad = bad_linear_word(c, image->linear_layers != 0, image->mamba_layers != 0);
    if (bad == UINT32_MAX)
        bad = bad_kind_word(c);
    if (bad == UINT32_MAX)
        bad = bad_float_word(c);
    if (bad == UINT32_MAX)
        bad = bad_expert_word(c, image->moe_layers, image->dense_layers);
    for (uint32_t i = 0; bad == UINT32_MAX && i < sizeof c->reserved / 4; i++)
        if (c->reserved[i] != 0)
            bad = WORD(reserved) + i;
    return bad_word(c, bad, error);
}
