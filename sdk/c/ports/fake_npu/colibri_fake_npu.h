/* SPDX-License-Identifier: Apache-2.0 */
/* An accelerator that does not exist, driven the way a real one is: its own memory, weights copied there
 * when experts are bound, a queue of commands, results that come later. docs/porting.md ("Binding an
 * accelerator") explains a real port along this one. */
#ifndef COLIBRI_FAKE_NPU_H
#define COLIBRI_FAKE_NPU_H

#include "colibri/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_FAKE_NPU_QUEUE 4u

/* The driver's table: where an expert's record lies in device memory. One slot for each bound expert. */
typedef struct colibri_fake_npu_slot {
    uint16_t layer;
    uint16_t expert;
    uint32_t reserved;
    uint64_t offset;
} colibri_fake_npu_slot;

typedef struct colibri_fake_npu {
    colibri_backend backend;  /* for colibri_binding.backend; the struct must not move */
    uint8_t *memory;          /* the device's; NULL: a device that only counts, see bytes_needed */
    uint64_t bytes;
    uint64_t used;            /* by records, from the start */
    uint64_t workspace;       /* of one command, at the end: an input row, scratch, an output row */
    colibri_fake_npu_slot *slots;
    uint32_t slot_count;
    uint32_t slots_used;
    colibri_expert_ffn queue[COLIBRI_FAKE_NPU_QUEUE];
    uint32_t head;            /* the oldest command */
    uint32_t queued;
    int failure;              /* of a command that has not been waited for yet, else 0 */
    uint32_t failed_layer;
    uint32_t failed_expert;
    uint64_t commands;        /* done since init */
    uint64_t copied;          /* bytes over DMA since init */
    uint64_t fail_command;    /* that many commands from now one fails: 1 is the next, 0: none does */
    uint64_t fail_start;      /* the same for start, which refuses it */
} colibri_fake_npu;

/* A device with this memory (64-byte aligned) and nothing in it. Also what a port does before another image
 * is bound: there is no unbind. */
void colibri_fake_npu_init(colibri_fake_npu *npu, void *memory, uint64_t bytes, colibri_fake_npu_slot *slots,
                           uint32_t slot_count);

/* Memory that all experts offered so far take. With memory NULL, bind takes everything and copies nothing. */
uint64_t colibri_fake_npu_bytes_needed(const colibri_fake_npu *npu);

/* Hardware side, for ports/fake_npu/thread.c: the oldest command is computed, then taken off the queue. */
int colibri_fake_npu_compute(colibri_fake_npu *npu, const colibri_expert_ffn *command);
void colibri_fake_npu_retire(colibri_fake_npu *npu, int result);

/* Driver side: 0 when the command fits the queue. pending: is it still there? result: what became of it. */
int colibri_fake_npu_push(colibri_fake_npu *npu, const colibri_expert_ffn *call);
int colibri_fake_npu_pending(const colibri_fake_npu *npu, uint32_t layer, uint32_t expert);
int colibri_fake_npu_result(colibri_fake_npu *npu, uint32_t layer, uint32_t expert);

/* The same device computing on a POSIX thread of its own. NULL when memory or threads are missing. */
typedef struct colibri_fake_npu_thread colibri_fake_npu_thread;
colibri_fake_npu_thread *colibri_fake_npu_thread_create(void *memory, uint64_t bytes,
                                                        colibri_fake_npu_slot *slots, uint32_t slot_count);
void colibri_fake_npu_thread_destroy(colibri_fake_npu_thread *thread);
const colibri_backend *colibri_fake_npu_thread_backend(const colibri_fake_npu_thread *thread);

/* To be looked at and set between calls of the runtime only. */
colibri_fake_npu *colibri_fake_npu_thread_device(colibri_fake_npu_thread *thread);

#ifdef __cplusplus
}
#endif
#endif
