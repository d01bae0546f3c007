/* SPDX-License-Identifier: Apache-2.0 */
/* Meaning of an image's tables: every tensor of the right shape and place, expert records. */
#include "image_rules.h"

#include "bytes.h"
#include "fail.h"
#include "options.h"
#include "size.h"
#include "tensor.h"
#include "tiles.h"

/* A dimension is a code for a number of the config. */
enum dimension {
    ONE, HIDDEN, VOCABULARY, QUERIES, KEYS, ROTATIONS, EXPERTS, EXPERT, SHARED, DENSE, HEADS, ATTENDED,
    QUERY_INPUT, QUERY_LATENT, LATENT, LATENT_ROPE, HEAD_LATENTS, HEAD_REST, HEAD_VALUES, HIDDEN_3,
    TAPS, ROTATIONS_2, EXPERT_KEYS, EXPERT_HIDDEN, CHANNELS, LINEAR_VALUES, LINEAR_HEADS, LINEAR_NORM,
    TWO, LINEAR_KEYS, RANK, SELECTED
};
enum flag { F32_ONLY = 1, OPTIONAL = 2, IN_RECORD = 4, OR_HEAD = 8, EXTRA = 16, NORMED_RESIDUAL = 32 };
enum when {
    /* by mixer alone, see mixers_of */
    ATTENDING, ATTENTION_LAYER, OUT_LAYER, EXPERT_ATTENTION_LAYER, LATENT_LAYER, CONV_LAYER, LINEAR_LAYER,
    HEADED_LAYER, STEP_LAYER, DELTA_LAYER, FILTER_LAYER, SKIP_LAYER, MAMBA_LAYER,
    ALWAYS, UNTIED, ROTATED, ROTATED_2, LAYER_NORMED, VALUE_LAYER, QUERY_LATENT_LAYER,
    DENSE_LAYER, MOE_LAYER, BOTH_LAYER, SHARED_LAYER, SHARED_GATED
};
enum { VECTOR = F32_ONLY | OPTIONAL };

