/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime does with a backend (include/colibri/backend.h):
 *   backend protocol IMAGE SLOTS  order of starts and waits, failures, wrong bindings; SLOTS: of streamed experts,
 *                                 0: weights are mapped
 *   backend threads IMAGE         the device on its own thread beside a pool; prints the checksum of the logits */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri_fake_npu.h"
#include "colibri_posix.h"
#include "support.h"

enum { MAX_CALLS = 64, MAX_BINDINGS = 4096 };

static colibri_image image;
static colibri_storage storage;
static colibri_region region;
static colibri_engine engine;
static float *logits;
static colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 2, .context = 8, .batch = 4,
                                      .workers = 2};

/* A backend that takes notes. */
struct notes {
    colibri_expert_ffn begun[MAX_CALLS]; /* not waited for yet, oldest first */
    uint32_t inputs[MAX_CALLS];          /* checksums of what the call may read */
    uint32_t count;
    uint32_t bound, starts, waits;
    uint32_t fail_bind, fail_start, fail_wait; /* the n-th from 1; 0: none */
    uint32_t failed_layer, failed_expert;
};

static uint32_t crc_of_inputs(const colibri_expert_ffn *c)
{
    uint32_t crc = colibri_crc32(0, c->record, c->record_bytes);
    for (uint32_t t = 0; t < c->tokens; t++) {
        crc = colibri_crc32(crc, c->values + (size_t)c->in_rows[t] * c->value_stride, c->gate.columns * 4u);
        if (c->codes != NULL)
            crc = colibri_crc32(crc, c->codes + (size_t)c->in_rows[t] * c->code_stride, c->code_stride);
        if (c->codes != NULL)
            crc = colibri_crc32(crc, c->scales + (size_t)c->in_rows[t] * c->scale_stride, c->scale_stride * 4u);
    }
    crc = colibri_crc32(crc, c->in_rows, c->tokens * 2u);
    return colibri_crc32(crc, c->out_rows, c->tokens * 2u);
}

static void remember(struct notes *n, const colibri_expert_ffn *c)
{
    n->failed_layer = c->layer;
    n->failed_expert = c->expert;
}

static int note_bind(void *context, const colibri_expert_ffn *c)
{
    struct notes *n = context;
    EXPECT(c->struct_bytes == sizeof *c && c->tokens == 0 && c->record_bytes != 0);
    EXPECT(c->gate.columns == image.config.hidden && c->gate.rows == image.config.expert_size);
    EXPECT(c->down.columns == c->gate.rows && c->down.rows == c->gate.columns);
    if (++n->bound == n->fail_bind) {
        remember(n, c);
        return 77;
    }
    return 0;
}

static int note_start(void *context, const colibri_expert_ffn *c)
{
    struct notes *n = context;
    EXPECT(n->count < MAX_CALLS && c->tokens != 0);
    if (++n->starts == n->fail_start) {
        remember(n, c);
        return COLIBRI_BACKEND_FAULT;
    }
    n->begun[n->count] = *c;
    n->inputs[n->count++] = crc_of_inputs(c);
    for (uint32_t t = 0; t < c->tokens; t++) /* a NaN that anybody reads too early would show */
        memset(c->out + (size_t)c->out_rows[t] * c->out_stride, 0xFF, (size_t)c->out_stride * 4);
    return 0;
}

static int note_wait(void *context, uint32_t layer, uint32_t expert)
{
    struct notes *n = context;
    EXPECT(n->count != 0 && n->begun[0].layer == layer && n->begun[0].expert == expert);
    colibri_expert_ffn c = n->begun[0];
    EXPECT(crc_of_inputs(&c) == n->inputs[0]); /* lent, so unchanged */
    for (uint32_t t = 0; t < c.tokens; t++)
        for (uint32_t i = 0; i < c.out_stride; i++)
            EXPECT(bits_of(c.out[(size_t)c.out_rows[t] * c.out_stride + i]) == 0xFFFFFFFFu);
    n->count--;
    memmove(n->begun, n->begun + 1, n->count * sizeof n->begun[0]);
    memmove(n->inputs, n->inputs + 1, n->count * sizeof n->inputs[0]);
    uint8_t *scratch = exact(colibri_expert_ffn_scratch(&c));
    colibri_expert_ffn_run(&c, &colibri_kernels_ref, scratch);
    free(scratch);
    if (++n->waits == n->fail_wait) {
        remember(n, &c);
        return COLIBRI_BACKEND_FAULT;
    }
    return 0;
}

