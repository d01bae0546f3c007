/* SPDX-License-Identifier: Apache-2.0 */
/* Two images in one memory, one after the other and side by side, with no allocation:
 *   switch IMAGE IMAGE WEIGHTS SLOTS   (WEIGHTS as in colibri_limits; SLOTS: of streamed experts, 0: the fewest)
 * Everything must give the logits that each image gives in memory of its own. The linker sends the runtime's calls
 * of malloc and its like to the functions below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { CONTEXT = 24, PAINT = 0xC5, ALIGNMENT = 64, MARGIN = 4096 };

static uint32_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    allocations++;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocations++;
    return __real_realloc(memory, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    allocations++;
    return __real_posix_memalign(memory, alignment, bytes);
}

/* An image, its limits, and the checksum of each step's logits in memory of its own. */
struct model {
    colibri_image image;
    colibri_storage storage;
    struct memory memory;
    colibri_limits limits;
    uint32_t expected[CONTEXT];
};

static struct model models[2];
static float *logits;

/* One more token; checksum of the logits. */
static uint32_t next(struct model *m, colibri_engine *engine, uint32_t step)
{
    uint32_t token = (step * 7919u + 3u) % m->image.config.vocabulary, crc = 0;
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = 1, .tokens = &token, .logits = logits,
                           .logits_floats = m->image.config.vocabulary};
    colibri_error error = {0};
    if (colibri_infer(engine, &batch, &error) != COLIBRI_OK)
        stop(1, "infer: %s (where %u)", colibri_status_name(error.status), (unsigned)error.where);
    for (uint32_t v = 0; v < m->image.config.vocabulary; v++)
        crc = crc_u32(crc, bits_of(logits[v]));
    return crc;
}

static void plan_in(const struct model *m, const colibri_region *regions, uint32_t count, colibri_plan_result *plan)
{
    colibri_error error = {0};
    if (colibri_plan(&m->image, &m->limits, regions, count, plan, &error) != COLIBRI_OK)
        stop(1, "plan: %s, region %u needs %llu bytes", colibri_status_name(error.status), (unsigned)error.where,
             (unsigned long long)error.need);
}

static void init_in(const struct model *m, colibri_engine *engine, const colibri_region *regions, uint32_t count)
{
    colibri_error error = {0};
    if (colibri_init(engine, &m->image, &m->limits, regions, count, NULL, &error) != COLIBRI_OK)
        stop(1, "init: %s", colibri_status_name(error.status));
}

/* Limits with everything said, and what is to be expected. */
static void prepare(struct model *m, const char *path, uint32_t weights, uint32_t slots)
{
    size_t bytes;
    uint8_t *file = load_file(path, &bytes);
    colibri_region all = {.size = UINT64_MAX}, own = {0};
    colibri_plan_result plan;
    colibri_engine engine;
    memory_storage(&m->storage, &m->memory, file, bytes, 1, 1);
    if (colibri_image_open(&m->image, &m->storage, NULL, 0, NULL) != COLIBRI_OK)
        stop(2, "%s cannot be opened", path);
    m->limits = (colibri_limits){.struct_bytes = sizeof m->limits, .sequences = 1, .context = CONTEXT, .batch = 3,
                                 .weights = weights, .expert_slots = slots};
    if (weights >= COLIBRI_WEIGHTS_STREAMED && slots == 0)
        m->limits.expert_slots = m->image.config.top_k;
    plan_in(m, &all, 1, &plan);
    own.size = plan.total_bytes;
    own.base = exact((size_t)own.size);
    init_in(m, &engine, &own, 1);
    for (uint32_t i = 0; i < CONTEXT; i++)
        m->expected[i] = next(m, &engine, i);
    free(own.base);
}

