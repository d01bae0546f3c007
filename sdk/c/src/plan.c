/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of all buffers from image and limits, then their places in the regions. */
#include "colibri/plan.h"

#include <string.h>

#include "buffers.h"
#include "fail.h"
#include "image_rules.h"
#include "kv.h"
#include "options.h"
#include "preference.h"
#include "size.h"
#include "state.h"
#include "stream.h"
#include "tensor.h"

_Static_assert(COLIBRI_BUFFER_COUNT <= COLIBRI_MAX_BUFFERS, "a plan must hold every buffer");

/* How often a decoded token touches a byte of a buffer, in 1/16. */
#define ONCE 16u

struct sizes {
    uint64_t bytes[COLIBRI_BUFFER_COUNT];
    uint32_t intensity[COLIBRI_BUFFER_COUNT];
    bool ok;
};

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint64_t larger64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void set(struct sizes *s, uint32_t kind, uint32_t rows, uint64_t row_bytes, uint32_t intensity)
{
    s->ok = s->ok && colibri_mul(rows, row_bytes, &s->bytes[kind]);
    s->intensity[kind] = intensity;
}

/* An older caller's struct ends early; what it does not have is 0. */
static void copy_limits(const colibri_limits *given, colibri_limits *l)
{
    memset(l, 0, sizeof *l);
    memcpy(l, given, given->struct_bytes < sizeof *l ? given->struct_bytes : sizeof *l);
    l->struct_bytes = sizeof *l;
}

#define MOST_WEIGHTS (COLIBRI_WITH_STREAMING ? COLIBRI_WEIGHTS_STREAMED_MAPPED : COLIBRI_WEIGHTS_LOADED)

static bool streams(const colibri_limits *l)
{
    return COLIBRI_WITH_STREAMING && l->weights >= COLIBRI_WEIGHTS_STREAMED;
}

#if COLIBRI_WITH_STREAMING
static uint32_t most_slots(const colibri_image *image)
{
    return image->expert_count < COLIBRI_MAX_SLOTS ? image->expert_count : COLIBRI_MAX_SLOTS;
}
#endif

/* Reads on a guess and what routers go by, where a model has experts for it; 0: leave it out. */
static colibri_status fill_routing(const colibri_image *image, colibri_limits *l, colibri_error *error)
{
    bool experts = image->moe_layers != 0;
    l->prefetch = l->prefetch == 0 ? COLIBRI_PREFETCH_OFF : l->prefetch;
    const uint32_t asked[] = {l->prefetch - COLIBRI_PREFETCH_OFF, l->balance, l->prefer_cached};
    const uint32_t most[] = {
        COLIBRI_WITH_PREFETCH && streams(l) && experts ? COLIBRI_PREFETCH_ON - COLIBRI_PREFETCH_OFF : 0,
        COLIBRI_WITH_PREFERENCE && experts ? COLIBRI_MAX_BALANCE : 0,
        COLIBRI_WITH_PREFERENCE && streams(l) && experts ? COLIBRI_MAX_PREFER_CACHED : 0,
    };
    for (uint32_t i = 0; i < 3; i++)
        if (asked[i] > most[i])
            return colibri_fail(error, COLIBRI_ERR_LIMIT, 10 + i, asked[i], most[i]);
    return COLIBRI_OK;
}

/* Slots, which may be left to the placement, and the policy. */
static colibri_status fill_slots(const colibri_image *image, colibri_limits *l, colibri_error *error)
{
    uint32_t least = 0, most = 0;
#if COLIBRI_WITH_STREAMING
    if (streams(l) && image->moe_layers != 0) {
        least = colibri_stream_least(image);
        most = most_slots(image);
        l->policy = l->policy == 0 ? COLIBRI_POLICY_FREQUENCY : l->policy;
    }
#endif
    if (l->expert_slots > most)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 8, l->expert_slots, most);
    if (l->expert_slots != 0 && l->expert_slots < least)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 8, l->expert_slots, least);
    if (l->policy > COLIBRI_POLICY_LEAST_STALE)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 9, l->policy, COLIBRI_POLICY_LEAST_STALE);
    (void)image;
    return COLIBRI_OK;
}

