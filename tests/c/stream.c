/* SPDX-License-Identifier: Apache-2.0 */
/* Experts streamed from a storage that overlaps reads and can fail at each of them:
 *   stream IMAGE SLOTS POLICY TOKENS PROFILE   (numbers as in colibri_limits)
 * Every read of the run meets every fault, once (the runtime tries again) and as often as it tries (the call
 * fails, says where, and is repeated). All runs must give the logits of mapped weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#define EXPECT(condition)                                             \
    do {                                                              \
        if (!(condition)) stop(1, "line %d: %s", __LINE__, #condition); \
    } while (0)

enum { ATTEMPTS = 3, MAX_UNDER_WAY = COLIBRI_READS_UNDER_WAY + 1, /* + one begun again */
       PROMPT = 11 };
enum fault { NONE, REFUSED, FAILED, SHORT, LATE, CORRUPT, FAULTS };

static colibri_image image, mapped_image;
static uint8_t *file;
static size_t file_bytes;
static float *logits;
static uint32_t tokens;

struct request {
    uint64_t offset;
    uint8_t *destination;
    uint64_t bytes;
    enum fault fault;
    int given; /* its bytes have been written */
    int again; /* not the first read of a record that failed */
    int ended;
};

/* Reads under way, oldest first; tickets count from 0. */
struct device {
    struct request requests[MAX_UNDER_WAY];
    uint32_t first, end;
    uint32_t starts;  /* of the run */
    uint32_t fail_at; /* the n-th start from 0, ... */
    uint32_t fail_count; /* ... and further reads of the same record, this many in all */
    enum fault fault;
    uint64_t fail_offset;
    uint64_t bytes;   /* that arrived as they should */
    int blocking;     /* no start and wait: read alone */
};

static struct device device;

/* Only whole records are asked for, to places that are aligned as the image is. */
static void check_request(uint64_t offset, const void *destination, uint64_t bytes)
{
    uint32_t alignment = (uint32_t)file[48] | (uint32_t)file[49] << 8 | (uint32_t)file[50] << 16;
    colibri_expert record;
    uint32_t i = 0;
    while (colibri_image_expert(&image, i, &record) == COLIBRI_OK && record.offset != offset)
        i++;
    EXPECT(i < image.expert_count && record.bytes == bytes);
    EXPECT((uintptr_t)destination % alignment == 0);
}

static enum fault next_fault(uint64_t offset)
{
    uint32_t n = device.starts++;
    if (n == device.fail_at)
        device.fail_offset = offset;
    if (n < device.fail_at || offset != device.fail_offset || device.fail_count == 0)
        return NONE;
    device.fail_count--;
    return device.fault;
}

static void give(struct request *r)
{
    if (r->given)
        return;
    r->given = 1;
    uint64_t n = r->fault == SHORT ? r->bytes / 2 : r->fault == FAILED ? 0 : r->bytes;
    memcpy(r->destination, file + r->offset, (size_t)n);
    if (r->fault == CORRUPT)
        r->destination[r->bytes - 1] ^= 0x10;
}

static int start(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes, uint32_t *ticket)
{
    (void)context;
    EXPECT(number == 0 && device.end - device.first < MAX_UNDER_WAY);
    check_request(offset, destination, bytes);
    for (uint32_t i = device.first; i != device.end; i++)
        EXPECT(device.requests[i % MAX_UNDER_WAY].ended || device.requests[i % MAX_UNDER_WAY].destination != destination);
    memset(destination, 0xA5, (size_t)bytes); /* whoever computes before the wait sees it */
    struct request r = {offset, destination, bytes, next_fault(offset), 0, offset == device.fail_offset, 0};
    if (r.fault == REFUSED)
        return -1;
    *ticket = device.end++;
    device.requests[*ticket % MAX_UNDER_WAY] = r;
    return 0;
}