static const struct rule {
    uint8_t role, rows, columns, flags, when;
} rules[] = {
    /* ascending within the layer's and within the global part */
    {COLIBRI_ROLE_ATTENTION_NORM, ONE, HIDDEN, VECTOR, ALWAYS},
    {COLIBRI_ROLE_QUERY, QUERIES, QUERY_INPUT, 0, OUT_LAYER},
    {COLIBRI_ROLE_KEY, KEYS, HIDDEN, 0, ATTENTION_LAYER},
    {COLIBRI_ROLE_VALUE, KEYS, HIDDEN, 0, VALUE_LAYER},
    {COLIBRI_ROLE_ATTENTION_OUT, HIDDEN, ATTENDED, 0, OUT_LAYER},
    {COLIBRI_ROLE_QUERY_BIAS, ONE, QUERIES, VECTOR, ATTENTION_LAYER},
    {COLIBRI_ROLE_KEY_BIAS, ONE, KEYS, VECTOR, ATTENTION_LAYER},
    {COLIBRI_ROLE_VALUE_BIAS, ONE, KEYS, VECTOR, VALUE_LAYER},
    {COLIBRI_ROLE_ATTENTION_OUT_BIAS, ONE, HIDDEN, VECTOR, ATTENDING},
    {COLIBRI_ROLE_QUERY_NORM, ONE, QUERIES, VECTOR | OR_HEAD | EXTRA, ATTENTION_LAYER},
    {COLIBRI_ROLE_KEY_NORM, ONE, KEYS, VECTOR | OR_HEAD | EXTRA, ATTENTION_LAYER},
    {COLIBRI_ROLE_SINKS, ONE, HEADS, VECTOR | EXTRA, ATTENTION_LAYER},
    {COLIBRI_ROLE_OUTPUT_GATE, QUERIES, HIDDEN, OPTIONAL | EXTRA, ATTENTION_LAYER},
    {COLIBRI_ROLE_ATTENTION_NORM_BIAS, ONE, HIDDEN, VECTOR, LAYER_NORMED},
    {COLIBRI_ROLE_ATTENTION_POST_NORM, ONE, HIDDEN, VECTOR, ALWAYS},
    {COLIBRI_ROLE_ATTENTION_ROUTER, EXPERTS, HIDDEN, F32_ONLY, EXPERT_ATTENTION_LAYER},
    {COLIBRI_ROLE_FFN_NORM, ONE, HIDDEN, VECTOR, ALWAYS},
    {COLIBRI_ROLE_DENSE_GATE, DENSE, HIDDEN, 0, DENSE_LAYER},
    {COLIBRI_ROLE_DENSE_UP, DENSE, HIDDEN, 0, DENSE_LAYER},
    {COLIBRI_ROLE_DENSE_DOWN, HIDDEN, DENSE, 0, DENSE_LAYER},
    {COLIBRI_ROLE_FFN_NORM_BIAS, ONE, HIDDEN, VECTOR, LAYER_NORMED},
    {COLIBRI_ROLE_FFN_POST_NORM, ONE, HIDDEN, VECTOR, ALWAYS},
    {COLIBRI_ROLE_CONV_IN, HIDDEN_3, HIDDEN, 0, CONV_LAYER},
    {COLIBRI_ROLE_CONV, HIDDEN, TAPS, F32_ONLY, CONV_LAYER},
    {COLIBRI_ROLE_LATENT_QUERY, QUERY_LATENT, HIDDEN, 0, QUERY_LATENT_LAYER},
    {COLIBRI_ROLE_LATENT_QUERY_NORM, ONE, QUERY_LATENT, F32_ONLY, QUERY_LATENT_LAYER},
    {COLIBRI_ROLE_LATENT, LATENT_ROPE, HIDDEN, 0, LATENT_LAYER},
    {COLIBRI_ROLE_LATENT_NORM, ONE, LATENT, F32_ONLY, LATENT_LAYER},
    {COLIBRI_ROLE_LATENT_KEY, HEAD_LATENTS, HEAD_REST, 0, LATENT_LAYER},
    {COLIBRI_ROLE_LATENT_VALUE, HEAD_VALUES, LATENT, 0, LATENT_LAYER},
    {COLIBRI_ROLE_CONV_OUT, HIDDEN, HIDDEN, 0, CONV_LAYER},
    {COLIBRI_ROLE_LAYER_SCALE, ONE, ONE, VECTOR, ALWAYS},
    {COLIBRI_ROLE_ROUTER, EXPERTS, HIDDEN, F32_ONLY, MOE_LAYER},
    {COLIBRI_ROLE_ROUTER_BIAS, ONE, EXPERTS, VECTOR, MOE_LAYER},
    {COLIBRI_ROLE_SHARED_GATE, SHARED, HIDDEN, 0, SHARED_LAYER},
    {COLIBRI_ROLE_SHARED_UP, SHARED, HIDDEN, 0, SHARED_LAYER},
    {COLIBRI_ROLE_SHARED_DOWN, HIDDEN, SHARED, 0, SHARED_LAYER},
    {COLIBRI_ROLE_SHARED_ROUTER, ONE, HIDDEN, F32_ONLY, SHARED_GATED},
    {COLIBRI_ROLE_ROUTER_SELECTION, ONE, EXPERTS, VECTOR, MOE_LAYER},
    {COLIBRI_ROLE_ROUTER_NORM, ONE, HIDDEN, VECTOR, MOE_LAYER},
    {COLIBRI_ROLE_ROUTER_WEIGHT, ONE, EXPERTS, VECTOR, MOE_LAYER},
    {COLIBRI_ROLE_EXPERTS_NORM, ONE, HIDDEN, VECTOR, BOTH_LAYER},
    {COLIBRI_ROLE_EXPERTS_POST_NORM, ONE, HIDDEN, VECTOR, BOTH_LAYER},
    {COLIBRI_ROLE_DENSE_POST_NORM, ONE, HIDDEN, VECTOR, BOTH_LAYER},
    {COLIBRI_ROLE_EXPERTS_BIAS, ONE, HIDDEN, VECTOR, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_QUERY, EXPERT_KEYS, HIDDEN, 0, EXPERT_ATTENTION_LAYER},
    {COLIBRI_ROLE_EXPERT_ATTENTION_OUT, EXPERT_HIDDEN, KEYS, 0, EXPERT_ATTENTION_LAYER},
    {COLIBRI_ROLE_EXPERT_GATE, EXPERT, HIDDEN, IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_UP, EXPERT, HIDDEN, IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_DOWN, HIDDEN, EXPERT, IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_GATE_BIAS, ONE, EXPERT, VECTOR | IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_UP_BIAS, ONE, EXPERT, VECTOR | IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_EXPERT_DOWN_BIAS, ONE, HIDDEN, VECTOR | IN_RECORD, MOE_LAYER},
    {COLIBRI_ROLE_LINEAR_IN, CHANNELS, HIDDEN, 0, LINEAR_LAYER},
    {COLIBRI_ROLE_LINEAR_GATE, LINEAR_VALUES, HIDDEN, 0, LINEAR_LAYER},
    {COLIBRI_ROLE_LINEAR_STEP, LINEAR_HEADS, HIDDEN, F32_ONLY, STEP_LAYER},
    {COLIBRI_ROLE_LINEAR_BETA, LINEAR_HEADS, HIDDEN, F32_ONLY, DELTA_LAYER},
    {COLIBRI_ROLE_LINEAR_CONV, CHANNELS, TAPS, F32_ONLY, FILTER_LAYER},
    {COLIBRI_ROLE_LINEAR_CONV_BIAS, ONE, CHANNELS, VECTOR, FILTER_LAYER},
    {COLIBRI_ROLE_LINEAR_STEP_BIAS, ONE, LINEAR_HEADS, F32_ONLY, FILTER_LAYER},
    {COLIBRI_ROLE_LINEAR_DECAY, ONE, LINEAR_HEADS, F32_ONLY, HEADED_LAYER},
    {COLIBRI_ROLE_LINEAR_SKIP, ONE, LINEAR_HEADS, F32_ONLY, SKIP_LAYER},
    {COLIBRI_ROLE_LINEAR_NORM, ONE, LINEAR_NORM, F32_ONLY, HEADED_LAYER},
    {COLIBRI_ROLE_LINEAR_OUT, HIDDEN, LINEAR_VALUES, 0, LINEAR_LAYER},
    {COLIBRI_ROLE_ATTENTION_RESIDUAL, ONE, TWO, VECTOR | NORMED_RESIDUAL, ALWAYS},
    {COLIBRI_ROLE_FFN_RESIDUAL, ONE, TWO, VECTOR | NORMED_RESIDUAL, ALWAYS},
    {COLIBRI_ROLE_LINEAR_SELECT, SELECTED, LINEAR_VALUES, 0, MAMBA_LAYER},
    {COLIBRI_ROLE_LINEAR_STEP_NORM, ONE, RANK, VECTOR, MAMBA_LAYER},
    {COLIBRI_ROLE_LINEAR_KEY_NORM, ONE, LINEAR_KEYS, VECTOR, MAMBA_LAYER},
    {COLIBRI_ROLE_LINEAR_QUERY_NORM, ONE, LINEAR_KEYS, VECTOR, MAMBA_LAYER},
    {COLIBRI_ROLE_LINEAR_STEP_UP, LINEAR_VALUES, RANK, 0, MAMBA_LAYER},
    {COLIBRI_ROLE_LINEAR_STATE_DECAY, LINEAR_VALUES, LINEAR_KEYS, F32_ONLY, MAMBA_LAYER},
}, global_rules[] = {
    {COLIBRI_ROLE_EMBEDDING, VOCABULARY, HIDDEN, 0, ALWAYS},
    {COLIBRI_ROLE_OUTPUT, VOCABULARY, HIDDEN, 0, UNTIED},
    {COLIBRI_ROLE_OUTPUT_NORM, ONE, HIDDEN, F32_ONLY, ALWAYS},
    {COLIBRI_ROLE_ROPE, ONE, ROTATIONS, F32_ONLY, ROTATED},
    {COLIBRI_ROLE_ROPE_2, ONE, ROTATIONS_2, F32_ONLY, ROTATED_2},
    {COLIBRI_ROLE_OUTPUT_NORM_BIAS, ONE, HIDDEN, F32_ONLY, LAYER_NORMED},
    {COLIBRI_ROLE_OUTPUT_BIAS, ONE, VOCABULARY, VECTOR, ALWAYS},
};

