/* SPDX-License-Identifier: Apache-2.0 */
/* Experts streamed from a storage that can fail at each of its reads (faulty_storage.c):
 *   stream IMAGE SLOTS POLICY TOKENS PROFILE KERNELS CALLS
 * A prompt, then token by token. Every read of the run, from the first of the open on, meets every fault: less
 * often than the runtime tries, as often (the call fails, says where, and is repeated on the same engine), and in
 * several calls. CALLS: calls that go on afterwards, 0 for all of them, as after every 32nd read; each must give the
 * logits of mapped weights.
 * SLOTS, POLICY, PROFILE: as in colibri_limits. KERNELS: the table's number, or fewer where there is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faulty_storage.h"

enum { ATTEMPTS = 3, PROMPT = 11, META = 1 << 20, MAX_CALLS = 512, IN_A_ROW = 5 };

static const uint32_t counts[] = {1, ATTEMPTS - 1, ATTEMPTS, 2 * ATTEMPTS + 1};
enum { COUNTS = sizeof counts / sizeof *counts };

/* An engine, and copies of all that it is before each call. */
struct run {
    const colibri_image *image;
    colibri_limits limits;
    const colibri_kernels *kernels;
    colibri_engine engine;
    uint8_t *memory;
    size_t bytes;
    uint32_t tokens, calls;
    struct moment {
        colibri_engine engine;
        uint8_t *memory;
        uint32_t reads;
    } before[MAX_CALLS];
};

static float *logits;
static uint32_t expected[MAX_CALLS]; /* checksums of the logits of each call */
static uint32_t go_on;
static struct faulty_storage storage;

static colibri_status init(struct run *r, colibri_error *error)
{
    colibri_region region = {.size = UINT64_MAX};
    colibri_plan_result plan;
    const colibri_platform platform = {.struct_bytes = sizeof platform, .kernels = r->kernels};
    if (colibri_plan(r->image, &r->limits, &region, 1, &plan, error) != COLIBRI_OK)
        stop(2, "plan: %s %u %u", colibri_status_name(error->status), (unsigned)error->where, (unsigned)error->need);
    if (r->memory == NULL)
        r->memory = exact((size_t)plan.used[0]);
    r->bytes = (size_t)plan.used[0];
    region = (colibri_region){.base = r->memory, .size = plan.used[0]};
    return colibri_init(&r->engine, r->image, &r->limits, &region, 1, &platform, error);
}

static uint32_t count_of(uint32_t call)
{
    return call == 0 ? PROMPT : 1;
}

static uint32_t length_before(uint32_t call)
{
    return call == 0 ? 0 : PROMPT + call - 1;
}

static colibri_status feed(struct run *r, uint32_t from, uint32_t count, colibri_error *error)
{
    uint32_t ids[PROMPT];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (from + i) * 7919u % r->image->config.vocabulary;
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = ids, .logits = logits,
                           .logits_floats = r->image->config.vocabulary};
    return colibri_infer(&r->engine, &batch, error);
}

static colibri_status infer(struct run *r, uint32_t call, colibri_error *error, uint32_t *crc)
{
    colibri_status status = feed(r, length_before(call), count_of(call), error);
    *crc = colibri_crc32(0, logits, r->image->config.vocabulary * sizeof *logits);
    return status;
}

/* The failed read is named, nothing is under way, and the sequence is as it was. */
static void check_failure(struct run *r, uint32_t call, colibri_status status, const colibri_error *error)
{
    uint32_t index = 0, layer = 0, expert = error->where & 0xFFFFu;
    colibri_expert record;
    EXPECT(!harmless(&storage) && status == error->status);
    EXPECT(status == (storage.fault == CORRUPT ? COLIBRI_ERR_CORRUPT : COLIBRI_ERR_STORAGE));
    for (; layer < error->where >> 16; layer++) {
        colibri_layer kind;
        colibri_image_layer(r->image, layer, &kind);
        index += kind.ffn & COLIBRI_FFN_MOE ? r->image->config.experts - r->image->config.identities : 0;
    }
    EXPECT(colibri_image_expert(r->image, index + expert, &record) == COLIBRI_OK);
    EXPECT(error->have == storage.fail_offset && record.offset == error->have && record.bytes == error->need);
    EXPECT(record.file == storage.fail_file && storage.first == storage.end);
    if (r->image->conv_layers + r->image->linear_layers == 0)
        EXPECT(colibri_length(&r->engine, 0) == length_before(call));
}

/* Where to go on after a failed call: there, or at the start, since a recurrent state cannot go back. */
static uint32_t resume(struct run *r, uint32_t call)
{
    colibri_error error = {0};
    if (r->image->conv_layers + r->image->linear_layers == 0)
        return call;
    EXPECT(feed(r, 0, 1, &error) == COLIBRI_ERR_BROKEN && colibri_reset(&r->engine, 0) == COLIBRI_OK);
    return 0;
}