static colibri_status infer(colibri_error *error, uint32_t *crc)
{
    static const uint32_t tokens[] = {1, 5, 9, 2, 7, 11};
    uint64_t floats = image.config.vocabulary;
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = 6, .tokens = tokens, .logits = logits,
                           .logits_floats = floats};
    colibri_status status = colibri_infer(&engine, &batch, error);
    *crc = colibri_crc32(0, logits, floats * 4);
    return status;
}

static uint32_t all_experts(colibri_binding *list, const colibri_backend *backend)
{
    uint32_t count = 0;
    for (uint16_t layer = 0; layer < image.config.layers; layer++) {
        colibri_layer kind;
        colibri_image_layer(&image, layer, &kind);
        uint32_t experts = kind.ffn & COLIBRI_FFN_MOE ? image.config.experts - image.config.identities : 0;
        for (uint16_t x = 0; x < experts; x++) {
            EXPECT(count < MAX_BINDINGS);
            list[count++] = (colibri_binding){layer, x, backend};
        }
    }
    return count;
}

static colibri_status init(const colibri_platform *platform, colibri_error *error)
{
    return colibri_init(&engine, &image, &limits, &region, 1, platform, error);
}

/* Every n-th start and wait fails once: the error names the expert, nothing stays begun, and the same engine
 * then gives the same bits. */
static void failures(const colibri_platform *platform, struct notes *n, uint32_t expected)
{
    uint32_t calls = n->starts, crc;
    EXPECT(calls > 8 && n->waits == calls);
    for (uint32_t k = 1; k <= 2 * calls; k++) {
        colibri_error e = {0};
        EXPECT(init(platform, &e) == COLIBRI_OK);
        n->starts = n->waits = 0;
        n->fail_start = k <= calls ? k : 0;
        n->fail_wait = k > calls ? k - calls : 0;
        EXPECT(infer(&e, &crc) == COLIBRI_ERR_BACKEND && e.status == COLIBRI_ERR_BACKEND);
        EXPECT(e.where == (n->failed_layer << 16 | n->failed_expert) && e.have == COLIBRI_BACKEND_FAULT);
        EXPECT(n->count == 0); /* nothing is begun any more */
        EXPECT(n->waits == n->starts - (n->fail_start != 0));
        EXPECT(colibri_length(&engine, 0) == 0);
        n->fail_start = n->fail_wait = 0;
        if (image.conv_layers + image.linear_layers != 0)
            EXPECT(colibri_reset(&engine, 0) == COLIBRI_OK);
        EXPECT(infer(&e, &crc) == COLIBRI_OK && crc == expected);
    }
}

static void refusals(colibri_platform *platform, colibri_binding *list, struct notes *n)
{
    colibri_error e = {0};
    for (uint32_t k = 1; k <= platform->binding_count; k += 3) {
        n->bound = 0;
        n->fail_bind = k;
        EXPECT(init(platform, &e) == COLIBRI_ERR_BACKEND && e.have == 77);
        EXPECT(e.where == (n->failed_layer << 16 | n->failed_expert));
        EXPECT(infer(&e, &n->failed_layer) == COLIBRI_ERR_ARGUMENT); /* no engine came of it */
    }
    n->fail_bind = 0;
    colibri_backend half = *list[0].backend, old = half;
    half.wait = NULL;
    old.struct_bytes = 8;
    const colibri_binding good[2] = {list[0], list[1]}, wrong[][2] = {
        {list[1], list[0]}, {list[0], list[0]}, {list[0], {list[0].layer, 65535, good->backend}},
        {list[0], {65535, 0, good->backend}}, {list[0], {list[1].layer, list[1].expert, NULL}},
        {list[0], {list[1].layer, list[1].expert, &half}}, {list[0], {list[1].layer, list[1].expert, &old}}};
    platform->binding_count = 2;
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        platform->bindings = wrong[i];
        EXPECT(init(platform, &e) == COLIBRI_ERR_ARGUMENT && e.where == 6 && e.have == 1);
    }
    platform->bindings = NULL;
    EXPECT(init(platform, &e) == COLIBRI_ERR_ARGUMENT && e.where == 6);
    platform->bindings = good;
    EXPECT(init(platform, &e) == COLIBRI_OK);
}

