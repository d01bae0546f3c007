/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of include/colibri/backend.h, for the fake accelerator and for whoever brings another:
 *   backend bits            every type, group, activation, bias and weight on the input, against the definition
 *   backend protocol IMAGE  order of starts and waits, failures, wrong bindings
 *   backend threads IMAGE   the device on its own thread beside a pool; prints the checksum of the logits */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri_fake_npu.h"
#include "colibri_posix.h"
#include "support.h"

#define EXPECT(condition)                                             \
    do {                                                              \
        if (!(condition)) stop(1, "line %d: %s", __LINE__, #condition); \
    } while (0)

/* --- bits: one expert made of random numbers, by itself --------------------------------------------- */

enum { TOKENS = 3, ROWS = 7, MAX_SIZE = 200 };

struct sample {
    colibri_expert_ffn call;
    uint8_t order;
    uint8_t *record;
    float values[ROWS * MAX_SIZE];
    int8_t codes[ROWS * 256];
    float scales[ROWS * 8];
    float weights[ROWS];
    uint16_t in_rows[TOKENS], out_rows[TOKENS];
    float out[ROWS * MAX_SIZE];
};

static struct random source = {7};

static float number(void)
{
    return ((float)random_below(&source, 1u << 16) - 32768.0f) * 0x1p-14f;
}

static uint32_t matrix_bytes(const colibri_matrix *m, const uint8_t *data)
{
    if (m->scales == NULL)
        return m->rows * m->stride;
    return (uint32_t)((const uint8_t *)(const void *)m->scales - data) + m->rows * m->groups * 2;
}

/* A matrix of numbers near 1 at an offset of the record, which grows. */
static void matrix(struct sample *s, colibri_matrix *m, uint32_t type, uint32_t group, uint32_t rows, uint32_t columns)
{
    colibri_tensor t = {.type = (uint8_t)type, .group = (uint16_t)group, .rows = rows, .columns = columns,
                        .order = group != 0 ? s->order : COLIBRI_ORDER_ROWS};
    uint8_t *data = s->record + s->call.record_bytes;
    colibri_matrix_init(m, &t, data);
    uint32_t bytes = matrix_bytes(m, data);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)random_bits(&source);
    if (type == COLIBRI_F32)
        for (uint32_t i = 0; i < rows * columns; i++)
            ((float *)(void *)data)[i] = number();
    if (type == COLIBRI_F16 || type == COLIBRI_BF16) /* exponents around 0 */
        for (uint32_t i = 0; i < rows * columns; i++)
            ((uint16_t *)(void *)data)[i] = (uint16_t)((random_bits(&source) & 0x83FF) | 0x3800);
    for (uint32_t i = 0; m->scales != NULL && i < rows * m->groups; i++)
        ((uint16_t *)(void *)(data + ((const uint8_t *)(const void *)m->scales - data)))[i] =
            (uint16_t)(0x1C00 | (random_bits(&source) & 0x3FF));
    s->call.record_bytes += (bytes + 63u) & ~63u;
}

static const float *vector(struct sample *s, uint32_t n)
{
    float *data = (float *)(void *)(s->record + s->call.record_bytes);
    for (uint32_t i = 0; i < n; i++)
        data[i] = number();
    s->call.record_bytes += (n * 4 + 63u) & ~63u;
    return data;
}

/* A call without weights yet: its rows, and where they go. */
static struct sample *begin_sample(uint32_t hidden)
{
    struct sample *s = calloc(1, sizeof *s);
    if (s == NULL) stop(2, "no memory");
    s->record = exact(1 << 20);
    for (uint32_t i = 0; i < ROWS * hidden; i++)
        s->values[i] = number();
    for (uint32_t i = 0; i < ROWS; i++)
        s->weights[i] = number();
    for (uint16_t t = 0; t < TOKENS; t++) {
        s->in_rows[t] = (uint16_t)(5 - 2 * t);
        s->out_rows[t] = (uint16_t)(t * 3);
    }
    s->call = (colibri_expert_ffn){
        .struct_bytes = sizeof s->call, .layer = 3, .expert = 11, .tokens = TOKENS, .record = s->record,
        .values = s->values, .value_stride = hidden, .in_rows = s->in_rows, .out_rows = s->out_rows,
        .out = s->out, .out_stride = hidden, .activation_limit = 1.5f, .activation_alpha = 1.702f};
    return s;
}

/* The int8 form of the inputs, as the runtime lends it. */
static void lend_codes(struct sample *s)
{
    const colibri_matrix *m = &s->call.gate;
    s->call.code_stride = m->groups * m->group;
    s->call.scale_stride = m->groups;
    s->call.codes = s->codes;
    s->call.scales = s->scales;
    for (uint32_t i = 0; i < ROWS; i++)
        colibri_kernels_ref.quantize(s->values + i * s->call.value_stride, m->columns, m->group,
                                     s->codes + i * s->call.code_stride, s->scales + i * m->groups);
}

static uint32_t crc_of_output(const struct sample *s)
{
    return colibri_crc32(0, s->out, (uint64_t)ROWS * s->call.out_stride * 4);
}

static uint32_t defined(struct sample *s, const colibri_kernels *kernels)
{
    uint8_t *scratch = exact(colibri_expert_ffn_scratch(&s->call));
    memset(s->out, 0x5A, sizeof s->out); /* rows of other experts stay as they are */
    colibri_expert_ffn_run(&s->call, kernels, scratch);
    free(scratch);
    return crc_of_output(s);
}