/* l: the tensor's layer; of global tensors, any */
static uint32_t dimension(const colibri_config *c, const colibri_layer *l, uint32_t d)
{
    switch (d) {
    case HIDDEN: return c->hidden;
    case VOCABULARY: return c->vocabulary;
    case QUERIES: return c->heads * l->head_size;
    case KEYS: return l->kv_heads * l->head_size;
    case ROTATIONS: return c->rope_size / 2;
    case ROTATIONS_2: return (c->rope_size_2 != 0 ? c->rope_size_2 : c->rope_size) / 2;
    case EXPERTS: return c->experts;
    case EXPERT: return c->expert_size;
    case SHARED: return c->shared_size;
    case DENSE: return c->dense_size;
    case HEADS: return c->heads;
    case ATTENDED: return c->heads * (l->mixer == COLIBRI_MIXER_LATENT ? c->value_size : l->head_size);
    case QUERY_INPUT:
        return l->mixer == COLIBRI_MIXER_LATENT && c->query_latent != 0 ? c->query_latent : c->hidden;
    case QUERY_LATENT: return c->query_latent;
    case LATENT: return c->latent_size;
    case LATENT_ROPE: return c->latent_size + c->rope_size;
    case HEAD_LATENTS: return c->heads * c->latent_size;
    case HEAD_REST: return l->head_size - c->rope_size;
    case HEAD_VALUES: return c->heads * c->value_size;
    case HIDDEN_3: return c->hidden * 3;
    case TAPS: return c->conv_size;
    case CHANNELS:
        return (l->mixer == COLIBRI_MIXER_MAMBA ? 0u : 2 * c->linear_keys * c->linear_key_size) +
               c->linear_values * c->linear_value_size;
    case LINEAR_KEYS: return c->linear_keys * c->linear_key_size;
    case RANK: return c->linear_rank;
    case SELECTED: return c->linear_rank + 2 * c->linear_keys * c->linear_key_size;
    case LINEAR_VALUES: return c->linear_values * c->linear_value_size;
    case LINEAR_HEADS: return c->linear_values;
    case LINEAR_NORM:
        return (l->mixer == COLIBRI_MIXER_DELTA ? 1u : c->linear_values) * c->linear_value_size;
    case EXPERT_KEYS: return c->experts * l->kv_heads * l->head_size; /* 4096 * 131072 at most */
    case TWO: return 2;
    case EXPERT_HIDDEN: return c->experts * c->hidden;
    default: return 1;
    }
}

