/* SPDX-License-Identifier: Apache-2.0 */
/* The runner for boards with Linux: one request from the command line, results as JSON on stdout.
 *
 *   firmware.elf IMAGE 1,2,3 [name=value ...]
 *   names: max_new ignore_eos context batch workers kv temperature top_k top_p seed selftest huge
 *          weights slots policy
 *
 * weights=3 (COLIBRI_WEIGHTS_STREAMED) reads experts when they are needed, past any map; slots and policy are
 * colibri_limits', 0 for the library's choice. Only in an executable that was built for it.
 * huge=1 puts the image into huge pages; "pages" of the output says how much of it is there, and why
 * not more.
 * Floats are given and kept as their 32 bits in decimal, so that no text conversion changes them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/colibri.h"
#include "colibri/kernels.h"
#include "colibri_posix.h"

enum { MAX_NEW, IGNORE_EOS, CONTEXT, BATCH, WORKERS, KV, TEMPERATURE, TOP_K, TOP_P, SEED, SELFTEST,
       HUGE, WEIGHTS, SLOTS, POLICY, SETTINGS };
static const char *const names[SETTINGS] = { "max_new", "ignore_eos", "context", "batch",
                                             "workers", "kv", "temperature", "top_k",
                                             "top_p", "seed", "selftest", "huge",
                                             "weights", "slots", "policy" };

typedef struct request {
    uint64_t value[SETTINGS];
    uint32_t *tokens; /* prompt, then room for max_new */
    uint32_t prompt;
} request;

typedef struct run {
    colibri_posix_file file;
    colibri_posix_pool *pool;
    colibri_image image;
    colibri_engine engine;
    colibri_plan_result plan;
    colibri_region region;
    void *tables;
    float *logits;
    uint32_t generated;
    uint32_t crc;
    const char *stage;
    colibri_status status;
    colibri_error error;
} run;

static int refuse(const char *what, const char *which)
{
    fprintf(stderr, "%s: %s\n", what, which);
    return 2;
}