/* Younger reads finish first, the one that is waited for last. */
static int wait(void *context, uint32_t ticket)
{
    (void)context;
    struct request *r = &device.requests[ticket % MAX_UNDER_WAY];
    EXPECT(ticket - device.first < device.end - device.first && !r->ended);
    EXPECT(ticket == device.first || r->again);
    for (uint32_t i = device.end; i-- != device.first;)
        if (device.requests[i % MAX_UNDER_WAY].fault != LATE || i == ticket)
            give(&device.requests[i % MAX_UNDER_WAY]);
    r->ended = 1;
    while (device.first != device.end && device.requests[device.first % MAX_UNDER_WAY].ended)
        device.first++;
    if (r->fault == FAILED || r->fault == SHORT)
        return 5;
    device.bytes += r->fault != CORRUPT ? r->bytes : 0;
    return 0;
}

static int read_now(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes)
{
    (void)context;
    EXPECT(number == 0 && offset + bytes <= file_bytes);
    if (tokens == 0) { /* before the run: the dense part */
        memcpy(destination, file + offset, (size_t)bytes);
        return 0;
    }
    EXPECT(device.blocking || device.fault == REFUSED);
    check_request(offset, destination, bytes);
    struct request r = {offset, destination, bytes, device.blocking ? next_fault(offset) : NONE, 0, 0, 0};
    give(&r);
    device.bytes += r.fault == NONE || r.fault == LATE ? bytes : 0;
    return r.fault == REFUSED || r.fault == FAILED || r.fault == SHORT;
}

static void make_engine(colibri_engine *engine, const colibri_image *of, const colibri_limits *limits)
{
    static uint8_t *memory;
    colibri_region region = {.size = UINT64_MAX};
    colibri_plan_result plan;
    colibri_error error = {0};
    uint32_t kept = tokens;
    tokens = 0;
    if (colibri_plan(of, limits, &region, 1, &plan, &error) != COLIBRI_OK)
        stop(2, "plan: %s %u %u", colibri_status_name(error.status), (unsigned)error.where, (unsigned)error.need);
    free(memory);
    memory = exact((size_t)plan.used[0]);
    region = (colibri_region){.base = memory, .size = plan.used[0]};
    if (colibri_init(engine, of, limits, &region, 1, NULL, &error) != COLIBRI_OK)
        stop(2, "init: %s", colibri_status_name(error.status));
    tokens = kept;
}

/* The failed read is named, and nothing is under way. */
static void check_failure(colibri_status status, const colibri_error *error)
{
    uint32_t index = 0, layer = 0, expert = error->where & 0xFFFFu;
    colibri_expert record;
    EXPECT(status == (device.fault == CORRUPT ? COLIBRI_ERR_CORRUPT : COLIBRI_ERR_STORAGE));
    EXPECT(error->status == status && error->have == device.fail_offset && device.fail_count == 0);
    for (; layer < error->where >> 16; layer++) {
        colibri_layer kind;
        colibri_image_layer(&image, layer, &kind);
        index += kind.ffn & COLIBRI_FFN_MOE ? image.config.experts - image.config.identities : 0;
    }
    EXPECT(colibri_image_expert(&image, index + expert, &record) == COLIBRI_OK);
    EXPECT(record.offset == error->have && record.bytes == error->need);
    EXPECT(device.first == device.end);
}

static uint32_t token_at(uint32_t i)
{
    return i * 7919u % image.config.vocabulary;
}

static colibri_status feed(colibri_engine *engine, uint32_t from, uint32_t count, colibri_error *error)
{
    uint32_t ids[PROMPT + 256];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = token_at(from + i);
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = ids, .logits = logits,
                           .logits_floats = image.config.vocabulary};
    return colibri_infer(engine, &batch, error);
}

/* The sequence is as it was. A recurrent state cannot go back: it is fed again, as far as it was. */
static void mend(colibri_engine *engine, uint32_t length)
{
    colibri_error error = {0};
    if (image.conv_layers + image.linear_layers == 0) {
        EXPECT(colibri_length(engine, 0) == length);
        return;
    }
    EXPECT(feed(engine, length, 1, &error) == COLIBRI_ERR_BROKEN && colibri_reset(engine, 0) == COLIBRI_OK);
    for (uint32_t i = 0; i < length; i++)
        EXPECT(feed(engine, i, 1, &error) == COLIBRI_OK);
}