static colibri_status fill_limits(const colibri_image *image, const colibri_limits *given,
                                  colibri_limits *l, colibri_error *error)
{
    copy_limits(given, l);
    l->context = l->context == 0 ? image->config.context : l->context;
    l->batch = l->batch == 0 ? 16 : l->batch;
    l->workers = l->workers == 0 ? 1 : l->workers;
    l->kv = l->kv == 0 ? COLIBRI_F32 : l->kv;
    l->profile = l->profile == 0 ? COLIBRI_PROFILE_WIDE : l->profile;
    l->weights = l->weights == 0 ? COLIBRI_WEIGHTS_MAPPED : l->weights;
    uint32_t top_k = larger(image->config.top_k, 1);
    if (l->sequences - 1u >= 65535)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 1, l->sequences, 65535);
    if (l->context > image->config.context)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 2, l->context, image->config.context);
    if (l->batch > COLIBRI_MAX_BATCH || l->batch * top_k > 65535) /* slots are u16 */
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 3, l->batch,
                            larger(65535u / top_k, 1) < COLIBRI_MAX_BATCH ? 65535u / top_k : COLIBRI_MAX_BATCH);
    if (l->workers > COLIBRI_MAX_WORKERS)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 4, l->workers, COLIBRI_MAX_WORKERS);
    if (!colibri_kv_built(l->kv))
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 5, l->kv, COLIBRI_F32);
    if (l->profile > COLIBRI_PROFILE_WIDE)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 6, l->profile, COLIBRI_PROFILE_WIDE);
    if (l->weights > MOST_WEIGHTS)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 7, l->weights, MOST_WEIGHTS);
    colibri_status status = fill_slots(image, l, error);
    return status == COLIBRI_OK ? fill_routing(image, l, error) : status;
}

/* Smallest and largest group of the image's quantised tensors; 0 when it has none. */
static void groups(const colibri_image *image, uint32_t *smallest, uint32_t *largest)
{
    colibri_tensor t;
    *smallest = *largest = 0;
    for (uint32_t i = 0; colibri_image_tensor(image, i, &t) == COLIBRI_OK; i++) {
        if (t.group != 0 && (*smallest == 0 || t.group < *smallest))
            *smallest = t.group;
        *largest = larger(*largest, t.group);
    }
}

static bool has_role(const colibri_image *image, uint32_t role)
{
    colibri_tensor t;
    for (uint32_t i = 0; colibri_image_tensor(image, i, &t) == COLIBRI_OK; i++)
        if (t.role == role)
            return true;
    return false;
}

/* Widths of the rows that a model's blocks work on. */
struct widths {
    uint32_t work;   /* floats: queries, attention output, block output */
    uint32_t keys;   /* floats: what enters the cache, also the output gate */
    uint32_t latent; /* floats: queries in the latent */
    uint64_t codes;  /* int8, padded to the largest group */
    uint32_t scales;
};

static uint32_t padded(uint32_t n, uint32_t group)
{
    return colibri_divide_up(n, group) * group;
}

/* The widest heads of any layer. */
static void widest(const colibri_image *image, uint32_t *queries, uint32_t *keys)
{
    *queries = *keys = 0;
    for (uint32_t i = 0; i < image->config.layers; i++) {
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        if (!colibri_layer_attends(&l))
            continue;
        *queries = larger(*queries, image->config.heads * l.head_size);
        if (l.mixer != COLIBRI_MIXER_LATENT)
            *keys = larger(*keys, l.kv_heads * l.head_size * 2);
    }
}

