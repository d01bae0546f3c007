/* SPDX-License-Identifier: Apache-2.0 */
/* The operation expert_ffn (include/colibri/backend.h) without an engine, against its definition: every type,
 * group, weight order, activation, with and without biases and weights on the input. Prints "ok". A port puts
 * its own backend where the fake accelerator's is (both_devices). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri_fake_npu.h"
#include "support.h"

enum { TOKENS = 3, ROWS = 7, MAX_SIZE = 200 };

/* One expert made of random numbers, and a call of it. */
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
static void matrix(struct sample *s, colibri_matrix *m, uint32_t type, uint32_t group, uint32_t rows,
                   uint32_t columns)
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

int main(void)
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
            for (uint32_t act = COLIBRI_ACTIVATION_SILU; act <= COLIBRI_ACTIVATION_CLAMPED; act++)
                for (uint8_t way = 0; way < 4; way++)
                    one_sample(&shapes[i], sizes[n][0], sizes[n][1], act, (way & 1) != 0, way >> 1);
    puts("ok");
    return 0;
}