/* Bind, start, wait on a device of exactly the memory it asks for. */
static uint32_t by_backend(struct sample *s, const colibri_backend *backend)
{
    memset(s->out, 0x5A, sizeof s->out);
    EXPECT(backend->bind(backend->context, &s->call) == 0);
    colibri_expert_ffn call = s->call;
    EXPECT(backend->start(backend->context, &call) == 0);
    memset(&call, 0xFF, sizeof call); /* valid until start returns, no longer */
    EXPECT(backend->wait(backend->context, s->call.layer, s->call.expert) == 0);
    return crc_of_output(s);
}

static void both_devices(struct sample *s, uint32_t expected)
{
    colibri_fake_npu npu;
    colibri_fake_npu_slot slot;
    colibri_fake_npu_init(&npu, NULL, 0, NULL, 0);
    EXPECT(npu.backend.bind(&npu, &s->call) == 0);
    uint64_t bytes = colibri_fake_npu_bytes_needed(&npu);
    uint8_t *memory = exact(bytes);
    colibri_fake_npu_init(&npu, memory, bytes - 64, &slot, 1);
    EXPECT(npu.backend.bind(&npu, &s->call) == COLIBRI_BACKEND_MEMORY);
    colibri_fake_npu_init(&npu, memory, bytes, &slot, 1);
    EXPECT(by_backend(s, &npu.backend) == expected);
    colibri_fake_npu_thread *thread = colibri_fake_npu_thread_create(memory, bytes, &slot, 1);
    EXPECT(thread != NULL && by_backend(s, colibri_fake_npu_thread_backend(thread)) == expected);
    colibri_fake_npu_thread_destroy(thread);
    free(memory);
}

struct shape {
    uint32_t type, group, up_type, up_group, down_type, down_group;
};

static void one_sample(const struct shape *p, uint32_t hidden, uint32_t inner, uint32_t activation, bool extras,
                       uint8_t order)
{
    struct sample *s = begin_sample(hidden);
    s->order = order;
    s->call.activation = activation;
    matrix(s, &s->call.gate, p->type, p->group, inner, hidden);
    matrix(s, &s->call.up, p->up_type, p->up_group, inner, hidden);
    matrix(s, &s->call.down, p->down_type, p->down_group, hidden, inner);
    if (extras) {
        s->call.gate_bias = vector(s, inner);
        s->call.up_bias = vector(s, inner);
        s->call.down_bias = vector(s, hidden);
        s->call.row_weights = s->weights;
    }
    uint32_t expected = defined(s, &colibri_kernels_ref);
    for (uint32_t i = 0; kernel_table(i) != NULL; i++)
        EXPECT(defined(s, kernel_table(i)) == expected);
    both_devices(s, expected);
    if (p->group != 0 && p->group == p->up_group) {
        lend_codes(s);
        EXPECT(defined(s, &colibri_kernels_ref) == expected);
        memset(s->values, 0, sizeof s->values); /* whoever has codes must not need these */
        both_devices(s, expected);
    }
    free(s->record), free(s);
}

static void bits(void)
{
    static const struct shape shapes[] = {
        {COLIBRI_F32, 0, COLIBRI_F32, 0, COLIBRI_F32, 0},
        {COLIBRI_F16, 0, COLIBRI_F16, 0, COLIBRI_F16, 0},
        {COLIBRI_BF16, 0, COLIBRI_BF16, 0, COLIBRI_BF16, 0},
        {COLIBRI_Q8, 32, COLIBRI_Q8, 32, COLIBRI_Q8, 32},
        {COLIBRI_Q4, 32, COLIBRI_Q4, 32, COLIBRI_Q4, 32},
        {COLIBRI_Q4, 64, COLIBRI_Q4, 64, COLIBRI_Q8, 128},
        {COLIBRI_Q8, 128, COLIBRI_Q4, 128, COLIBRI_Q4, 64},
        {COLIBRI_Q8, 64, COLIBRI_Q4, 32, COLIBRI_F16, 0},
        {COLIBRI_F32, 0, COLIBRI_Q8, 32, COLIBRI_Q4, 128},
    };
    static const uint32_t sizes[][2] = {{64, 32}, {200, 96}, {33, 130}, {1, 1}};
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
            for (uint32_t activation = COLIBRI_ACTIVATION_SILU; activation <= COLIBRI_ACTIVATION_CLAMPED; activation++)
                for (uint8_t way = 0; way < 4; way++)
                    one_sample(&shapes[i], sizes[n][0], sizes[n][1], activation, (way & 1) != 0, way >> 1);
}

/* --- protocol: a backend that takes notes ----------------------------------------------------------- */

enum { MAX_CALLS = 64, MAX_BINDINGS = 4096 };

static colibri_image image;
static colibri_storage storage;
static colibri_region region;
static colibri_engine engine;
static float *logits;
static const colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 2, .context = 8, .batch = 4,
                                      .workers = 2};

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
        for (uint16_t x = 0; (kind.ffn & COLIBRI_FFN_MOE) && x < image.config.experts - image.config.identities; x++) {
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
    if (argc == 2 && strcmp(argv[1], "bits") == 0) {
        bits();
    } else if (argc == 3 && strcmp(argv[1], "protocol") == 0) {
        open_image(argv[2]);
        protocol();
    } else if (argc == 3 && strcmp(argv[1], "threads") == 0) {
        open_image(argv[2]);
        threads();
    } else {
        stop(2, "usage: backend bits | protocol IMAGE | threads IMAGE");
    }
    puts("ok");
    return 0;
}