static struct widths widths_of(const colibri_image *image, uint32_t small, uint32_t large)
{
    const colibri_config *c = &image->config;
    uint32_t queries, keys, wide = c->latent_size != 0 ? c->latent_size + c->rope_size : 0;
    widest(image, &queries, &keys);
    struct widths w = {.work = larger(larger(queries, c->heads * c->value_size), c->hidden),
                       .keys = larger(larger(keys, wide),
                                      has_role(image, COLIBRI_ROLE_OUTPUT_GATE) ? queries : 0),
                       .latent = larger(c->heads * wide, c->query_latent)};
    uint32_t row = larger(w.work, c->query_latent); /* the widest input of a product */
    uint32_t keys_2 = 2 * c->linear_keys * c->linear_key_size, values = c->linear_values * c->linear_value_size;
    row = larger(row, larger(values, c->linear_rank));
    w.work = larger(w.work, image->conv_layers != 0 ? c->hidden * 3 : 0);
    if (image->linear_layers != image->mamba_layers)
        w.work = larger(w.work, keys_2 + 2 * values + 2 * c->linear_values);
    if (image->mamba_layers != 0)
        w.work = larger(w.work, keys_2 + 3 * values + c->linear_rank);
    if (large == 0)
        return w;
    w.codes = padded(row, large);
    w.scales = colibri_divide_up(row, small);
    if (has_role(image, COLIBRI_ROLE_EXPERT_QUERY)) { /* each choice's heads are a row of their own */
        uint32_t part = queries / c->top_k;
        w.codes = larger64(w.codes, (uint64_t)c->top_k * padded(part, large));
        w.scales = larger(w.scales, c->top_k * colibri_divide_up(part, small));
    }
    if (wide != 0) { /* each head's part is a row of its own */
        uint32_t part = larger(c->head_size - c->rope_size, c->latent_size);
        w.codes = larger64(w.codes, (uint64_t)c->heads * padded(part, large));
        w.scales = larger(w.scales, c->heads * colibri_divide_up(part, small));
    }
    return w;
}

/* Activations are touched about four times a layer; a decoded token uses one row of each. */
static void size_activations(const colibri_image *image, const colibri_limits *l, struct sizes *s)
{
    const colibri_config *c = &image->config;
    uint32_t busy = larger(c->layers * 4 * ONCE / l->batch, 1), small, large;
    groups(image, &small, &large);
    struct widths w = widths_of(image, small, large);
    uint64_t state = 8;
#if COLIBRI_WITH_PREFERENCE
    state += colibri_preference_bytes(image, l);
#endif
    set(s, COLIBRI_BUFFER_STATE, l->sequences, state, busy);
    s->ok = s->ok && colibri_add(s->bytes[COLIBRI_BUFFER_STATE], 8, &s->bytes[COLIBRI_BUFFER_STATE]); /* the owner */
    set(s, COLIBRI_BUFFER_STEP, l->batch, 10, busy);
    uint32_t second = c->rope_size_2 != 0 ? c->rope_size_2 : c->rope_size;
    set(s, COLIBRI_BUFFER_ROPE, l->batch, (c->rope_size + (image->rope_sets > 1 ? second : 0)) * 4u, busy);
    set(s, COLIBRI_BUFFER_HIDDEN, l->batch, c->hidden * 4u, busy);
    set(s, COLIBRI_BUFFER_NORMED, l->batch, c->hidden * 4u, busy);
    set(s, COLIBRI_BUFFER_WORK, l->batch, w.work * 4u, busy);
    set(s, COLIBRI_BUFFER_KEY_VALUE, l->batch, w.keys * 4u, busy);
    set(s, COLIBRI_BUFFER_LATENT, l->batch, (uint64_t)w.latent * 4, busy);
    set(s, COLIBRI_BUFFER_CODES, l->batch, w.codes, busy);
    set(s, COLIBRI_BUFFER_CODE_SCALES, l->batch, (uint64_t)w.scales * 4, busy);
    set(s, COLIBRI_BUFFER_SCORES, l->workers, l->context * 4u,
        larger(c->layers * c->heads * 4 * ONCE / l->workers, 1));
}

