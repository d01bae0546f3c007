/* SPDX-License-Identifier: Apache-2.0 */
/* What C callers may get wrong, and callers of an older header:   callers IMAGE */
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static colibri_image image;
static const colibri_limits small = {.struct_bytes = sizeof small, .sequences = 2, .context = 8, .batch = 3};
static colibri_region region;
static colibri_engine engine;
static float *logits;

static colibri_status give(uint32_t count, const uint32_t *tokens, const uint32_t *sequences, uint64_t floats,
                           colibri_error *error)
{
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = tokens,
                           .sequences = sequences, .logits = logits, .logits_floats = floats};
    return colibri_infer(&engine, &batch, error);
}

/* Limits as a caller compiled against a shorter struct has them: the bytes after it are not there. */
static void older_callers(void)
{
    colibri_plan_result plan, full;
    colibri_region all = {.size = UINT64_MAX};
    uint32_t words = offsetof(colibri_limits, batch) / 4;
    uint32_t *older = (uint32_t *)(void *)exact(words * 4);
    older[0] = words * 4;
    older[1] = 1;
    older[2] = 8;
    EXPECT(colibri_plan(&image, (const colibri_limits *)(const void *)older, &all, 1, &plan, NULL) == COLIBRI_OK);
    EXPECT(plan.limits.batch == 16 && plan.limits.workers == 1 && plan.limits.kv == COLIBRI_F32);
    EXPECT(plan.limits.struct_bytes == sizeof plan.limits);
    EXPECT(colibri_plan_max_context(&image, (const colibri_limits *)(const void *)older, &all, 1) ==
           image.config.context);
    colibri_limits newer = {.struct_bytes = sizeof newer, .sequences = 1, .context = 8};
    EXPECT(colibri_plan(&image, &newer, &all, 1, &full, NULL) == COLIBRI_OK);
    EXPECT(memcmp(&plan, &full, sizeof plan) == 0);
    colibri_platform *platform = (colibri_platform *)(void *)exact(8);
    uint32_t size = 8;
    memcpy(platform, &size, 4);
    EXPECT(colibri_init(&engine, &image, &small, &region, 1, platform, NULL) == COLIBRI_OK);
    free(older), free(platform);
}

static void wrong_arguments(void)
{
    colibri_error e;
    colibri_plan_result plan;
    colibri_image other;
    colibri_storage nothing = {.struct_bytes = sizeof nothing, .bytes = 1 << 20};
    EXPECT(colibri_image_open(NULL, &nothing, NULL, 0, &e) == COLIBRI_ERR_ARGUMENT && e.where == 1);
    EXPECT(colibri_image_open(&other, NULL, NULL, 0, &e) == COLIBRI_ERR_ARGUMENT && e.where == 2);
    EXPECT(colibri_image_open(&other, &nothing, NULL, 0, &e) == COLIBRI_ERR_ARGUMENT && e.where == 2);
    EXPECT(colibri_plan(&image, &small, &region, 0, &plan, &e) == COLIBRI_ERR_ARGUMENT && e.where == 4);
    EXPECT(colibri_plan(&image, &small, &region, 9, &plan, &e) == COLIBRI_ERR_ARGUMENT && e.need == 8);
    EXPECT(colibri_plan(NULL, &small, &region, 1, &plan, &e) == COLIBRI_ERR_ARGUMENT);
    EXPECT(colibri_plan(&image, NULL, &region, 1, &plan, NULL) == COLIBRI_ERR_ARGUMENT);
    EXPECT(colibri_plan_max_context(NULL, &small, &region, 1) == 0);
    EXPECT(colibri_init(NULL, &image, &small, &region, 1, NULL, &e) == COLIBRI_ERR_ARGUMENT);
    EXPECT(colibri_infer(NULL, NULL, &e) == COLIBRI_ERR_ARGUMENT);
    EXPECT(colibri_selftest(NULL, logits, &e) == COLIBRI_ERR_ARGUMENT && e.where == 1);
    EXPECT(colibri_verify(NULL, NULL, 0, &e) == COLIBRI_ERR_ARGUMENT && e.where == 1);
    EXPECT(colibri_reset(NULL, 0) == COLIBRI_ERR_ARGUMENT && colibri_length(NULL, 0) == 0);
    EXPECT(colibri_high_water(NULL, 0) == 0);
}

static void misplaced_memory(void)
{
    colibri_error e;
    colibri_region off = region;
    for (uint32_t by = 1; by < 64; by++) {
        off.base = (uint8_t *)region.base + by;
        EXPECT(colibri_init(&engine, &image, &small, &off, 1, NULL, &e) == COLIBRI_ERR_ALIGNMENT);
        EXPECT(e.where == 0 && e.have == by && e.need == 64);
        EXPECT(give(1, &(uint32_t){0}, NULL, 0, &e) == COLIBRI_ERR_ARGUMENT);
    }
    off.base = NULL;
    EXPECT(colibri_init(&engine, &image, &small, &off, 1, NULL, &e) == COLIBRI_ERR_ALIGNMENT);
    colibri_limits sixteen = small;
    sixteen.profile = COLIBRI_PROFILE_SMALL;
    off.base = (uint8_t *)region.base + 16;
    EXPECT(colibri_init(&engine, &image, &sixteen, &off, 1, NULL, &e) == COLIBRI_OK);
    off.base = (uint8_t *)region.base + 8;
    EXPECT(colibri_init(&engine, &image, &sixteen, &off, 1, NULL, &e) == COLIBRI_ERR_ALIGNMENT && e.need == 16);
}