#define MIXER(name) (1u << COLIBRI_MIXER_##name)
static const uint16_t mixers_of[] = {
    [ATTENDING] = MIXER(ATTENTION) | MIXER(LATENT) | MIXER(EXPERTS),
    [ATTENTION_LAYER] = MIXER(ATTENTION) | MIXER(EXPERTS),
    [OUT_LAYER] = MIXER(ATTENTION) | MIXER(LATENT),
    [EXPERT_ATTENTION_LAYER] = MIXER(EXPERTS),
    [LATENT_LAYER] = MIXER(LATENT),
    [CONV_LAYER] = MIXER(CONV),
    [LINEAR_LAYER] = MIXER(DELTA) | MIXER(MAMBA2) | MIXER(LIGHTNING) | MIXER(MAMBA),
    [HEADED_LAYER] = MIXER(DELTA) | MIXER(MAMBA2) | MIXER(LIGHTNING),
    [STEP_LAYER] = MIXER(DELTA) | MIXER(MAMBA2),
    [DELTA_LAYER] = MIXER(DELTA),
    [FILTER_LAYER] = MIXER(DELTA) | MIXER(MAMBA2) | MIXER(MAMBA),
    [SKIP_LAYER] = MIXER(MAMBA2) | MIXER(MAMBA),
    [MAMBA_LAYER] = MIXER(MAMBA),
};