static void size_ffn(const colibri_image *image, const colibri_limits *l, struct sizes *s)
{
    const colibri_config *c = &image->config;
    uint32_t busy = larger(c->layers * 4 * ONCE / l->batch, 1), small, large;
    uint32_t slots = l->batch * larger(c->top_k, 1), inner = larger(c->shared_size, c->dense_size);
    uint32_t routed = slots * c->expert_size; /* 65535 slots of 65536: fits */
    uint32_t ffn = larger(routed, l->batch * inner);
    groups(image, &small, &large);
    if (c->experts != 0) {
        bool preference = COLIBRI_WITH_PREFERENCE && (l->balance != 0 || l->prefer_cached != 0); /* a row more */
        set(s, COLIBRI_BUFFER_ROUTER, l->batch + preference, c->experts * 4u, busy);
        set(s, COLIBRI_BUFFER_ROUTES, slots, 6, busy);
        set(s, COLIBRI_BUFFER_DISPATCH, slots * 2 + c->experts * 2 + 1, 2, busy);
        set(s, COLIBRI_BUFFER_EXPERT_OUT, slots, c->hidden * 4u, busy);
    }
    if (image->moe_layers + image->dense_layers > c->layers)
        set(s, COLIBRI_BUFFER_BESIDE, l->batch, c->hidden * 4u, busy);
    set(s, COLIBRI_BUFFER_FFN_GATE, ffn, 4, busy);
    set(s, COLIBRI_BUFFER_FFN_UP, ffn, 4, busy);
    if (large == 0)
        return;
    uint64_t routed_codes = (uint64_t)slots * padded(c->expert_size, large);
    uint64_t inner_codes = (uint64_t)l->batch * padded(inner, large);
    uint64_t routed_scales = (uint64_t)slots * colibri_divide_up(c->expert_size, small);
    uint64_t inner_scales = (uint64_t)l->batch * colibri_divide_up(inner, small);
    set(s, COLIBRI_BUFFER_FFN_CODES, 1, larger64(routed_codes, inner_codes), busy);
    set(s, COLIBRI_BUFFER_FFN_SCALES, 4, larger64(routed_scales, inner_scales), busy);
}

/* The slots begin at a multiple of the image's alignment, wherever the buffer lies. */
static void size_streamed(const colibri_image *image, const colibri_limits *l, struct sizes *s)
{
#if COLIBRI_WITH_STREAMING
    uint32_t alignment = colibri_record_alignment(image), own = l->profile == COLIBRI_PROFILE_SMALL ? 16 : 64;
    colibri_section dense;
    if (l->weights == COLIBRI_WEIGHTS_STREAMED && colibri_find_section(image, COLIBRI_SECTION_WEIGHTS, &dense)) {
        s->bytes[COLIBRI_BUFFER_WEIGHTS] = dense.bytes;
        s->intensity[COLIBRI_BUFFER_WEIGHTS] = ONCE;
    }
    if (l->expert_slots == 0)
        return;
    set(s, COLIBRI_BUFFER_EXPERT_SLOTS, l->expert_slots, colibri_stream_slot_bytes(image), ONCE / 2);
    s->ok = s->ok && colibri_add(s->bytes[COLIBRI_BUFFER_EXPERT_SLOTS], alignment - own,
                                 &s->bytes[COLIBRI_BUFFER_EXPERT_SLOTS]);
    struct colibri_expert_cache shape = colibri_stream_cache(image, l);
    uint64_t cache = colibri_cache_bytes(&shape);
#if COLIBRI_WITH_PREFETCH
    cache += l->prefetch == COLIBRI_PREFETCH_ON ? colibri_prefetch_bytes(image) : 0;
#endif
    set(s, COLIBRI_BUFFER_EXPERT_CACHE, 1, cache, ONCE);
#endif
    (void)image;
    (void)l;
    (void)s;
}

static void size_all(const colibri_image *image, const colibri_limits *l, struct sizes *s)
{
    uint64_t position = colibri_kv_position_bytes(image, l->kv, image->config.layers), all;
    memset(s, 0, sizeof *s);
    s->ok = true;
    size_activations(image, l, s);
    size_ffn(image, l, s);
    s->ok = s->ok && colibri_mul(position, l->sequences, &all) &&
            colibri_mul(all, l->context, &s->bytes[COLIBRI_BUFFER_KV]);
    s->intensity[COLIBRI_BUFFER_KV] = ONCE;
    set(s, COLIBRI_BUFFER_RECURRENT, l->sequences,
        colibri_state_floats(image, image->config.layers) * 4, 2 * ONCE);
    if (l->weights == COLIBRI_WEIGHTS_LOADED)
        s->bytes[COLIBRI_BUFFER_WEIGHTS] = image->total_bytes;
    s->intensity[COLIBRI_BUFFER_WEIGHTS] = ONCE / 2; /* of a mixture, a part is read a token */
    if (streams(l))
        size_streamed(image, l, s);
}