static void never(void *context, uint32_t n, colibri_task fn, void *arg)
{
    (void)context, (void)n, (void)fn, (void)arg;
    stop(1, "a refused pool was used");
}

static void wide_pool(void)
{
    colibri_error e;
    colibri_pool pool = {.struct_bytes = sizeof pool, .workers = 2, .run = never};
    colibri_platform platform = {.struct_bytes = sizeof platform, .pool = &pool};
    EXPECT(colibri_init(&engine, &image, &small, &region, 1, &platform, &e) == COLIBRI_ERR_LIMIT);
    EXPECT(e.where == 4 && e.have == 1 && e.need == 2);
}

static void float_environment(void)
{
    colibri_error e;
    for (int i = 0; i < 3; i++) {
        fesetround((int[]){FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}[i]);
        colibri_status status = colibri_init(&engine, &image, &small, &region, 1, NULL, &e);
        fesetround(FE_TONEAREST);
        EXPECT(status == COLIBRI_ERR_FP_ENV);
    }
#ifdef __SSE__
    for (uint32_t bit = 0x40; bit <= 0x8000; bit = bit == 0x40 ? 0x8000 : 0x10000) { /* inputs, results flushed */
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | bit);
        colibri_status status = colibri_init(&engine, &image, &small, &region, 1, NULL, &e);
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~bit);
        EXPECT(status == COLIBRI_ERR_FP_ENV);
    }
#endif
}

/* Every failed call leaves the sequences as they were: what follows is the same to the bit. */
static void failed_calls(void)
{
    uint32_t vocabulary = image.config.vocabulary, good[] = {1, 2, 3, 4, 5}, bad[] = {1, vocabulary, 1};
    uint32_t into[] = {0, 1, 0}, beyond[] = {0, 2, 1}, crc[2] = {0, 0};
    colibri_error e;
    for (int round = 0; round < 2; round++) {
        EXPECT(colibri_init(&engine, &image, &small, &region, 1, NULL, NULL) == COLIBRI_OK);
        EXPECT(give(5, good, NULL, vocabulary, &e) == COLIBRI_OK);
        EXPECT(give(3, good, into, vocabulary, &e) == COLIBRI_OK);
        if (round == 1) {
            EXPECT(give(0, good, NULL, vocabulary, &e) == COLIBRI_ERR_ARGUMENT);
            EXPECT(give(1, NULL, NULL, vocabulary, &e) == COLIBRI_ERR_ARGUMENT);
            EXPECT(give(3, bad, into, vocabulary, &e) == COLIBRI_ERR_TOKEN && e.where == 1);
            EXPECT(e.have == vocabulary && e.need == vocabulary);
            EXPECT(give(3, good, beyond, vocabulary, &e) == COLIBRI_ERR_SEQUENCE && e.where == 1 && e.need == 2);
            EXPECT(give(2, good, NULL, vocabulary, &e) == COLIBRI_ERR_CONTEXT && e.have == 8 && e.need == 9);
            EXPECT(give(1, good, NULL, vocabulary - 1, &e) == COLIBRI_ERR_LOGITS && e.need == vocabulary);
            float *kept = logits;
            logits = NULL;
            EXPECT(give(1, good, NULL, vocabulary, &e) == COLIBRI_ERR_LOGITS);
            logits = kept;
            EXPECT(colibri_reset(&engine, 2) == COLIBRI_ERR_SEQUENCE && colibri_length(&engine, 2) == 0);
        }
        EXPECT(colibri_length(&engine, 0) == 7 && colibri_length(&engine, 1) == 1);
        EXPECT(give(1, good, NULL, vocabulary, &e) == COLIBRI_OK);
        for (uint32_t v = 0; v < vocabulary; v++)
            crc[round] = crc_u32(crc[round], bits_of(logits[v]));
        EXPECT(give(1, good, NULL, vocabulary, &e) == COLIBRI_ERR_CONTEXT);
    }
    EXPECT(crc[0] == crc[1]);
}

int main(int argc, char **argv)
{
    size_t bytes;
    colibri_storage storage;
    struct memory memory;
    if (argc != 2)
        stop(2, "usage: callers IMAGE");
    const uint8_t *file = load_file(argv[1], &bytes);
    memory_storage(&storage, &memory, file, bytes, 1, 0);
    EXPECT(colibri_image_open(&image, &storage, NULL, 0, NULL) == COLIBRI_OK);
    region = (colibri_region){.size = 1 << 20};
    region.base = exact(region.size + 64);
    logits = (float *)(void *)exact(image.config.vocabulary * sizeof *logits);
    older_callers();
    wrong_arguments();
    misplaced_memory();
    wide_pool();
    float_environment();
    failed_calls();
    puts("ok");
    return 0;
}
