/* SPDX-License-Identifier: Apache-2.0 */
/* The runner application: takes one request from the mailbox, runs it, writes the results. It is what
 * every CPU engine executes, and a template for an application of your own. */
#include "board.h"
#include "colibri/colibri.h"
#include "colibri/kernels.h"
#include "mailbox.h"

#ifndef COLIBRI_RUNNER_STREAMS
#define COLIBRI_RUNNER_STREAMS 0
#endif
#if COLIBRI_RUNNER_STREAMS
#include "colibri_block_device.h"
#endif

/* The image lies in memory-mapped flash or RAM; its weights are used in place. */
static const void *map_model(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    (void)context;
    if (file != 0 || offset > colibri_board_model_bytes ||
        bytes > colibri_board_model_bytes - offset) {
        return 0;
    }
    return (const uint8_t *)colibri_board_model + (uintptr_t)offset;
}

/* Everything but the stack that the application keeps: its own RAM, beside the engine's regions. */
static colibri_storage storage;
static colibri_image image;
static colibri_engine engine;
static colibri_plan_result plan;
static colibri_platform platform;

static colibri_status stage(uint32_t number, colibri_status status, const colibri_error *error)
{
    colibri_mailbox.stage = number;
    colibri_mailbox.status = status;
    if (status != COLIBRI_OK && error != 0) {
        colibri_mailbox.error_where = error->where;
        colibri_mailbox.error_have = error->have;
        colibri_mailbox.error_need = error->need;
    }
    return status;
}

static colibri_status take_request(void)
{
    colibri_error error = { COLIBRI_ERR_ARGUMENT, 0, colibri_mailbox.prompt_count,
                            COLIBRI_MAILBOX_TOKENS };
    uint32_t prompt = colibri_mailbox.prompt_count;
    if (colibri_mailbox.magic != COLIBRI_MAILBOX_MAGIC ||
        colibri_mailbox.version != COLIBRI_MAILBOX_VERSION ||
        colibri_mailbox.bytes != sizeof colibri_mailbox || prompt > COLIBRI_MAILBOX_TOKENS ||
        colibri_mailbox.max_new > COLIBRI_MAILBOX_TOKENS - prompt ||
        (colibri_mailbox.command == COLIBRI_COMMAND_GENERATE && prompt == 0)) {
        return stage(COLIBRI_STAGE_REQUEST, COLIBRI_ERR_ARGUMENT, &error);
    }
    return stage(COLIBRI_STAGE_REQUEST, COLIBRI_OK, 0);
}

static void report_plan(void)
{
    colibri_mailbox.total_bytes = plan.total_bytes;
    colibri_mailbox.region_count = plan.region_count;
    colibri_mailbox.buffer_count = plan.buffer_count;
    for (uint32_t i = 0; i < plan.region_count; i++) {
        colibri_mailbox.used[i] = plan.used[i];
    }
    for (uint32_t i = 0; i < plan.buffer_count; i++) {
        volatile colibri_mailbox_buffer *row = &colibri_mailbox.buffers[i];
        row->kind = plan.buffers[i].kind;
        row->region = plan.buffers[i].region;
        row->offset = plan.buffers[i].offset;
        row->bytes = plan.buffers[i].bytes;
    }
}

/* The other cores, when the request asks for them. */
static colibri_status start_cores(void)
{
    uint32_t workers = colibri_mailbox.workers;
    platform.struct_bytes = sizeof platform;
    platform.kernels = &COLIBRI_BOARD_KERNELS;
    if (workers <= 1) {
        return stage(COLIBRI_STAGE_CORES, COLIBRI_OK, 0);
    }
    platform.pool = firmware_pool(workers);
    colibri_error error = { COLIBRI_ERR_LIMIT, 4, workers, colibri_board_cores };
    return stage(COLIBRI_STAGE_CORES, platform.pool != 0 ? COLIBRI_OK : COLIBRI_ERR_LIMIT, &error);
}

#if COLIBRI_RUNNER_STREAMS
#define TABLES colibri_board_tables
#define TABLES_BYTES colibri_board_tables_bytes

/* The block device, where there is one; a board's own driver would be put in here. Without one the CPU copies
 * experts out of mapped flash. */
static void stream(colibri_limits *limits)
{
    static colibri_block_device device;
    limits->weights = colibri_board_weights;
    limits->expert_slots = colibri_mailbox.expert_slots;
    limits->policy = colibri_mailbox.policy;
    if (colibri_board_tables_bytes != 0) {
        storage.map = 0;
    }
    if (colibri_board_device != 0) {
        device = (colibri_block_device){ colibri_board_device, 1u << 20, 0 };
        storage.context = &device;
        storage.read = colibri_block_read;
        storage.start = colibri_block_start;
        storage.wait = colibri_block_wait;
    }
}