/* From a call on, after `heal` failed calls without the fault; returns how many have failed. */
static uint32_t carry_on(struct run *r, uint32_t call, uint32_t heal)
{
    uint32_t failures = 0, end = r->calls;
    if (go_on != 0 && storage.fail_at % 32 != 0 && call + 1 + go_on < end)
        end = call + 1 + go_on;
    while (call < end) {
        colibri_error error = {0};
        uint32_t crc;
        colibri_status status = infer(r, call, &error, &crc);
        if (status == COLIBRI_OK) {
            EXPECT(crc == expected[call]);
            call++;
            continue;
        }
        check_failure(r, call, status, &error);
        if (++failures == heal)
            storage.fail_count = 0;
        call = resume(r, call);
    }
    return failures;
}

static void restore(struct run *r, uint32_t call)
{
    r->engine = r->before[call].engine;
    memcpy(r->memory, r->before[call].memory, r->bytes);
    storage.reads = r->before[call].reads;
}

/* Without a fault, keeping what the engine is before each call. */
static void record(struct run *r)
{
    colibri_expert_stats stats = {.struct_bytes = sizeof stats};
    for (uint32_t call = 0; call < r->calls; call++) {
        struct moment *m = &r->before[call];
        colibri_error error = {0};
        uint32_t crc;
        m->memory = m->memory != NULL ? m->memory : exact(r->bytes);
        m->engine = r->engine;
        m->reads = storage.reads;
        memcpy(m->memory, r->memory, r->bytes);
        EXPECT(infer(r, call, &error, &crc) == COLIBRI_OK && crc == expected[call]);
    }
    EXPECT(colibri_expert_statistics(&r->engine, &stats) == COLIBRI_OK && stats.retries == 0);
    EXPECT(storage.first == storage.end && stats.misses == storage.reads - r->before[0].reads && stats.bytes_read == storage.bytes);
}

/* A fault at each read of the run proper. Returns the calls that failed and were repeated. */
static uint32_t sweep_run(struct run *r, uint32_t *runs)
{
    uint32_t failed = 0, call = 0;
    const uint32_t last = storage.reads;
    for (uint32_t at = r->before[0].reads; at < last; at++) {
        while (call + 1 < r->calls && r->before[call + 1].reads <= at)
            call++;
        for (uint32_t kind = 0; kind < (FAULTS - REFUSED) * COUNTS; kind++, ++*runs) {
            const uint32_t count = counts[kind % COUNTS];
            colibri_expert_stats stats = {.struct_bytes = sizeof stats};
            restore(r, call);
            set_fault(&storage, (enum fault)(REFUSED + kind / COUNTS), at, count);
            uint32_t failures = carry_on(r, call, 0);
            EXPECT(failures == (harmless(&storage) ? 0 : count / ATTEMPTS));
            (void)colibri_expert_statistics(&r->engine, &stats);
            EXPECT(stats.retries == storage.failed - failures ||
                   (storage.fault == NEVER && stats.retries <= storage.failed - failures));
            failed += failures;
        }
    }
    return failed;
}

/* Records that cannot be read until the medium is mended; every other record stays usable meanwhile. */
static uint32_t sweep_records(struct run *r, uint32_t *runs)
{
    uint32_t failed = 0;
    for (uint32_t at = r->before[0].reads, last = r->before[1].reads; at < last; at++) {
        for (enum fault fault = FAILED; fault < FAULTS; fault++) {
            restore(r, 0);
            set_fault(&storage, fault, at, UINT32_MAX);
            if (harmless(&storage))
                continue;
            EXPECT(carry_on(r, 0, IN_A_ROW) == IN_A_ROW);
            failed += IN_A_ROW;
            ++*runs;
        }
    }
    return failed;
}

/* A fault at each read of colibri_init, then of colibri_image_open. The next attempt is the run as it should be. */
static void sweep_init(struct run *r, uint32_t first, uint32_t end, uint32_t *runs)
{
    for (uint32_t at = first; at < end; at++) {
        for (uint32_t kind = 0; kind < (FAULTS - REFUSED) * COUNTS; kind++, ++*runs) {
            const uint32_t count = counts[kind % COUNTS];
            colibri_error error = {0};
            storage.records = NULL;
            storage.reads = first;
            set_fault(&storage, (enum fault)(REFUSED + kind / COUNTS), at, count);
            for (uint32_t i = harmless(&storage) ? 0 : count / ATTEMPTS; i != 0; i--) {
                colibri_status status = init(r, &error);
                EXPECT(status == error.status && colibri_length(&r->engine, 0) == 0);
                if (storage.fault == CORRUPT) { /* of a tensor, or of the padding behind one */
                    EXPECT(status == COLIBRI_ERR_CHECKSUM);
                    continue;
                }
                EXPECT(status == COLIBRI_ERR_STORAGE && error.where == 0xFFFF0000u);
                EXPECT(error.have == storage.fail_offset && error.need != 0);
            }
            EXPECT(init(r, &error) == COLIBRI_OK);
            storage.records = r->image;
            EXPECT(carry_on(r, 0, 0) == 0);
        }
    }
}

