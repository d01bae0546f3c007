/* SPDX-License-Identifier: Apache-2.0 */
/* How a request gets into the firmware and its results get out: one struct in RAM at the symbol
 * colibri_mailbox. Fixed-width words only, 64-bit ones at multiples of 8, so that it has one layout
 * on every target. emulator/colibri_emulator/mailbox.py mirrors it field by field. */
#ifndef COLIBRI_FIRMWARE_MAILBOX_H
#define COLIBRI_FIRMWARE_MAILBOX_H

#include <stdint.h>

#include "colibri/plan.h"

#define COLIBRI_MAILBOX_MAGIC 0x4D42434Cu /* "LCBM" */
#define COLIBRI_MAILBOX_VERSION 3u
#define COLIBRI_MAILBOX_TOKENS 1024u /* prompt + generated */

enum { COLIBRI_COMMAND_GENERATE = 1, COLIBRI_COMMAND_SELFTEST = 2 };
enum { COLIBRI_STATE_WAITING = 0, COLIBRI_STATE_RUNNING = 1, COLIBRI_STATE_DONE = 2,
       COLIBRI_STATE_FAULT = 3 };

/* The call that a status comes from. */
enum { COLIBRI_STAGE_REQUEST = 1, COLIBRI_STAGE_OPEN = 2, COLIBRI_STAGE_PLAN = 3,
       COLIBRI_STAGE_INIT = 4, COLIBRI_STAGE_INFER = 5, COLIBRI_STAGE_SAMPLE = 6,
       COLIBRI_STAGE_SELFTEST = 7, COLIBRI_STAGE_END = 8, COLIBRI_STAGE_CORES = 9 };

typedef struct colibri_mailbox_buffer {
    uint32_t kind;
    uint32_t region;
    uint64_t offset;
    uint64_t bytes;
} colibri_mailbox_buffer;

typedef struct colibri_mailbox_layout {
    /* written by the host */
    uint32_t magic;
    uint32_t version;
    uint32_t command;
    uint32_t context;      /* colibri_limits */
    uint32_t batch;
    uint32_t workers;
    uint32_t kv;
    uint32_t prompt_count; /* tokens[0 .. prompt_count - 1] */
    uint32_t max_new;
    uint32_t ignore_eos;
    float temperature;     /* colibri_sampling */
    uint32_t top_k;
    float top_p;
    uint32_t bytes; /* of this struct, as the host knows it */
    uint32_t expert_slots; /* colibri_limits, in firmware that streams experts */
    uint32_t policy;
    uint64_t seed;

    /* written by the firmware */
    uint32_t state;
    uint32_t stage;
    uint32_t status;       /* colibri_error of that stage */
    uint32_t error_where;
    uint64_t error_have;
    uint64_t error_need;
    uint32_t generated;    /* tokens after the prompt */
    uint32_t logits_crc32; /* over the rows that the generated tokens were chosen from */
    uint32_t region_count;
    uint32_t buffer_count;
    uint64_t total_bytes;  /* colibri_plan_result */
    uint64_t used[COLIBRI_MAX_REGIONS];
    uint64_t high_water[COLIBRI_MAX_REGIONS];
    colibri_mailbox_buffer buffers[COLIBRI_MAX_BUFFERS];
    uint64_t stack_bytes;      /* of each core */
    uint64_t stack_high_water; /* of the core that used most */
    uint32_t cores;            /* that were at work */
    uint32_t slots;            /* colibri_expert_stats; zeros when nothing is streamed */
    uint32_t slots_per_layer;
    uint32_t slots_policy;
    uint64_t hits;
    uint64_t misses;
    uint64_t bytes_read;
    uint64_t retries;
    uint64_t fault_cause;  /* CFSR, ESR_EL1 or mcause */
    uint64_t fault_address;
    uint64_t fault_pc;

    uint32_t tokens[COLIBRI_MAILBOX_TOKENS]; /* the prompt, then what was generated */
} colibri_mailbox_layout;

extern volatile colibri_mailbox_layout colibri_mailbox;

#endif