/* Region list of a placement pass; grown: index of a region without end, or region_count. */
struct pass {
    const colibri_region *regions;
    uint32_t count;
    uint32_t grown;
    uint64_t used[COLIBRI_MAX_REGIONS];
};

/* The fastest region that is for such a buffer and still has room, or count. */
static uint32_t choose(const struct pass *p, const colibri_buffer *b)
{
    uint32_t best = p->count;
    for (uint32_t r = 0; r < p->count; r++) {
        uint64_t size = r == p->grown ? UINT64_MAX : p->regions[r].size;
        if (colibri_buffer_kept(b->kind) && p->regions[r].use == COLIBRI_REGION_WORK)
            continue;
        if (colibri_inside(p->used[r], b->bytes, size) &&
            (best == p->count || p->regions[r].rank < p->regions[best].rank))
            best = r;
    }
    return best;
}

/* Whether buffer a goes before b. First pass: the busier; second pass: the larger. */
static bool before(const struct sizes *s, const colibri_buffer *a, const colibri_buffer *b, bool large_first)
{
    if (large_first && a->bytes != b->bytes)
        return a->bytes > b->bytes;
    if (s->intensity[a->kind] != s->intensity[b->kind])
        return s->intensity[a->kind] > s->intensity[b->kind];
    return a->kind < b->kind;
}

/* The state stays where it is, at the front. */
static void order(const struct sizes *s, colibri_plan_result *plan, bool large_first)
{
    for (uint32_t i = 2; i < plan->buffer_count; i++) {
        colibri_buffer moved = plan->buffers[i];
        uint32_t j = i;
        for (; j != 1 && before(s, &moved, &plan->buffers[j - 1], large_first); j--)
            plan->buffers[j] = plan->buffers[j - 1];
        plan->buffers[j] = moved;
    }
}

/* In each region what is kept lies before what is not, so that the latter is one stretch to lend. */
static void lay_out(colibri_plan_result *plan)
{
    uint64_t *used = plan->used;
    memset(used, 0, sizeof plan->used);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < plan->buffer_count; i++) {
            colibri_buffer *b = &plan->buffers[i];
            if (colibri_buffer_kept(b->kind) == pass)
                continue;
            b->offset = used[b->region];
            used[b->region] = b->offset + b->bytes;
        }
}

static bool place(colibri_plan_result *plan, struct pass *p)
{
    memset(p->used, 0, sizeof p->used);
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        colibri_buffer *b = &plan->buffers[i];
        b->region = choose(p, b);
        if (b->region == p->count)
            return false;
        p->used[b->region] += b->bytes;
    }
    lay_out(plan);
    return true;
}

static bool place_any(const struct sizes *s, colibri_plan_result *plan, struct pass *p)
{
    order(s, plan, false);
    if (place(plan, p))
        return true;
    order(s, plan, true);
    return place(plan, p);
}

/* Nothing fits: say how large the largest region would have to be, all else equal. */
static colibri_status report_shortfall(const struct sizes *s, colibri_plan_result *plan, struct pass *p,
                                       colibri_error *error)
{
    uint32_t largest = p->count;
    for (uint32_t r = 0; r < p->count; r++)
        if (p->regions[r].use != COLIBRI_REGION_WORK &&
            (largest == p->count || p->regions[r].size > p->regions[largest].size))
            largest = r;
    if (largest == p->count)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 3, 0, 0); /* nothing may be kept anywhere */
    p->grown = largest;
    (void)place_any(s, plan, p);
    uint64_t need = p->used[largest];
    memset(plan->used, 0, sizeof plan->used);
    for (uint32_t i = 0; i < plan->buffer_count; i++)
        plan->buffers[i].region = plan->region_count;
    return colibri_fail(error, COLIBRI_ERR_MEMORY, largest, p->regions[largest].size, need);
}