static colibri_status open_image(colibri_image *image, uint8_t *meta, colibri_error *error)
{
    storage.records = NULL;
    return colibri_image_open(image, &storage.storage, meta, META, error);
}

static void sweep_open(uint32_t end, uint32_t *runs)
{
    static colibri_image image;
    uint8_t *meta = exact(META);
    for (uint32_t at = 0; at < end; at++) {
        for (uint32_t fault = REFUSED; fault < FAULTS; fault++, ++*runs) {
            colibri_error error = {0};
            storage.reads = 0;
            set_fault(&storage, (enum fault)fault, at, 1);
            colibri_status status = open_image(&image, meta, &error);
            EXPECT(storage.fail_count == 0);
            if (status == COLIBRI_OK) /* the last byte of a companion is only asked for */
                EXPECT(harmless(&storage) || (fault == CORRUPT && storage.fail_file != 0));
            else
                EXPECT(!harmless(&storage) && status == error.status);
            if (status != COLIBRI_OK && fault != CORRUPT)
                EXPECT(status == (storage.fail_file != 0 ? COLIBRI_ERR_COMPANION : COLIBRI_ERR_STORAGE));
            EXPECT(open_image(&image, meta, &error) == COLIBRI_OK);
        }
    }
    free(meta);
}

static void sweep(struct run *r, const char *path, enum reading how, const char *name)
{
    static colibri_image image;
    static uint8_t *meta;
    colibri_error error = {0};
    uint32_t runs = 0, failed;
    faulty_storage(&storage, path, how);
    free(meta);
    meta = exact(META);
    if (open_image(&image, meta, &error) != COLIBRI_OK)
        stop(2, "open: %s", colibri_status_name(error.status));
    const uint32_t opened = storage.reads;
    r->image = &image;
    if (init(r, &error) != COLIBRI_OK)
        stop(2, "init: %s", colibri_status_name(error.status));
    const uint32_t begun = storage.reads;
    storage.records = &image;
    record(r);
    const uint32_t reads = storage.reads;
    failed = sweep_run(r, &runs);
    failed += sweep_records(r, &runs);
    sweep_init(r, opened, begun, &runs);
    sweep_open(opened, &runs);
    printf("%s: %u reads, %u runs, %u calls failed and were repeated\n", name, (unsigned)reads, (unsigned)runs,
           (unsigned)failed);
}

/* A storage that only maps gives the same; so does one that has no way to wait. */
static void without_reads(struct run *r)
{
    colibri_error error = {0};
    for (uint32_t i = 0; i < 3; i++) {
        if (i != 0)
            storage.storage.start = NULL; /* first it is half of a pair */
        storage.storage.wait = NULL;
        storage.storage.struct_bytes = i != 2 ? sizeof storage.storage : (uint32_t)offsetof(colibri_storage, start);
        storage.fail_count = 0;
        EXPECT(init(r, &error) == COLIBRI_OK);
        for (uint32_t call = 0, crc; call < r->calls; call++)
            EXPECT(infer(r, call, &error, &crc) == COLIBRI_OK && crc == expected[call]);
    }
}

/* What mapped weights give. */
static void expect(struct run *r, const char *path)
{
    static colibri_image image;
    colibri_error error = {0};
    faulty_storage(&storage, path, MAPPED);
    if (open_image(&image, NULL, &error) != COLIBRI_OK)
        stop(2, "open: %s", colibri_status_name(error.status));
    logits = (float *)(void *)exact(image.config.vocabulary * sizeof *logits);
    r->image = &image;
    if (init(r, &error) != COLIBRI_OK)
        stop(2, "init: %s", colibri_status_name(error.status));
    for (uint32_t call = 0; call < r->calls; call++)
        EXPECT(infer(r, call, &error, &expected[call]) == COLIBRI_OK);
    free(r->memory);
    r->memory = NULL;
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
    static struct run run;
    if (argc != 8)
        stop(2, "usage: stream IMAGE SLOTS POLICY TOKENS PROFILE KERNELS CALLS");
    run.limits = (colibri_limits){.struct_bytes = sizeof run.limits, .sequences = 1, .batch = 8,
                                  .context = number(argv[4]), .profile = number(argv[5])};
    run.calls = number(argv[4]) - PROMPT + 1;
    EXPECT(number(argv[4]) > PROMPT && run.calls <= MAX_CALLS);
    for (uint32_t i = 0; i <= number(argv[6]); i++)
        run.kernels = kernel_table(i) != NULL ? kernel_table(i) : run.kernels;
    go_on = number(argv[7]);
    expect(&run, argv[1]);
    run.limits.weights = COLIBRI_WEIGHTS_STREAMED;
    run.limits.expert_slots = number(argv[2]);
    run.limits.policy = number(argv[3]);
    sweep(&run, argv[1], OVERLAPPED, "start and wait");
    sweep(&run, argv[1], BLOCKING, "read");
    sweep(&run, argv[1], MAPPED, "start, wait and map");
    without_reads(&run);
    return 0;
}