static void report_experts(void)
{
    colibri_expert_stats s = { .struct_bytes = sizeof s };
    (void)colibri_expert_statistics(&engine, &s);
    colibri_mailbox.slots = s.slots;
    colibri_mailbox.slots_per_layer = s.slots_per_layer;
    colibri_mailbox.slots_policy = s.policy;
    colibri_mailbox.hits = s.hits;
    colibri_mailbox.misses = s.misses;
    colibri_mailbox.bytes_read = s.bytes_read;
    colibri_mailbox.retries = s.retries;
}
#else
#define TABLES 0
#define TABLES_BYTES 0
#endif

static colibri_status prepare(void)
{
    colibri_error error = { 0 };
    colibri_limits limits = { .struct_bytes = sizeof limits,
                              .sequences = 1,
                              .context = colibri_mailbox.context,
                              .batch = colibri_mailbox.batch,
                              .workers = colibri_mailbox.workers,
                              .kv = colibri_mailbox.kv,
                              .profile = colibri_board_profile,
                              .weights = COLIBRI_WEIGHTS_MAPPED };
    storage.struct_bytes = sizeof storage;
    storage.bytes = colibri_board_model_bytes;
    storage.map = map_model;
#if COLIBRI_RUNNER_STREAMS
    stream(&limits);
#endif
    if (stage(COLIBRI_STAGE_OPEN,
              colibri_image_open(&image, &storage, TABLES, TABLES_BYTES, &error), &error)) {
        return COLIBRI_ERR_STRUCTURE;
    }
    plan.struct_bytes = sizeof plan;
    colibri_status status = colibri_plan(&image, &limits, colibri_board_regions,
                                         colibri_board_region_count, &plan, &error);
    report_plan();
    if (stage(COLIBRI_STAGE_PLAN, status, &error)) {
        return status;
    }
    status = colibri_init(&engine, &image, &limits, colibri_board_regions,
                          colibri_board_region_count, &platform, &error);
    return stage(COLIBRI_STAGE_INIT, status, &error);
}

static colibri_status infer(const uint32_t *ids, uint32_t count)
{
    colibri_error error = { 0 };
    colibri_batch batch = { .struct_bytes = sizeof batch,
                            .count = count,
                            .tokens = ids,
                            .logits = colibri_board_logits,
                            .logits_floats = colibri_board_logits_floats };
    return stage(COLIBRI_STAGE_INFER, colibri_infer(&engine, &batch, &error), &error);
}

static void generate(void)
{
    colibri_sampling sampling = { colibri_mailbox.temperature, colibri_mailbox.top_k,
                                  colibri_mailbox.top_p };
    uint64_t rng = colibri_mailbox.seed;
    uint32_t vocabulary = image.config.vocabulary;
    uint32_t prompt = colibri_mailbox.prompt_count;
    uint32_t max_new = colibri_mailbox.max_new;
    uint32_t crc = 0;
    uint32_t *tokens = (uint32_t *)(uintptr_t)colibri_mailbox.tokens; /* nobody writes them now */
    const uint32_t *next = tokens;
    uint32_t count = prompt;
    for (uint32_t n = 0; n < max_new; n++) {
        if (infer(next, count)) {
            return;
        }
        crc = colibri_crc32(crc, colibri_board_logits, (uint64_t)vocabulary * sizeof(float));
        uint32_t token = 0;
        if (stage(COLIBRI_STAGE_SAMPLE,
                  colibri_sample(colibri_board_logits, vocabulary, &sampling, &rng, &token), 0)) {
            return;
        }
        next = &tokens[prompt + n];
        count = 1;
        tokens[prompt + n] = token;
        colibri_mailbox.generated = n + 1u;
        colibri_mailbox.logits_crc32 = crc;
        if (!colibri_mailbox.ignore_eos && colibri_image_is_stop(&image, token)) {
            break;
        }
    }
    stage(COLIBRI_STAGE_END, COLIBRI_OK, 0);
}

void firmware_run(void)
{
    colibri_error error = { 0 };
    if (take_request() || start_cores() || prepare()) {
        return;
    }
    if (colibri_mailbox.command == COLIBRI_COMMAND_SELFTEST) {
        stage(COLIBRI_STAGE_SELFTEST, colibri_selftest(&engine, colibri_board_logits, &error),
              &error);
    } else {
        generate();
    }
#if COLIBRI_RUNNER_STREAMS
    report_experts();
#endif
    for (uint32_t i = 0; i < plan.region_count; i++) {
        colibri_mailbox.high_water[i] = colibri_high_water(&engine, i);
    }
}