static bool list_buffers(struct sizes *s, colibri_plan_result *plan)
{
    for (uint32_t kind = 0; kind < COLIBRI_BUFFER_COUNT; kind++) {
        colibri_buffer b = {kind, 0, 0, 0, 0};
        if (s->bytes[kind] == 0)
            continue;
        s->ok = s->ok && colibri_align(s->bytes[kind], plan->alignment, &b.bytes) &&
             colibri_add(plan->total_bytes, b.bytes, &plan->total_bytes);
        b.touched = (b.bytes >> 4) * s->intensity[kind];
        plan->buffers[plan->buffer_count++] = b;
    }
    return s->ok;
}

/* Sizes and, when there is room, places. */
static bool plan_with(const colibri_image *image, struct sizes *s, colibri_plan_result *plan, struct pass *p)
{
    plan->buffer_count = 0;
    plan->total_bytes = 0;
    size_all(image, &plan->limits, s);
    return list_buffers(s, plan) && place_any(s, plan, p);
}

#if COLIBRI_WITH_STREAMING
/* As many slots as there is room for, the fewest when there is none. */
static void choose_slots(const colibri_image *image, struct sizes *s, colibri_plan_result *plan, struct pass *p)
{
    colibri_limits *l = &plan->limits;
    if (!streams(l) || image->moe_layers == 0)
        return;
    uint32_t least = colibri_stream_least(image), low = least, high = most_slots(image);
    bool given = l->expert_slots != 0;
    while (!given && low < high) {
        l->expert_slots = low + (high - low + 1) / 2;
        if (plan_with(image, s, plan, p))
            low = l->expert_slots;
        else
            high = l->expert_slots - 1;
    }
    l->expert_slots = given ? l->expert_slots : low;
    plan->slots_per_layer = colibri_cache_per_layer(l->expert_slots, image->moe_layers, least);
    plan->slot_bytes = (uint32_t)colibri_stream_slot_bytes(image);
}
#endif

colibri_status colibri_plan(const colibri_image *image, const colibri_limits *limits,
                            const colibri_region *regions, uint32_t region_count,
                            colibri_plan_result *plan, colibri_error *error)
{
    if (image == NULL || image->meta == NULL || limits == NULL || regions == NULL || plan == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 0, 0, 0);
    if (region_count - 1u >= COLIBRI_MAX_REGIONS)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 4, region_count, COLIBRI_MAX_REGIONS);
    memset(plan, 0, sizeof *plan);
    plan->struct_bytes = sizeof *plan;
    plan->region_count = region_count;
    colibri_status status = fill_limits(image, limits, &plan->limits, error);
    if (status != COLIBRI_OK)
        return status;
    plan->alignment = plan->limits.profile == COLIBRI_PROFILE_SMALL ? 16 : 64;
    struct sizes sizes;
    struct pass pass = {.regions = regions, .count = region_count, .grown = region_count};
#if COLIBRI_WITH_STREAMING
    choose_slots(image, &sizes, plan, &pass);
#endif
    if (plan_with(image, &sizes, plan, &pass))
        return COLIBRI_OK;
    if (!sizes.ok)
        return colibri_fail(error, COLIBRI_ERR_LIMIT, 0, 0, 0);
    return report_shortfall(&sizes, plan, &pass, error);
}

uint32_t colibri_plan_max_context(const colibri_image *image, const colibri_limits *limits,
                                  const colibri_region *regions, uint32_t region_count)
{
    if (image == NULL || image->meta == NULL || limits == NULL)
        return 0;
    uint32_t low = 0, high = image->config.context; /* low fits (or is 0), above high nothing does */
    colibri_limits l;
    copy_limits(limits, &l);
    while (low < high) {
        colibri_plan_result plan;
        l.context = low + (high - low + 1) / 2;
        if (colibri_plan(image, &l, regions, region_count, &plan, NULL) == COLIBRI_OK)
            low = l.context;
        else
            high = l.context - 1;
    }
    return low;
}