static bool mixer_applies(const colibri_layer *l, uint32_t when)
{
    return (mixers_of[when] >> l->mixer & 1u) != 0;
}

static bool layer_applies(const colibri_config *c, const colibri_layer *l, uint32_t when)
{
    bool moe = (l->ffn & COLIBRI_FFN_MOE) != 0;
    if (when <= MAMBA_LAYER)
        return mixer_applies(l, when);
    switch (when) {
    case VALUE_LAYER:
        return mixer_applies(l, ATTENTION_LAYER) && !(l->flags & COLIBRI_LAYER_KEY_IS_VALUE);
    case QUERY_LATENT_LAYER: return l->mixer == COLIBRI_MIXER_LATENT && c->query_latent != 0;
    case DENSE_LAYER: return (l->ffn & COLIBRI_FFN_DENSE) != 0;
    case MOE_LAYER: return moe;
    case BOTH_LAYER: return l->ffn == COLIBRI_FFN_BOTH;
    case SHARED_LAYER: return moe && c->shared_size != 0;
    default: return moe && (c->shared_flags & COLIBRI_SHARED_SIGMOID) != 0;
    }
}

static bool applies(const colibri_image *image, const colibri_layer *l, uint32_t when)
{
    switch (when) {
    case ALWAYS: return true;
    case UNTIED: return image->config.tied == 0;
    case ROTATED: return image->config.rope_size != 0 && (image->rope_sets & 1u) != 0;
    case ROTATED_2: return image->config.rope_size != 0 && (image->rope_sets & 2u) != 0;
    case LAYER_NORMED: return image->config.norm == COLIBRI_NORM_LAYER;
    default: return layer_applies(&image->config, l, when);
    }
}

/* Walks the table once; each expected tensor must be the next entry and begin where it has to. */
struct walk {
    const colibri_image *image;
    colibri_error *error;
    uint32_t next;   /* entry */
    uint64_t dense;  /* end of the dense tensors so far */
    uint64_t record; /* end of the layer's expert tensors so far */
};

static colibri_status bad_tensor(struct walk *w, uint32_t layer, uint32_t role, uint64_t have,
                                 uint64_t need)
{
    return colibri_fail(w->error, COLIBRI_ERR_TENSOR, layer << 16 | role, have, need);
}

static colibri_status check_place(struct walk *w, const colibri_tensor *t, uint32_t flags)
{
    uint64_t *end = flags & IN_RECORD ? &w->record : &w->dense, start, bytes;
    if (!colibri_tensor_bytes(t, &bytes) || t->bytes != bytes)
        return bad_tensor(w, t->layer, t->role, t->bytes, bytes);
    if (!colibri_align(*end, 64, &start) || t->offset != start || !colibri_add(start, bytes, end))
        return bad_tensor(w, t->layer, t->role, t->offset, start);
    return COLIBRI_OK;
}

/* Rows that are used on their own: of one head or one expert where the tensor holds all of them. */
static uint32_t part_rows(const colibri_config *c, const colibri_tensor *t)
{
    if (t->role == COLIBRI_ROLE_LATENT_KEY || t->role == COLIBRI_ROLE_LATENT_VALUE)
        return t->rows / c->heads;
    if (t->role == COLIBRI_ROLE_EXPERT_QUERY || t->role == COLIBRI_ROLE_EXPERT_ATTENTION_OUT)
        return t->rows / c->experts;
    return 0;
}

