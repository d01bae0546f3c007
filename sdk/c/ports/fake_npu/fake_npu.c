/* SPDX-License-Identifier: Apache-2.0 */
/* The device as a state machine: start only queues, wait lets the device work. It touches main memory by
 * `dma` alone, and computes on its own copies; where a real device has multipliers, this one calls the
 * operation that defines the result. */
#include "colibri_fake_npu.h"

#include <stddef.h>
#include <string.h>

#define ALIGNMENT 64u /* of whatever lies in device memory */

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + (ALIGNMENT - 1u)) & ~(uint64_t)(ALIGNMENT - 1u);
}

/* A real driver cleans the cache over what the device will read and invalidates it over what it wrote. */
static void dma(colibri_fake_npu *npu, void *to, const void *from, uint64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
    npu->copied += bytes;
}

static colibri_fake_npu_slot *slot_of(const colibri_fake_npu *npu, uint32_t layer, uint32_t expert)
{
    for (uint32_t i = 0; i < npu->slots_used; i++)
        if (npu->slots[i].layer == layer && npu->slots[i].expert == expert)
            return &npu->slots[i];
    return NULL;
}

/* --- bind: weights come to the device --------------------------------------------------------------- */

/* Parts of the workspace, each aligned: input row as floats or as codes and scales, scratch, output row. */
struct workspace {
    uint64_t values, codes, scales, scratch, out, end;
};

static struct workspace workspace_of(const colibri_expert_ffn *c)
{
    struct workspace w = {0};
    w.codes = align_up((uint64_t)c->gate.columns * 4);
    w.scales = w.codes + align_up((uint64_t)c->gate.groups * c->gate.group);
    w.scratch = w.scales + align_up((uint64_t)c->gate.groups * 4);
    w.out = w.scratch + align_up(colibri_expert_ffn_scratch(c));
    w.end = w.out + align_up((uint64_t)c->down.rows * 4);
    return w;
}

/* This device can do every type and activation. One that cannot must say UNABLE here: nothing else would. */
static int bind(void *context, const colibri_expert_ffn *expert)
{
    colibri_fake_npu *npu = context;
    uint64_t workspace = workspace_of(expert).end, record = align_up(expert->record_bytes);
    if (npu->memory != NULL && slot_of(npu, expert->layer, expert->expert) != NULL)
        return COLIBRI_BACKEND_UNABLE; /* of another image: the device was not initialised in between */
    npu->workspace = workspace > npu->workspace ? workspace : npu->workspace;
    if (npu->memory != NULL && (npu->slots_used == npu->slot_count ||
                                colibri_fake_npu_bytes_needed(npu) + record > npu->bytes))
        return COLIBRI_BACKEND_MEMORY;
    if (npu->memory != NULL) {
        npu->slots[npu->slots_used++] = (colibri_fake_npu_slot){
            .layer = (uint16_t)expert->layer, .expert = (uint16_t)expert->expert, .offset = npu->used};
        dma(npu, npu->memory + npu->used, expert->record, expert->record_bytes);
    }
    npu->used += record;
    return 0;
}

/* --- commands: what the hardware does --------------------------------------------------------------- */

/* Where a pointer into the record points to in the device's copy. */
static const void *moved(const void *pointer, const void *record, const uint8_t *copy)
{
    return pointer == NULL ? NULL : copy + ((const uint8_t *)pointer - (const uint8_t *)record);
}

static void move_matrix(colibri_matrix *m, const void *record, const uint8_t *copy)
{
    m->codes = moved(m->codes, record, copy);
    m->scales = moved(m->scales, record, copy);
}

/* The command with all weights in device memory. */
static colibri_expert_ffn on_device(const colibri_expert_ffn *command, const uint8_t *copy)
{
    colibri_expert_ffn c = *command;
    move_matrix(&c.gate, command->record, copy);
    move_matrix(&c.up, command->record, copy);
    move_matrix(&c.down, command->record, copy);
    c.gate_bias = moved(c.gate_bias, command->record, copy);
    c.up_bias = moved(c.up_bias, command->record, copy);
    c.down_bias = moved(c.down_bias, command->record, copy);
    c.record = copy;
    return c;
}