static void protocol(void)
{
    static struct notes n;
    static colibri_binding list[MAX_BINDINGS];
    colibri_error e = {0};
    uint32_t expected, crc;
    const colibri_backend backend = {.struct_bytes = sizeof backend, .context = &n, .bind = note_bind,
                                     .start = note_start, .wait = note_wait};
    colibri_platform platform = {.struct_bytes = sizeof platform};
    EXPECT(init(NULL, &e) == COLIBRI_OK && infer(&e, &expected) == COLIBRI_OK);
    platform.bindings = list;
    platform.binding_count = all_experts(list, &backend);
    EXPECT(init(&platform, &e) == COLIBRI_OK && n.bound == platform.binding_count);
    EXPECT(infer(&e, &crc) == COLIBRI_OK && crc == expected && n.count == 0);
    failures(&platform, &n, expected);
    refusals(&platform, list, &n);
}

/* Two pool threads, the device's, and every second expert bound. */
static void threads(void)
{
    static colibri_binding list[MAX_BINDINGS];
    static colibri_fake_npu_slot slots[MAX_BINDINGS];
    enum { DEVICE_BYTES = 64 << 20 };
    uint8_t *memory = exact(DEVICE_BYTES);
    uint32_t expected, crc, count = 0;
    colibri_error e = {0};
    EXPECT(init(NULL, &e) == COLIBRI_OK && infer(&e, &expected) == COLIBRI_OK);
    colibri_fake_npu_thread *npu = colibri_fake_npu_thread_create(memory, DEVICE_BYTES, slots, MAX_BINDINGS);
    colibri_posix_pool *pool = colibri_posix_pool_create(2);
    EXPECT(npu != NULL && pool != NULL);
    uint32_t all = all_experts(list, colibri_fake_npu_thread_backend(npu));
    for (uint32_t i = 0; i < all; i += 2)
        list[count++] = list[i];
    colibri_platform platform = {.struct_bytes = sizeof platform, .pool = colibri_posix_pool_interface(pool),
                                 .bindings = list, .binding_count = count};
    EXPECT(init(&platform, &e) == COLIBRI_OK);
    for (uint64_t k = 0; k < 4; k++) {
        colibri_fake_npu_thread_device(npu)->fail_command = k;
        EXPECT(infer(&e, &crc) == (k == 0 ? COLIBRI_OK : COLIBRI_ERR_BACKEND));
        EXPECT(colibri_reset(&engine, 0) == COLIBRI_OK);
        EXPECT(infer(&e, &crc) == COLIBRI_OK && crc == expected);
        EXPECT(colibri_reset(&engine, 0) == COLIBRI_OK);
    }
    colibri_posix_pool_destroy(pool);
    colibri_fake_npu_thread_destroy(npu);
    free(memory);
    printf("%08x\n", (unsigned)expected);
}

static void open_image(const char *path)
{
    static struct memory memory;
    size_t bytes;
    colibri_plan_result plan;
    colibri_region all = {.size = UINT64_MAX};
    uint8_t *file = load_file(path, &bytes);
    memory_storage(&storage, &memory, file, bytes, 1, 0);
    if (colibri_image_open(&image, &storage, NULL, 0, NULL) != COLIBRI_OK) stop(2, "%s: no image", path);
    EXPECT(colibri_plan(&image, &limits, &all, 1, &plan, NULL) == COLIBRI_OK);
    region = (colibri_region){.base = exact(plan.used[0]), .size = plan.used[0]};
    logits = (float *)(void *)exact((size_t)image.config.vocabulary * 4);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "protocol") == 0) {
        limits.expert_slots = (uint32_t)strtoul(argv[3], NULL, 10);
        limits.weights = limits.expert_slots != 0 ? COLIBRI_WEIGHTS_STREAMED : COLIBRI_WEIGHTS_MAPPED;
        open_image(argv[2]);
        protocol();
    } else if (argc == 3 && strcmp(argv[1], "threads") == 0) {
        open_image(argv[2]);
        threads();
    } else {
        stop(2, "usage: backend protocol IMAGE SLOTS | threads IMAGE");
    }
    puts("ok");
    return 0;
}
