/* SPDX-License-Identifier: Apache-2.0 */
/* Exact memory: every region size below the plan is refused with the number that works, the plan itself works,
 * and nothing outside of it is touched.
 *   arena IMAGE CONTEXT BATCH KV PROFILE WEIGHTS SLOTS     (numbers as in colibri_limits; 0: the default) */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support.h"

enum { PAGE = 4096, MARGIN = 4 * PAGE, PAINT = 0xC5 };

static colibri_image image;
static colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1};

/* `size` bytes that end at a page which cannot be touched, behind a painted margin and another such page. */
static uint8_t *guarded(size_t size)
{
    size_t pages = (size + MARGIN + PAGE - 1) / PAGE * PAGE;
    uint8_t *start = mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start + PAGE, pages, PROT_READ | PROT_WRITE) != 0)
        stop(2, "no memory for %zu bytes", size);
    memset(start + PAGE, PAINT, pages);
    return start + PAGE + pages - size;
}

static void expect_paint(const uint8_t *p, size_t bytes, const char *where)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != PAINT)
            stop(1, "byte %zu %s was written", i, where);
}

/* Every size below the plan, in steps of eight bytes. */
static uint64_t sweep(const colibri_plan_result *plan, uint8_t *base)
{
    colibri_engine engine;
    uint64_t refused = 0;
    for (uint64_t size = 0; size < plan->used[0]; size += 8, refused++) {
        colibri_region region = {.base = base, .size = size};
        colibri_error error = {0};
        colibri_status status = colibri_init(&engine, &image, &limits, &region, 1, NULL, &error);
        if (status != COLIBRI_ERR_MEMORY || error.status != status)
            stop(1, "init with %llu bytes: %s", (unsigned long long)size, colibri_status_name(status));
        if (error.need != plan->used[0] || error.have != size || error.where != 0)
            stop(1, "init with %llu bytes says %llu are needed", (unsigned long long)size,
                 (unsigned long long)error.need);
        uint32_t token = 0;
        colibri_batch batch = {.struct_bytes = sizeof batch, .count = 1, .tokens = &token};
        if (colibri_infer(&engine, &batch, NULL) != COLIBRI_ERR_ARGUMENT)
            stop(1, "a failed init left an engine that runs");
    }
    return refused;
}

/* Fills the whole context in uneven batches; returns the checksum of the logits. */
static uint32_t run(colibri_engine *engine)
{
    uint32_t crc = 0, done = 0, vocabulary = image.config.vocabulary;
    float *logits = (float *)(void *)exact(vocabulary * sizeof *logits);
    for (uint32_t step = 0; done < limits.context; step++) {
        uint32_t tokens[64], count = step % 3 == 0 ? 64 : step % 3;
        count = count < limits.context - done ? count : limits.context - done;
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = (done + i) * 7919u % vocabulary;
        colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = tokens,
                               .logits = logits, .logits_floats = vocabulary};
        colibri_error error = {0};
        if (colibri_infer(engine, &batch, &error) != COLIBRI_OK)
            stop(1, "infer: %s", colibri_status_name(error.status));
        for (uint32_t v = 0; v < vocabulary; v++)
            crc = crc_u32(crc, bits_of(logits[v]));
        done += count;
    }
    free(logits);
    return crc;
}

/* Runs in `used + extra` bytes, of which only `used` may change. */
static uint32_t run_in(const colibri_plan_result *plan, size_t extra, const colibri_kernels *kernels)
{
    size_t used = (size_t)plan->used[0];
    uint8_t *base = guarded(used + extra);
    colibri_platform platform = {.struct_bytes = sizeof platform, .kernels = kernels};
    colibri_region region = {.base = base, .size = used + extra};
    colibri_error error = {0};
    static colibri_engine engine;
    if (colibri_init(&engine, &image, &limits, &region, 1, &platform, &error) != COLIBRI_OK)
        stop(1, "init with the plan's bytes: %s", colibri_status_name(error.status));
    if (colibri_high_water(&engine, 0) != used)
        stop(1, "high water is %llu, the plan %zu", (unsigned long long)colibri_high_water(&engine, 0), used);
    uint32_t crc = run(&engine);
    expect_paint(base - MARGIN, MARGIN, "before the region");
    expect_paint(base + used, extra, "after the plan");
    return crc;
}

int main(int argc, char **argv)
{
    if (argc != 8)
        stop(2, "usage: arena IMAGE CONTEXT BATCH KV PROFILE WEIGHTS SLOTS");
    size_t bytes;
    uint8_t *file = load_file(argv[1], &bytes);
    colibri_storage storage;
    struct memory memory;
    memory_storage(&storage, &memory, file, bytes, 1, 0);
    uint32_t *fields[] = {&limits.context, &limits.batch, &limits.kv, &limits.profile, &limits.weights,
                          &limits.expert_slots};
    for (int i = 0; i < 6; i++)
        *fields[i] = (uint32_t)strtoul(argv[i + 2], NULL, 10);
    colibri_region all = {.size = UINT64_MAX};
    colibri_plan_result plan;
    colibri_error error = {0};
    if (colibri_image_open(&image, &storage, NULL, 0, &error) != COLIBRI_OK ||
        colibri_plan(&image, &limits, &all, 1, &plan, &error) != COLIBRI_OK)
        stop(2, "plan: %s", colibri_status_name(error.status));
    if (plan.used[0] != plan.total_bytes)
        stop(1, "one region: used and total differ");
    limits.context = plan.limits.context;
    uint64_t refused = sweep(&plan, guarded((size_t)plan.used[0]));
    printf("refused %llu total %llu crc", (unsigned long long)refused, (unsigned long long)plan.total_bytes);
    for (uint32_t k = 0; kernel_table(k) != NULL; k++)
        for (size_t extra = 0; extra <= MARGIN; extra += MARGIN)
            printf(" %08x", (unsigned)run_in(&plan, extra, kernel_table(k)));
    printf("\n");
    return 0;
}