static colibri_status check_order(struct walk *w, const colibri_tensor *t)
{
    if (t->order == COLIBRI_ORDER_ROWS)
        return COLIBRI_OK;
    if (t->order != COLIBRI_ORDER_TILES || !COLIBRI_WITH_TILES)
        return colibri_fail(w->error, COLIBRI_ERR_UNSUPPORTED, (uint32_t)t->layer << 16 | t->role,
                            (uint32_t)t->order << 8, 0);
    if (!colibri_type_quantised(t->type) || part_rows(&w->image->config, t) % COLIBRI_TILE_ROWS != 0)
        return bad_tensor(w, t->layer, t->role, t->order, COLIBRI_ORDER_ROWS);
    return COLIBRI_OK;
}

static colibri_status check_tensor(struct walk *w, uint32_t layer, const colibri_layer *kind,
                                   const struct rule *rule)
{
    colibri_tensor t = {0};
    bool there = colibri_image_tensor(w->image, w->next, &t) == COLIBRI_OK && t.layer == layer &&
                 t.role == rule->role;
    if (!applies(w->image, kind, rule->when) || (!there && rule->flags & OPTIONAL))
        return COLIBRI_OK; /* an entry that should not be here stops the next rule */
    uint32_t rows = dimension(&w->image->config, kind, rule->rows);
    uint32_t columns = dimension(&w->image->config, kind, rule->columns);
    if (!there)
        return bad_tensor(w, layer, rule->role, 0, 0);
    if (rule->flags & OR_HEAD && t.columns == kind->head_size)
        columns = t.columns;
    if (t.rows != rows || t.columns != columns)
        return bad_tensor(w, layer, rule->role, (uint64_t)t.rows << 32 | t.columns,
                          (uint64_t)rows << 32 | columns);
    if (!colibri_type_valid(t.type, t.group) || (rule->flags & F32_ONLY && t.type != COLIBRI_F32))
        return bad_tensor(w, layer, rule->role, t.type, COLIBRI_F32);
    if ((!(rule->flags & F32_ONLY) && !colibri_type_built(t.type)) ||
        (!COLIBRI_WITH_ATTENTION_EXTRAS && rule->flags & EXTRA) ||
        (!COLIBRI_WITH_NORMED_RESIDUAL && rule->flags & NORMED_RESIDUAL))
        return colibri_fail(w->error, COLIBRI_ERR_UNSUPPORTED, layer << 16 | rule->role, t.type, 0);
    colibri_status status = check_order(w, &t);
    if (status != COLIBRI_OK)
        return status;
    const uint8_t *entry = w->image->meta + w->image->tensors + w->next * (uint32_t)COLIBRI_TENSOR_ENTRY;
    if (colibri_load_u32(entry + 36) != 0 || colibri_load_u64(entry + 40) != 0 ||
        (rule->flags & IN_RECORD && t.crc32 != 0))
        return bad_tensor(w, layer, rule->role, 0, 0);
    w->next++;
    return check_place(w, &t, rule->flags);
}

colibri_status colibri_check_tensors(const colibri_image *image, colibri_error *error)
{
    colibri_section weights;
    if (!colibri_find_section(image, COLIBRI_SECTION_WEIGHTS, &weights))
        return colibri_fail(error, COLIBRI_ERR_STRUCTURE, COLIBRI_SECTION_WEIGHTS, 0, 0);
    struct walk w = {image, error, 0, weights.offset, 0};
    colibri_layer kind;
    colibri_status status = COLIBRI_OK;
    for (uint32_t l = 0; l < image->config.layers; l++) {
        w.record = 0;
        colibri_image_layer(image, l, &kind);
        for (uint32_t i = 0; status == COLIBRI_OK && i < sizeof rules / sizeof rules[0]; i++)
            status = check_tensor(&w, l, &kind, &rules[i]);
    }
    for (uint32_t i = 0; status == COLIBRI_OK && i < sizeof global_rules / sizeof rules[0]; i++)
        status = check_tensor(&w, COLIBRI_GLOBAL_LAYER, &kind, &global_rules[i]);
    if (status != COLIBRI_OK)
        return status;
    colibri_tensor t;
    if (colibri_image_tensor(image, w.next, &t) == COLIBRI_OK)
        return bad_tensor(&w, t.layer, t.role, w.next, image->tensor_count);
    if (w.dense != weights.offset + weights.bytes)
        return colibri_fail(error, COLIBRI_ERR_STRUCTURE, COLIBRI_SECTION_WEIGHTS, w.dense,
                            weights.offset + weights.bytes);
    return COLIBRI_OK;
}