static float float_of(uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static int read_settings(request *r, int count, char **arguments)
{
    for (int i = 0; i < count; i++) {
        char *equals = strchr(arguments[i], '=');
        int found = -1;
        for (int k = 0; equals != NULL && k < SETTINGS; k++) {
            size_t length = strlen(names[k]);
            if (length == (size_t)(equals - arguments[i]) &&
                memcmp(names[k], arguments[i], length) == 0) {
                found = k;
            }
        }
        char *end = NULL;
        if (found >= 0) {
            r->value[found] = strtoull(equals + 1, &end, 10);
        }
        if (found < 0 || end == equals + 1 || *end != '\0') {
            return refuse("not a setting (name=number)", arguments[i]);
        }
    }
    return 0;
}

static int read_tokens(request *r, const char *text)
{
    size_t most = strlen(text) / 2 + 1;
    if (r->value[MAX_NEW] > UINT32_MAX) {
        return refuse("max_new is too large", text);
    }
    r->tokens = calloc(most + (size_t)r->value[MAX_NEW] + 1, sizeof *r->tokens);
    if (r->tokens == NULL) {
        return refuse("no memory for the tokens", text);
    }
    while (*text != '\0') {
        char *end;
        unsigned long long token = strtoull(text, &end, 10);
        if (end == text || token > UINT32_MAX || (*end != '\0' && *end != ',')) {
            return refuse("not a token list (1,2,3)", text);
        }
        r->tokens[r->prompt++] = (uint32_t)token;
        text = *end == ',' ? end + 1 : end;
    }
    return 0;
}

static int failed(run *r, const char *stage, colibri_status status)
{
    r->stage = stage;
    r->status = status;
    return status != COLIBRI_OK;
}

static colibri_limits limits_of(const request *q)
{
    colibri_limits limits = { .struct_bytes = sizeof limits, .sequences = 1 };
    limits.context = (uint32_t)q->value[CONTEXT];
    limits.batch = (uint32_t)q->value[BATCH];
    limits.workers = (uint32_t)q->value[WORKERS];
    limits.kv = (uint32_t)q->value[KV];
    limits.profile = COLIBRI_PROFILE_WIDE;
    limits.weights = (uint32_t)q->value[WEIGHTS];
    limits.expert_slots = (uint32_t)q->value[SLOTS];
    limits.policy = (uint32_t)q->value[POLICY];
    return limits;
}

/* What is not mapped needs memory for its tables; the first attempt says how much. */
static colibri_status open_image(run *r)
{
    colibri_status status = colibri_image_open(&r->image, &r->file.storage, NULL, 0, &r->error);
    if (status != COLIBRI_ERR_MEMORY || r->error.need > UINT32_MAX) {
        return status;
    }
    const uint32_t bytes = (uint32_t)r->error.need;
    r->tables = aligned_alloc(64, (bytes + 63u) / 64u * 64u);
    return r->tables == NULL ? status
                             : colibri_image_open(&r->image, &r->file.storage, r->tables, bytes, &r->error);
}

/* The first plan says how much memory, the second is made in it. */
static int prepare(run *r, const request *q)
{
    colibri_limits limits = limits_of(q);
    colibri_platform platform = { .struct_bytes = sizeof platform,
                                  .kernels = &COLIBRI_BOARD_KERNELS };
    if (failed(r, "open", open_image(r))) {
        return 1;
    }
    r->plan.struct_bytes = sizeof r->plan;
    r->region = (colibri_region){ "RAM", NULL, UINT64_MAX / 4, 0, 0 };
    if (failed(r, "plan", colibri_plan(&r->image, &limits, &r->region, 1, &r->plan, &r->error))) {
        return 1;
    }
    r->region.size = r->plan.used[0];
    size_t bytes = (size_t)(r->region.size + 63u) / 64u * 64u;
    r->region.base = aligned_alloc(64, bytes);
    r->logits = malloc((size_t)r->image.config.vocabulary * sizeof(float));
    if (q->value[WORKERS] > 1) {
        r->pool = colibri_posix_pool_create((uint32_t)q->value[WORKERS]);
        platform.pool = r->pool == NULL ? NULL : colibri_posix_pool_interface(r->pool);
    }
    if (r->region.base == NULL || r->logits == NULL ||
        (q->value[WORKERS] > 1 && r->pool == NULL)) {
        return failed(r, "memory", COLIBRI_ERR_MEMORY);
    }
    return failed(r, "init", colibri_init(&r->engine, &r->image, &limits, &r->region, 1, &platform,
                                          &r->error));
}

static int generate(run *r, const request *q)
{
    colibri_sampling sampling = { float_of(q->value[TEMPERATURE]), (uint32_t)q->value[TOP_K],
                                  float_of(q->value[TOP_P]) };
    uint32_t vocabulary = r->image.config.vocabulary;
    uint64_t rng = q->value[SEED];
    colibri_batch batch = { .struct_bytes = sizeof batch, .count = q->prompt, .tokens = q->tokens,
                            .logits = r->logits, .logits_floats = vocabulary };
    for (uint64_t n = 0; n < q->value[MAX_NEW]; n++) {
        if (failed(r, "infer", colibri_infer(&r->engine, &batch, &r->error))) {
            return 1;
        }
        r->crc = colibri_crc32(r->crc, r->logits, (uint64_t)vocabulary * sizeof(float));
        uint32_t *token = &q->tokens[q->prompt + n];
        if (failed(r, "sample", colibri_sample(r->logits, vocabulary, &sampling, &rng, token))) {
            return 1;
        }
        r->generated++;
        if (!q->value[IGNORE_EOS] && colibri_image_is_stop(&r->image, *token)) {
            break;
        }
        batch.tokens = token;
        batch.count = 1;
    }
    return failed(r, "end", COLIBRI_OK);
}

static void print_json(const run *r, const request *q)
{
    printf("{\"schema\": 1, \"status\": %u, \"stage\": \"%s\", \"error\": [%" PRIu32 ", %" PRIu64
           ", %" PRIu64 "], \"tokens\": [",
           (unsigned)r->status, r->stage, r->error.where, r->error.have, r->error.need);
    for (uint32_t i = 0; i < r->generated; i++) {
        printf("%s%" PRIu32, i ? ", " : "", q->tokens[q->prompt + i]);
    }
    printf("], \"logits_crc32\": \"%08" PRIx32 "\", \"total_bytes\": %" PRIu64
           ", \"high_water\": %" PRIu64 ", \"buffers\": [",
           r->crc, r->plan.total_bytes,
           r->region.base == NULL ? 0 : colibri_high_water(&r->engine, 0));
    for (uint32_t i = 0; i < r->plan.buffer_count; i++) {
        const colibri_buffer *b = &r->plan.buffers[i];
        printf("%s[%" PRIu32 ", %" PRIu64 ", %" PRIu64 "]", i ? ", " : "", b->kind, b->offset,
               b->bytes);
    }
    colibri_posix_pages pages;
    colibri_posix_file_pages(&r->file, &pages);
    colibri_expert_stats x = { .struct_bytes = sizeof x };
    (void)colibri_expert_statistics(&r->engine, &x);
    printf("], \"experts\": [%" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
           ", %" PRIu64 "]", x.slots, x.slots_per_layer, x.policy, x.hits, x.misses, x.bytes_read,
           x.retries);
    printf(", \"pages\": [%" PRIu64 ", %" PRIu64 ", \"%s\"]}\n", pages.bytes, pages.huge_bytes,
           pages.reason == NULL ? "" : pages.reason);
}

int main(int argc, char **argv)
{
    static request q;
    static run r;
    if (argc < 3) {
        return refuse("usage", "firmware.elf IMAGE 1,2,3 [max_new=N] [kv=N] ...");
    }
    if (read_settings(&q, argc - 3, argv + 3) || read_tokens(&q, argv[2])) {
        return 2;
    }
    int mode = q.value[HUGE] ? COLIBRI_POSIX_HUGE : COLIBRI_POSIX_MAP;
    int streamed = q.value[WEIGHTS] == COLIBRI_WEIGHTS_STREAMED;
    if (colibri_posix_open(&r.file, argv[1], streamed ? COLIBRI_POSIX_READ : mode) != 0) {
        return refuse("cannot open the image", argv[1]);
    }
    const colibri_posix_reader_options ahead = { .struct_bytes = sizeof ahead };
    if (streamed && colibri_posix_read_ahead(&r.file, &ahead) != 0) {
        return refuse("cannot read ahead", argv[1]);
    }
    int bad = prepare(&r, &q);
    if (!bad && q.value[SELFTEST]) {
        bad = failed(&r, "selftest", colibri_selftest(&r.engine, r.logits, &r.error));
    } else if (!bad) {
        bad = generate(&r, &q);
    }
    print_json(&r, &q);
    colibri_posix_pool_destroy(r.pool);
    colibri_posix_close(&r.file);
    free(r.region.base);
    free(r.logits);
    free(r.tables);
    free(q.tokens);
    return bad ? 1 : 0;
}