/* One after the other in the memory of the larger one, with one handle and with two. */
static void take_turns(void)
{
    colibri_region all = {.size = UINT64_MAX}, region = {0};
    colibri_plan_result plan;
    static colibri_engine engine, other;
    uint32_t token = 0;
    for (uint32_t i = 0; i < 2; i++) {
        plan_in(&models[i], &all, 1, &plan);
        region.size = plan.total_bytes > region.size ? plan.total_bytes : region.size;
    }
    region.base = exact((size_t)region.size);
    const uint32_t before = allocations;
    for (uint32_t turn = 0; turn < 5; turn++) {
        struct model *m = &models[turn % 2];
        init_in(m, &engine, &region, 1);
        for (uint32_t i = 0; i < CONTEXT; i++)
            EXPECT(next(m, &engine, i) == m->expected[i]);
    }
    init_in(&models[1], &other, &region, 1);
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = 1, .tokens = &token, .logits = logits,
                           .logits_floats = UINT32_MAX};
    colibri_error error;
    EXPECT(colibri_infer(&engine, &batch, &error) == COLIBRI_ERR_ARGUMENT && error.where == 1);
    EXPECT(colibri_reset(&engine, 0) == COLIBRI_ERR_ARGUMENT && colibri_length(&engine, 0) == 0);
    EXPECT(next(&models[1], &other, 0) == models[1].expected[0]);
    /* what cannot be planned leaves the engine that is there */
    colibri_region little = {.base = region.base, .size = 64};
    EXPECT(colibri_init(&engine, &models[0].image, &models[0].limits, &little, 1, NULL, NULL) == COLIBRI_ERR_MEMORY);
    EXPECT(next(&models[1], &other, 1) == models[1].expected[1]);
    /* what fails while it loads does not: its memory has been written */
    if (models[0].limits.weights == COLIBRI_WEIGHTS_LOADED) {
        colibri_storage broken = models[0].storage, *working = &models[0].storage;
        struct memory failing = models[0].memory;
        failing.reads_left = 0;
        broken.map = NULL;
        broken.context = &failing;
        models[0].image.storage = &broken;
        EXPECT(colibri_init(&engine, &models[0].image, &models[0].limits, &region, 1, NULL, NULL) ==
               COLIBRI_ERR_STORAGE);
        EXPECT(colibri_infer(&other, &batch, &error) == COLIBRI_ERR_ARGUMENT);
        EXPECT(colibri_infer(&engine, &batch, &error) == COLIBRI_ERR_ARGUMENT);
        models[0].image.storage = working;
    }
    EXPECT(allocations == before);
    free(region.base);
}

/* Paints what engines share: nothing in it may be needed by the next call. */
static void paint_shared(const colibri_region *regions, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        if (regions[r].use == COLIBRI_REGION_WORK)
            memset(regions[r].base, PAINT, (size_t)regions[r].size);
}

/* Bytes of a region for both: what the first takes, and what the second takes of the rest. shared: whether all that
 * the second's calls use is shared. */
static uint64_t both(const struct model *a, const struct model *b, int *shared)
{
    colibri_region all = {.size = UINT64_MAX / 2}, left[COLIBRI_MAX_REGIONS];
    colibri_plan_result plan, beside;
    uint32_t count;
    plan_in(a, &all, 1, &plan);
    EXPECT(colibri_plan_beside(&plan, &all, left, &count, NULL) == COLIBRI_OK && count == 2);
    EXPECT(left[0].use == COLIBRI_REGION_WORK && left[1].use == COLIBRI_REGION_ANY);
    plan_in(b, left, count, &beside);
    colibri_region after[COLIBRI_MAX_REGIONS];
    EXPECT(colibri_plan_beside(&beside, left, after, &count, NULL) == COLIBRI_OK);
    EXPECT(after[0].use == COLIBRI_REGION_WORK && after[0].size == left[0].size);
    *shared = count == 2; /* nothing of the tail is lent */
    EXPECT(beside.used[0] != 0 && beside.used[0] <= left[0].size);
    EXPECT(beside.total_bytes == beside.used[0] + beside.used[1]);
    return plan.total_bytes + beside.used[1];
}