/* One token: its input row comes in, its output row goes out. */
static void compute_token(colibri_fake_npu *npu, const colibri_expert_ffn *command, uint32_t t,
                          const uint8_t *copy)
{
    colibri_expert_ffn c = on_device(command, copy);
    const struct workspace w = workspace_of(&c);
    uint8_t *work = npu->memory + (npu->bytes - npu->workspace);
    size_t in = command->in_rows != NULL ? command->in_rows[t] : t;
    size_t out = command->out_rows != NULL ? command->out_rows[t] : t;
    float weight;
    c.tokens = 1;
    c.in_rows = c.out_rows = NULL;
    c.values = (float *)(void *)work;
    if (command->codes == NULL) {
        dma(npu, work, command->values + in * command->value_stride, (uint64_t)c.gate.columns * 4);
    } else {
        c.codes = (int8_t *)(work + w.codes);
        c.scales = (float *)(void *)(work + w.scales);
        dma(npu, work + w.codes, command->codes + in * command->code_stride,
            (uint64_t)c.gate.groups * c.gate.group);
        dma(npu, work + w.scales, command->scales + in * command->scale_stride, (uint64_t)c.gate.groups * 4);
    }
    if (command->row_weights != NULL) { /* a register of the command */
        weight = command->row_weights[out];
        c.row_weights = &weight;
    }
    c.out = (float *)(void *)(work + w.out);
    colibri_expert_ffn_run(&c, &colibri_kernels_ref, work + w.scratch);
    dma(npu, command->out + out * command->out_stride, work + w.out, (uint64_t)c.down.rows * 4);
}

/* A fault comes in the middle of a transfer: outputs that nobody may use. */
static int fault(const colibri_expert_ffn *command)
{
    for (uint32_t t = 0; t < command->tokens; t++) {
        size_t out = command->out_rows != NULL ? command->out_rows[t] : t;
        memset(command->out + out * command->out_stride, 0xFF, (size_t)command->down.rows * 2);
    }
    return COLIBRI_BACKEND_FAULT;
}

static int due(uint64_t *countdown)
{
    return *countdown != 0 && --*countdown == 0;
}

int colibri_fake_npu_compute(colibri_fake_npu *npu, const colibri_expert_ffn *command)
{
    const colibri_fake_npu_slot *slot = slot_of(npu, command->layer, command->expert);
    npu->commands++;
    if (slot == NULL)
        return COLIBRI_BACKEND_UNABLE; /* nobody has bound it */
    if (due(&npu->fail_command))
        return fault(command);
    for (uint32_t t = 0; t < command->tokens; t++)
        compute_token(npu, command, t, npu->memory + slot->offset);
    return 0;
}

void colibri_fake_npu_retire(colibri_fake_npu *npu, int result)
{
    const colibri_expert_ffn *command = &npu->queue[npu->head];
    if (result != 0 && npu->failure == 0) {
        npu->failure = result;
        npu->failed_layer = command->layer;
        npu->failed_expert = command->expert;
    }
    npu->head = (npu->head + 1) % COLIBRI_FAKE_NPU_QUEUE;
    npu->queued--;
}

/* --- the driver ------------------------------------------------------------------------------------- */

int colibri_fake_npu_push(colibri_fake_npu *npu, const colibri_expert_ffn *call)
{
    if (npu->queued == COLIBRI_FAKE_NPU_QUEUE)
        return -1;
    npu->queue[(npu->head + npu->queued++) % COLIBRI_FAKE_NPU_QUEUE] = *call;
    return 0;
}

int colibri_fake_npu_pending(const colibri_fake_npu *npu, uint32_t layer, uint32_t expert)
{
    for (uint32_t i = 0; i < npu->queued; i++) {
        const colibri_expert_ffn *c = &npu->queue[(npu->head + i) % COLIBRI_FAKE_NPU_QUEUE];
        if (c->layer == layer && c->expert == expert)
            return 1;
    }
    return 0;
}

int colibri_fake_npu_result(colibri_fake_npu *npu, uint32_t layer, uint32_t expert)
{
    int result = npu->failure;
    if (result == 0 || npu->failed_layer != layer || npu->failed_expert != expert)
        return 0;
    npu->failure = 0;
    return result;
}

/* The oldest command, start to end. */
static void work(colibri_fake_npu *npu)
{
    colibri_fake_npu_retire(npu, colibri_fake_npu_compute(npu, &npu->queue[npu->head]));
}

static int start(void *context, const colibri_expert_ffn *call)
{
    colibri_fake_npu *npu = context;
    if (due(&npu->fail_start))
        return COLIBRI_BACKEND_FAULT;
    while (colibri_fake_npu_push(npu, call) != 0)
        work(npu);
    return 0;
}

static int wait(void *context, uint32_t layer, uint32_t expert)
{
    colibri_fake_npu *npu = context;
    while (colibri_fake_npu_pending(npu, layer, expert))
        work(npu);
    return colibri_fake_npu_result(npu, layer, expert);
}

void colibri_fake_npu_init(colibri_fake_npu *npu, void *memory, uint64_t bytes, colibri_fake_npu_slot *slots,
                           uint32_t slot_count)
{
    memset(npu, 0, sizeof *npu);
    npu->backend = (colibri_backend){
        .struct_bytes = sizeof npu->backend, .context = npu, .bind = bind, .start = start, .wait = wait};
    npu->memory = memory;
    npu->bytes = bytes & ~(uint64_t)(ALIGNMENT - 1u);
    npu->slots = slots;
    npu->slot_count = slot_count;
}

uint64_t colibri_fake_npu_bytes_needed(const colibri_fake_npu *npu)
{
    return npu->used + npu->workspace;
}