/* Bytes of a record of a layer that has experts: where its last tensor ends. */
static uint64_t record_bytes(const colibri_image *image, uint32_t layer)
{
    colibri_tensor t;
    uint32_t role = COLIBRI_ROLE_EXPERT_DOWN_BIAS;
    while (colibri_image_find(image, layer, role, &t) != COLIBRI_OK)
        role--; /* down at the latest, which is there */
    return t.offset + t.bytes;
}

static colibri_status check_expert(const colibri_image *image, uint32_t index, uint64_t bytes,
                                   uint32_t alignment)
{
    colibri_expert e;
    colibri_section section;
    if (colibri_image_expert(image, index, &e) != COLIBRI_OK ||
        !colibri_find_records(image, e.file, &section) || e.bytes != bytes ||
        (e.offset & (alignment - 1u)) != 0 || e.offset < section.offset ||
        !colibri_inside(e.offset - section.offset, e.bytes, section.bytes))
        return COLIBRI_ERR_STRUCTURE;
    const uint8_t *entry = image->meta + image->experts + index * (uint32_t)COLIBRI_EXPERT_ENTRY;
    return colibri_load_u32(entry + 20) == 0 ? COLIBRI_OK : COLIBRI_ERR_STRUCTURE;
}

/* Bytes of all expert sections, the padding behind each included; false when that is too much. */
static bool padded_sections(const colibri_image *image, uint32_t alignment, uint64_t *all)
{
    colibri_section section;
    uint64_t padded;
    bool ok = true;
    *all = 0;
    for (uint32_t file = 0; file <= colibri_companions(image); file++)
        if (colibri_find_records(image, file, &section))
            ok = ok && colibri_align(section.bytes, alignment, &padded) && colibri_add(*all, padded, all);
    return ok;
}

colibri_status colibri_check_experts(const colibri_image *image, colibri_error *error)
{
    colibri_section section;
    bool there = colibri_find_section(image, COLIBRI_SECTION_EXPERT_WEIGHTS, &section);
    uint32_t each = image->config.experts - image->config.identities;
    if (there != (image->moe_layers != 0) || image->expert_count != image->moe_layers * each)
        return colibri_fail(error, COLIBRI_ERR_STRUCTURE, COLIBRI_SECTION_EXPERTS,
                            image->expert_count, image->moe_layers * each);
    uint32_t alignment = colibri_load_u32(image->meta + 48), index = 0;
    uint64_t sum = 0, all = 0, padded;
    for (uint32_t l = 0; there && l < image->config.layers; l++) {
        colibri_layer kind;
        colibri_image_layer(image, l, &kind);
        uint64_t bytes = kind.ffn & COLIBRI_FFN_MOE ? record_bytes(image, l) : 0;
        for (uint32_t e = 0; bytes != 0 && e < each; e++, index++) {
            if (check_expert(image, index, bytes, alignment) != COLIBRI_OK)
                return colibri_fail(error, COLIBRI_ERR_STRUCTURE,
                                    image->experts + index * (uint32_t)COLIBRI_EXPERT_ENTRY, 0, bytes);
            (void)colibri_align(bytes, alignment, &padded);
            sum += padded;
        }
    }
    /* records that neither overlap nor leave holes add up to their sections */
    if (there && (!padded_sections(image, alignment, &all) || sum != all))
        return colibri_fail(error, COLIBRI_ERR_STRUCTURE, COLIBRI_SECTION_EXPERT_WEIGHTS, sum, all);
    return COLIBRI_OK;
}