/* Side by side in exactly so many bytes: calls alternate, sequences go on. */
static void side_by_side(struct model *a, struct model *b)
{
    int shared;
    const uint64_t size = both(a, b, &shared);
    uint8_t *memory = exact((size_t)size + MARGIN);
    memset(memory, PAINT, (size_t)size + MARGIN);
    colibri_region region = {.base = memory, .size = size}, left[COLIBRI_MAX_REGIONS];
    colibri_plan_result plan;
    colibri_error error;
    uint32_t count;
    static colibri_engine engines[2];
    const uint32_t before = allocations;
    plan_in(a, &region, 1, &plan);
    EXPECT(colibri_plan_beside(&plan, &region, left, &count, NULL) == COLIBRI_OK && count == 2);
    EXPECT((uint8_t *)left[1].base == memory + plan.used[0] && left[1].size == size - plan.used[0]);
    init_in(a, &engines[0], &region, 1);
    const uint64_t works = left[1].size;
    for (uint64_t less = 0; shared && less < works; less += works / 7 + 1) { /* refused, with the number that works */
        left[1].size = less != 0 ? works - less : works - 1;
        EXPECT(colibri_init(&engines[1], &b->image, &b->limits, left, count, NULL, &error) == COLIBRI_ERR_MEMORY);
        EXPECT(error.where == 1 && error.have == left[1].size && error.need == works);
    }
    left[1].size = works;
    init_in(b, &engines[1], left, count);
    EXPECT(colibri_high_water(&engines[0], 0) == plan.used[0] && colibri_high_water(&engines[1], 1) == works);
    for (uint32_t i = 0; i < CONTEXT; i++) {
        paint_shared(left, count);
        EXPECT(next(a, &engines[0], i) == a->expected[i]);
        paint_shared(left, count);
        EXPECT(next(b, &engines[1], i) == b->expected[i]);
    }
    EXPECT(colibri_length(&engines[0], 0) == CONTEXT && colibri_length(&engines[1], 0) == CONTEXT);
    /* the second can be replaced while the first stays */
    init_in(b, &engines[1], left, count);
    EXPECT(next(b, &engines[1], 0) == b->expected[0] && colibri_length(&engines[0], 0) == CONTEXT);
    EXPECT(allocations == before);
    for (uint32_t i = 0; i < MARGIN; i++)
        EXPECT(memory[size + i] == PAINT);
    printf("%llu%s ", (unsigned long long)size, shared ? " shared" : "");
    free(memory);
}

/* Regions that cannot be: nothing for what is kept, more parts than a plan takes. */
static void refused(void)
{
    colibri_region work = {.size = UINT64_MAX / 2, .use = COLIBRI_REGION_WORK}, many[COLIBRI_MAX_REGIONS];
    colibri_region left[COLIBRI_MAX_REGIONS];
    colibri_plan_result plan;
    colibri_error error;
    uint32_t count;
    EXPECT(colibri_plan(&models[0].image, &models[0].limits, &work, 1, &plan, &error) == COLIBRI_ERR_ARGUMENT);
    EXPECT(error.where == 3);
    for (uint32_t i = 0; i < COLIBRI_MAX_REGIONS; i++)
        many[i] = (colibri_region){.size = i + 1 < COLIBRI_MAX_REGIONS ? 64 : UINT64_MAX / 2, .rank = i};
    plan_in(&models[0], many, COLIBRI_MAX_REGIONS, &plan);
    EXPECT(colibri_plan_beside(&plan, many, left, &count, &error) == COLIBRI_ERR_ARGUMENT);
    EXPECT(error.where == 2 && error.have == count && error.need == COLIBRI_MAX_REGIONS && count > error.need);
    EXPECT(colibri_plan_beside(NULL, many, left, &count, &error) == COLIBRI_ERR_ARGUMENT);
    colibri_region one = {.size = UINT64_MAX / 2};
    plan_in(&models[0], &one, 1, &plan);
    one.size = plan.used[0] - 1; /* another region than the plan's */
    EXPECT(colibri_plan_beside(&plan, &one, left, &count, &error) == COLIBRI_ERR_ARGUMENT);
    EXPECT(error.where == 2 && error.have == one.size && error.need == plan.used[0]);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        stop(2, "usage: switch IMAGE IMAGE WEIGHTS SLOTS");
    logits = (float *)(void *)exact(65536 * sizeof *logits);
    for (int i = 0; i < 2; i++)
        prepare(&models[i], argv[1 + i], (uint32_t)strtoul(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
    EXPECT(allocations != 0); /* they are counted */
    take_turns();
    side_by_side(&models[0], &models[1]);
    side_by_side(&models[1], &models[0]);
    side_by_side(&models[1], &models[1]);
    refused();
    printf("\n");
    return 0;
}
