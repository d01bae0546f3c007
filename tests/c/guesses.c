/* SPDX-License-Identifier: Apache-2.0 */
/* Reads on a guess (limits.prefetch), from a storage that overlaps reads and fails at each of them:
 *   guesses IMAGE SLOTS POLICY TOKENS BALANCE
 * No schedule changes a logit or leaves a read under way; a guess that fails is no error of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { ATTEMPTS = 3, MAX_UNDER_WAY = COLIBRI_READS_UNDER_WAY + 1, PROMPT = 5 };
enum fault { NONE, REFUSED, FAILED, CORRUPT, FAULTS };

static colibri_image image, mapped_image;
static uint8_t *file;
static float *logits;

struct request {
    uint64_t offset;
    uint8_t *destination;
    uint64_t bytes;
    enum fault fault;
    int again;
    int ended;
};

static struct {
    struct request requests[MAX_UNDER_WAY];
    uint32_t first, end;
    uint32_t starts, fail_at, fail_count;
    enum fault fault;
    uint64_t fail_offset;
    uint64_t bytes;
    uint32_t guesses, refused; /* told by the trace, and by the device */
} device;

static int start(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes, uint32_t *ticket)
{
    (void)context, (void)number;
    EXPECT(device.end - device.first < MAX_UNDER_WAY);
    for (uint32_t i = device.first; i != device.end; i++) {
        const struct request *r = &device.requests[i % MAX_UNDER_WAY];
        EXPECT(r->ended || (r->destination != destination && r->offset != offset));
    }
    memset(destination, 0xA5, (size_t)bytes); /* whoever computes with it sees it */
    if (device.starts++ == device.fail_at)
        device.fail_offset = offset;
    struct request r = {offset, destination, bytes, NONE, offset == device.fail_offset, 0};
    if (device.starts > device.fail_at && r.again && device.fail_count != 0) {
        device.fail_count--;
        r.fault = device.fault;
    }
    device.refused += r.fault == REFUSED;
    if (r.fault == REFUSED)
        return -1;
    *ticket = device.end++;
    device.requests[*ticket % MAX_UNDER_WAY] = r;
    return 0;
}

/* In the order of the starts, but for a record that had to be begun again. */
static int wait(void *context, uint32_t ticket)
{
    (void)context;
    struct request *r = &device.requests[ticket % MAX_UNDER_WAY];
    EXPECT(ticket - device.first < device.end - device.first && !r->ended);
    EXPECT(ticket == device.first || r->again);
    memcpy(r->destination, file + r->offset, r->fault == FAILED ? 0 : (size_t)r->bytes);
    r->destination[r->bytes - 1] ^= r->fault == CORRUPT ? 0x10 : 0;
    r->ended = 1;
    while (device.first != device.end && device.requests[device.first % MAX_UNDER_WAY].ended)
        device.first++;
    device.bytes += r->fault == NONE ? r->bytes : 0;
    return r->fault == FAILED;
}

static int read_now(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes)
{
    (void)context, (void)number;
    memcpy(destination, file + offset, (size_t)bytes);
    device.bytes += bytes;
    return 0;
}

static void count_guesses(void *context, const colibri_event *event)
{
    (void)context;
    device.guesses += event->kind == COLIBRI_EVENT_READ && event->count == 0;
}

static void make_engine(colibri_engine *engine, const colibri_image *of, const colibri_limits *limits)
{
    static uint8_t *memory;
    static const colibri_platform platform = {.struct_bytes = sizeof platform, .trace = count_guesses};
    colibri_region region = {.size = UINT64_MAX};
    colibri_plan_result plan;
    colibri_error error = {0};
    if (colibri_plan(of, limits, &region, 1, &plan, &error) != COLIBRI_OK)
        stop(2, "plan: %s %u", colibri_status_name(error.status), (unsigned)error.where);
    free(memory);
    memory = exact((size_t)plan.used[0]);
    memset(memory, 0xA5, (size_t)plan.used[0]);
    region = (colibri_region){.base = memory, .size = plan.used[0]};
    if (colibri_init(engine, of, limits, &region, 1, &platform, &error) != COLIBRI_OK)
        stop(2, "init: %s", colibri_status_name(error.status));
}

/* A prompt, then token by token; a call that failed is repeated. Checksum of all logits. */
static uint32_t run(colibri_engine *engine, uint32_t tokens, uint32_t *failures)
{
    uint32_t crc = 0, ids[PROMPT];
    *failures = 0;
    for (uint32_t done = 0; done < tokens;) {
        uint32_t n = done == 0 ? PROMPT : 1;
        for (uint32_t i = 0; i < n; i++)
            ids[i] = (done + i) * 7919u % image.config.vocabulary;
        colibri_batch batch = {.struct_bytes = sizeof batch, .count = n, .tokens = ids, .logits = logits,
                               .logits_floats = image.config.vocabulary};
        colibri_error error = {0};
        colibri_status status = colibri_infer(engine, &batch, &error);
        EXPECT(device.first == device.end && colibri_length(engine, 0) == done + (status == COLIBRI_OK ? n : 0));
        if (status != COLIBRI_OK) {
            EXPECT(status == (device.fault == CORRUPT ? COLIBRI_ERR_CORRUPT : COLIBRI_ERR_STORAGE));
            EXPECT(error.have == device.fail_offset && device.fail_count == 0 && ++*failures == 1);
            continue;
        }
        crc = colibri_crc32(crc, logits, image.config.vocabulary * sizeof *logits);
        done += n;
    }
    return crc;
}