/* A prompt, then token by token; checksum of all logits. failures: calls that failed and were repeated. */
static uint32_t run(colibri_engine *engine, uint32_t *failures)
{
    uint32_t crc = 0;
    *failures = 0;
    for (uint32_t done = 0; done < tokens;) {
        uint32_t count = done == 0 ? PROMPT : 1;
        colibri_error error = {0};
        colibri_status status = feed(engine, done, count, &error);
        if (status != COLIBRI_OK) {
            EXPECT(device.fault != NONE);
            check_failure(status, &error);
            mend(engine, done);
            ++*failures;
            continue;
        }
        crc = colibri_crc32(crc, logits, image.config.vocabulary * sizeof *logits);
        done += count;
    }
    return crc;
}

static uint32_t faulty_run(colibri_engine *engine, enum fault fault, uint32_t at, uint32_t times, uint32_t *failures)
{
    device.first = device.end = device.starts = 0;
    device.fault = fault;
    device.fail_at = at;
    device.fail_count = times;
    device.fail_offset = 0;
    device.bytes = 0;
    return run(engine, failures);
}

static void sweep(const colibri_limits *limits, uint32_t expected)
{
    colibri_engine engine;
    uint32_t failures, runs = 0, failed = 0;
    make_engine(&engine, &image, limits);
    EXPECT(faulty_run(&engine, NONE, UINT32_MAX, 0, &failures) == expected);
    uint32_t reads = device.starts;
    colibri_expert_stats stats = {.struct_bytes = sizeof stats};
    EXPECT(colibri_expert_statistics(&engine, &stats) == COLIBRI_OK);
    EXPECT(stats.misses == reads && stats.bytes_read == device.bytes && stats.retries == 0 && reads != 0);
    for (uint32_t fault = REFUSED; fault < FAULTS; fault++) {
        for (uint32_t at = 0; at < reads; at++) {
            for (uint32_t times = 1; times <= ATTEMPTS; times += ATTEMPTS - 1, runs++) {
                int harmless = fault == LATE || (fault == REFUSED && !device.blocking);
                make_engine(&engine, &image, limits);
                EXPECT(faulty_run(&engine, fault, at, times, &failures) == expected);
                EXPECT(failures == (times == ATTEMPTS && !harmless));
                (void)colibri_expert_statistics(&engine, &stats);
                EXPECT(stats.bytes_read == device.bytes && stats.retries == (harmless ? 0 : times - failures));
                failed += failures;
            }
        }
    }
    printf("%s: %u reads, %u runs, %u calls failed and were repeated\n", device.blocking ? "read" : "start and wait",
           (unsigned)reads, (unsigned)runs, (unsigned)failed);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        stop(2, "usage: stream IMAGE SLOTS POLICY TOKENS PROFILE");
    file = load_file(argv[1], &file_bytes);
    colibri_storage mapping, storage = {.struct_bytes = sizeof storage, .bytes = file_bytes, .read = read_now,
                                        .start = start, .wait = wait};
    struct memory memory;
    colibri_error error = {0};
    memory_storage(&mapping, &memory, file, file_bytes, 1, 0);
    uint8_t *meta = exact(1 << 20);
    if (colibri_image_open(&mapped_image, &mapping, NULL, 0, &error) != COLIBRI_OK ||
        colibri_image_open(&image, &storage, meta, 1 << 20, &error) != COLIBRI_OK)
        stop(2, "open: %s", colibri_status_name(error.status));
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .batch = 8};
    limits.profile = (uint32_t)strtoul(argv[5], NULL, 10);
    limits.context = tokens = (uint32_t)strtoul(argv[4], NULL, 10);
    logits = (float *)(void *)exact(image.config.vocabulary * sizeof *logits);
    colibri_engine engine;
    uint32_t failures;
    make_engine(&engine, &mapped_image, &limits);
    const uint32_t expected = run(&engine, &failures);
    limits.weights = COLIBRI_WEIGHTS_STREAMED;
    limits.expert_slots = (uint32_t)strtoul(argv[2], NULL, 10);
    limits.policy = (uint32_t)strtoul(argv[3], NULL, 10);
    sweep(&limits, expected);
    storage.start = NULL;
    storage.wait = NULL;
    device.blocking = 1;
    sweep(&limits, expected);
    return 0;
}