static uint32_t faulty_run(const colibri_limits *limits, enum fault fault, uint32_t at, uint32_t times,
                           uint32_t *failures, colibri_expert_stats *stats)
{
    colibri_engine engine;
    make_engine(&engine, &image, limits);
    memset(&device, 0, sizeof device);
    device.fault = fault;
    device.fail_at = at;
    device.fail_count = times;
    uint32_t crc = run(&engine, limits->context, failures);
    *stats = (colibri_expert_stats){.struct_bytes = sizeof *stats};
    EXPECT(colibri_expert_statistics(&engine, stats) == COLIBRI_OK);
    EXPECT(stats->prefetched == device.guesses && stats->prefetched_used <= stats->prefetched);
    EXPECT(stats->bytes_read == device.bytes);
    return crc;
}

/* An older caller's struct ends before what is counted of guesses. */
static void check_old_struct(const colibri_limits *limits)
{
    colibri_engine engine;
    colibri_expert_stats stats;
    const uint32_t old = (uint32_t)offsetof(colibri_expert_stats, retries) + 8u; /* where the first ones end */
    make_engine(&engine, &image, limits);
    memset(&stats, 0x5A, sizeof stats);
    stats.struct_bytes = old;
    EXPECT(colibri_expert_statistics(&engine, &stats) == COLIBRI_OK);
    EXPECT(stats.struct_bytes == old && stats.slots == limits->expert_slots && stats.hits == 0);
    EXPECT(stats.prefetched_wasted_bytes == 0x5A5A5A5A5A5A5A5Au);
    stats.struct_bytes = old - 1;
    EXPECT(colibri_expert_statistics(&engine, &stats) == COLIBRI_ERR_ARGUMENT);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        stop(2, "usage: guesses IMAGE SLOTS POLICY TOKENS BALANCE");
    size_t bytes;
    file = load_file(argv[1], &bytes);
    colibri_storage mapping, storage = {.struct_bytes = sizeof storage, .bytes = bytes, .read = read_now,
                                        .start = start, .wait = wait};
    struct memory memory;
    colibri_error error = {0};
    memory_storage(&mapping, &memory, file, bytes, 1, 0);
    if (colibri_image_open(&mapped_image, &mapping, NULL, 0, &error) != COLIBRI_OK ||
        colibri_image_open(&image, &storage, exact(1 << 20), 1 << 20, &error) != COLIBRI_OK)
        stop(2, "open: %s", colibri_status_name(error.status));
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .batch = 4};
    limits.context = (uint32_t)strtoul(argv[4], NULL, 10);
    limits.balance = (uint32_t)strtoul(argv[5], NULL, 10);
    logits = (float *)(void *)exact(image.config.vocabulary * sizeof *logits);
    colibri_engine engine;
    colibri_expert_stats stats, clean;
    uint32_t failures, failed = 0, runs = 0;
    make_engine(&engine, &mapped_image, &limits);
    const uint32_t expected = run(&engine, limits.context, &failures);
    limits.weights = COLIBRI_WEIGHTS_STREAMED;
    limits.expert_slots = (uint32_t)strtoul(argv[2], NULL, 10);
    limits.policy = (uint32_t)strtoul(argv[3], NULL, 10);
    limits.prefetch = COLIBRI_PREFETCH_ON;
    check_old_struct(&limits);
    EXPECT(faulty_run(&limits, NONE, UINT32_MAX, 0, &failures, &clean) == expected && clean.prefetched != 0);
    EXPECT((clean.prefetched_used < clean.prefetched) == (clean.prefetched_wasted_bytes != 0));
    EXPECT(clean.misses + clean.prefetched == device.starts);
    for (uint32_t fault = REFUSED; fault < FAULTS; fault++)
        for (uint32_t at = 0; at < clean.misses + clean.prefetched; at++)
            for (uint32_t times = 1; times <= ATTEMPTS; times += ATTEMPTS - 1, runs++) {
                EXPECT(faulty_run(&limits, fault, at, times, &failures, &stats) == expected);
                EXPECT(failures == 0 || (times == ATTEMPTS && fault != REFUSED));
                failed += failures;
            }
    storage.start = NULL; /* nothing can be read beside: nothing is guessed */
    EXPECT(faulty_run(&limits, NONE, UINT32_MAX, 0, &failures, &stats) == expected && stats.prefetched == 0);
    printf("%u misses, %u guesses, %u used, %u runs, %u calls failed and were repeated\n", (unsigned)clean.misses,
           (unsigned)clean.prefetched, (unsigned)clean.prefetched_used, (unsigned)runs, (unsigned)failed);
    return 0;
}
