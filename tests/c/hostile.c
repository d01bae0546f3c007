/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an image: refused with a status or handled. Meant for AddressSanitizer and UBSan.
 *   hostile prefixes IMAGE            every prefix is refused
 *   hostile bits IMAGE STEP           every single bit flipped, of each STEP-th byte of weights
 *   hostile fields IMAGE              every word of the tables set to telling values, checksum mended
 *   hostile mended IMAGE              every single bit of the tables flipped, checksum mended
 *   hostile storage IMAGE OTHER       reads that fail, lie, or give another image half way
 *   hostile fuzz IMAGE SEED ROUNDS    several random changes at once, checksum mended
 *   hostile companions IMAGE          companion files cut, and with every bit flipped that is read at open
 *   hostile files FILE...             prints the status of each
 * Companion files of the image come behind all other arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"

enum { LARGEST = 1 << 22, TOKENS = 5 };

struct outcome {
    colibri_status open, verify, init, infer;
    uint32_t crc;
};

static struct memory beside[COLIBRI_MAX_COMPANIONS]; /* the image's companion files */
static uint32_t companions;
static uint64_t opened, ran, caught, silent; /* of the attempts: for the summary */

static colibri_status open_memory(colibri_image *image, colibri_storage *storage, struct memory *memory,
                                  const uint8_t *bytes, size_t size)
{
    colibri_error error = {0};
    memory_storage(storage, memory, bytes, size, 1, 0);
    memory->beside = beside;
    memory->companions = companions;
    colibri_status status = colibri_image_open(image, storage, NULL, 0, &error);
    if (status != error.status)
        stop(1, "open says %d, its error %d", (int)status, (int)error.status);
    return status;
}

/* All the table access a tool would do. */
static void look_around(const colibri_image *image)
{
    colibri_section section;
    colibri_tensor tensor;
    colibri_expert expert;
    colibri_file file;
    uint32_t ids[4];
    size_t names = 0;
    for (uint32_t i = 0; i <= image->section_count; i++)
        (void)colibri_image_section(image, i, &section);
    for (uint32_t i = 0; i <= image->tensor_count; i++)
        (void)colibri_image_tensor(image, i, &tensor);
    for (uint32_t i = 0; i <= image->expert_count; i++)
        (void)colibri_image_expert(image, i, &expert);
    for (uint32_t i = 0; colibri_image_file(image, i, &file) == COLIBRI_OK; i++)
        names += strlen(file.name);
    if ((names != 0) != (companions != 0))
        stop(1, "%zu bytes of names for %u companions", names, (unsigned)companions);
    (void)colibri_image_stop_ids(image, ids, 4);
    (void)colibri_image_is_stop(image, 1);
}

static colibri_status infer(colibri_engine *engine, const colibri_image *image, uint32_t *crc)
{
    uint32_t vocabulary = image->config.vocabulary, last = vocabulary - 1;
    uint32_t tokens[TOKENS] = {0, last, last / 2, 0, last}, sequences[TOKENS] = {0, 1, 0, 1, 1}, best;
    uint8_t want[TOKENS] = {0, 1, 0, 0, 1};
    float *logits = (float *)(void *)exact((size_t)vocabulary * 2 * sizeof *logits);
    colibri_sampling sampling = {0.8f, 3, 0.9f};
    uint64_t rng = 1;
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = TOKENS, .tokens = tokens,
                           .sequences = sequences, .want_logits = want, .logits = logits,
                           .logits_floats = (uint64_t)vocabulary * 2};
    colibri_status status = colibri_infer(engine, &batch, NULL);
    for (uint32_t i = 0; status == COLIBRI_OK && i < vocabulary * 2; i++) {
        if (!(logits[i] - logits[i] == 0.0f))
            stop(1, "logits that are not finite came back as good");
        *crc = crc_u32(*crc, bits_of(logits[i]));
    }
    if (status == COLIBRI_OK && colibri_sample(logits, vocabulary, &sampling, &rng, &best) != COLIBRI_OK)
        stop(1, "finite logits cannot be sampled");
    if (status != COLIBRI_OK && (colibri_length(engine, 0) != 0 || colibri_length(engine, 1) != 0))
        stop(1, "a failed call changed its sequences");
    colibri_status tested = opened % 8 == 0 ? colibri_selftest(engine, logits, NULL) : COLIBRI_OK;
    if (tested == COLIBRI_ERR_ARGUMENT || tested == COLIBRI_ERR_LOGITS)
        stop(1, "self-test: %s", colibri_status_name(tested));
    free(logits);
    return status;
}

/* Plans, carves exactly the planned bytes and runs a few tokens. Every table must agree to the bit. */
static void run(const colibri_image *image, struct outcome *o)
{
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 2, .batch = 3,
                             .context = image->config.context < 8 ? image->config.context : 8,
                             .kv = (uint32_t[]){COLIBRI_F32, COLIBRI_F16, COLIBRI_Q8}[opened % 3]};
    colibri_region region = {.size = LARGEST};
    colibri_plan_result plan;
    o->init = colibri_plan(image, &limits, &region, 1, &plan, NULL);
    if (o->init != COLIBRI_OK || image->config.vocabulary > LARGEST / 8)
        return;
    region.size = plan.used[0];
    region.base = exact((size_t)region.size);
    for (uint32_t k = 0; kernel_table(k) != NULL; k++) {
        colibri_engine engine;
        colibri_platform platform = {.struct_bytes = sizeof platform, .kernels = kernel_table(k)};
        struct outcome first = *o;
        o->crc = 0;
        memset(region.base, 0xCC, (size_t)region.size);
        o->init = colibri_init(&engine, image, &limits, &region, 1, &platform, NULL);
        o->infer = o->init == COLIBRI_OK ? infer(&engine, image, &o->crc) : o->init;
        if (k != 0 && (first.infer != o->infer || first.crc != o->crc))
            stop(1, "kernels disagree: %s %08x, %s %08x", colibri_status_name(first.infer),
                 (unsigned)first.crc, colibri_status_name(o->infer), (unsigned)o->crc);
    }
    free(region.base);
    ran++;
}

static struct outcome attempt(const uint8_t *bytes, size_t size)
{
    struct outcome o = {0};
    colibri_image image;
    colibri_storage storage;
    struct memory memory;
    o.open = open_memory(&image, &storage, &memory, bytes, size);
    if (o.open != COLIBRI_OK)
        return o;
    opened++;
    look_around(&image);
    o.verify = colibri_verify(&image, NULL, 0, NULL);
    *(o.verify == COLIBRI_OK ? &silent : &caught) += 1;
    run(&image, &o);
    return o;
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_word(uint8_t *p, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(word >> 8 * i);
}

/* Whoever writes an image writes its checksum too. */
static void mend(uint8_t *bytes, size_t size)
{
    uint32_t meta = word_at(bytes + 24);
    if (meta < 64 || meta > size)
        return;
    put_word(bytes + 60, colibri_crc32(colibri_crc32(0, bytes, 60), bytes + 64, meta - 64));
}

static void prefixes(const uint8_t *bytes, size_t size)
{
    for (size_t n = 0; n < size; n++) {
        uint8_t *prefix = exact(n);
        memcpy(prefix, bytes, n);
        if (attempt(prefix, n).open != COLIBRI_ERR_TRUNCATED)
            stop(1, "prefix of %zu bytes: not seen as truncated", n);
        free(prefix);
    }
}

/* In the tables: refused. In weights: verify sees it. In the padding between weights: nothing reads it. */
static void bits(uint8_t *bytes, size_t size, size_t step)
{
    uint32_t meta = word_at(bytes + 24), whole[3];
    for (int kv = 0; kv < 3; kv++) { /* run takes the KV type from the count of opened images */
        opened = (uint64_t)kv - 1;
        whole[kv] = attempt(bytes, size).crc;
    }
    for (size_t bit = 0; bit < size * 8; bit++) {
        if (bit / 8 >= meta && bit / 8 % step != 0)
            continue;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct outcome o = attempt(bytes, size);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (bit / 8 < meta ? o.open == COLIBRI_OK : o.open != COLIBRI_OK)
            stop(1, "bit %zu: open says %s", bit, colibri_status_name(o.open));
        if (o.open == COLIBRI_OK && o.verify == COLIBRI_OK && o.crc != whole[opened % 3])
            stop(1, "bit %zu changed the logits and verify did not see it", bit);
    }
}

static void with_word(uint8_t *bytes, size_t size, size_t at, uint32_t word)
{
    uint8_t kept[4], crc[4];
    memcpy(kept, bytes + at, 4);
    memcpy(crc, bytes + 60, 4);
    put_word(bytes + at, word);
    if (at != 60)
        mend(bytes, size);
    (void)attempt(bytes, size);
    memcpy(bytes + at, kept, 4);
    memcpy(bytes + 60, crc, 4);
}

/* Where the notes lie: nobody reads them. Behind them is the files table, if there is one. */
static size_t notes_of(const uint8_t *bytes, size_t size, size_t *end)
{
    colibri_image image;
    colibri_storage storage;
    struct memory memory;
    colibri_section s = {0};
    if (open_memory(&image, &storage, &memory, bytes, size) != COLIBRI_OK)
        stop(2, "the image to start from is refused");
    for (uint32_t i = 0; s.kind != COLIBRI_SECTION_NOTES && i < image.section_count; i++)
        (void)colibri_image_section(&image, i, &s);
    *end = (size_t)(s.offset + s.bytes);
    return (size_t)s.offset;
}

/* The tables without the notes: the word behind `at`, or the end. */
static size_t next_word(const uint8_t *bytes, size_t size, size_t at)
{
    size_t end, notes = notes_of(bytes, size, &end);
    at += 4;
    if (at < notes || at >= end)
        return at;
    return companions != 0 ? (end + 63) / 64 * 64 : word_at(bytes + 24);
}

static void fields(uint8_t *bytes, size_t size)
{
    static const uint32_t telling[] = {0, 1, 2, 3, 31, 33, 63, 64, 65, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF,
                                       0x80000000, 0xFFFFFFC0, 0xFFFFFFFF, 0x7F800000, 0x7FC00000, 0x00000001};
    struct random random = {7};
    uint32_t meta = word_at(bytes + 24);
    for (size_t at = 0; at < meta; at = next_word(bytes, size, at)) {
        uint32_t old = word_at(bytes + at);
        uint32_t near[] = {old + 1, old - 1, old * 2, old / 2, old + 64, old - 64, ~old, old << 16 | old >> 16,
                           (uint32_t)size, (uint32_t)size - old, meta, random_bits(&random)};
        for (size_t i = 0; i < sizeof telling / sizeof telling[0]; i++)
            with_word(bytes, size, at, telling[i]);
        for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
            with_word(bytes, size, at, near[i]);
    }
}

static void mended(uint8_t *bytes, size_t size)
{
    for (size_t at = 0, meta = word_at(bytes + 24); at < meta; at = next_word(bytes, size, at))
        for (uint32_t bit = 0; bit < 32; bit++)
            with_word(bytes, size, at, word_at(bytes + at) ^ 1u << bit);
}

static void fuzz(const uint8_t *bytes, size_t size, uint64_t seed, uint64_t rounds)
{
    struct random random = {seed};
    size_t end;
    uint32_t tables = companions != 0 ? word_at(bytes + 24) : (uint32_t)notes_of(bytes, size, &end);
    for (uint64_t round = 0; round < rounds; round++) {
        size_t length = random_below(&random, 8) == 0 ? random_below(&random, (uint32_t)size) : size;
        uint8_t *copy = exact(length);
        memcpy(copy, bytes, length);
        for (uint32_t n = 1 + random_below(&random, 4); n != 0 && length > 64; n--) {
            uint32_t limit = random_below(&random, 4) == 0 ? (uint32_t)length : tables;
            uint32_t at = random_below(&random, (limit < length ? limit : (uint32_t)length) - 4);
            uint32_t from = random_below(&random, (uint32_t)length - 4) & ~3u;
            switch (random_below(&random, 4)) {
            case 0: copy[at] = (uint8_t)random_bits(&random); break;
            case 1: copy[at] ^= (uint8_t)(1u << random_below(&random, 8)); break;
            case 2: put_word(copy + (at & ~3u), word_at(copy + from)); break;
            default: put_word(copy + (at & ~3u), word_at(copy + (at & ~3u)) + random_below(&random, 129) - 64);
            }
        }
        if (length > 64)
            mend(copy, length);
        (void)attempt(copy, length);
        free(copy);
    }
}

/* open, verify, init with loaded weights, infer: the first failure, or OK. */
static colibri_status whole_life(const colibri_storage *storage, uint32_t meta_bytes)
{
    colibri_image image;
    uint8_t *meta = exact(meta_bytes), *block = exact(64);
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 2, .batch = 3, .context = 8,
                             .weights = COLIBRI_WEIGHTS_LOADED};
    colibri_region region = {.size = LARGEST, .base = exact(LARGEST)};
    colibri_engine engine;
    uint32_t crc = 0;
    colibri_status status = colibri_image_open(&image, storage, meta, meta_bytes, NULL);
    if (status == COLIBRI_OK)
        status = colibri_verify(&image, block, 64, NULL);
    if (status == COLIBRI_OK)
        status = colibri_init(&engine, &image, &limits, &region, 1, NULL, NULL);
    if (status == COLIBRI_OK)
        status = infer(&engine, &image, &crc);
    free(meta), free(block), free(region.base);
    return status;
}

/* Serves the first reads from one image and the rest from another. */
struct turncoat {
    const uint8_t *first, *second;
    size_t first_bytes, second_bytes;
    uint64_t reads_left;
};

static int turncoat_read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    struct turncoat *t = context;
    int turned = t->reads_left == 0;
    size_t size = turned ? t->second_bytes : t->first_bytes;
    t->reads_left -= !turned;
    if (file != 0 || offset > size || bytes > size - offset)
        return -1;
    memcpy(destination, (turned ? t->second : t->first) + offset, (size_t)bytes);
    return 0;
}

static const void *turncoat_map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct turncoat *t = context;
    return file == 0 && offset + bytes <= 64 ? t->first + offset : NULL;
}

static void storages(const uint8_t *bytes, size_t size, const uint8_t *other, size_t other_size)
{
    uint32_t meta = word_at(bytes + 24);
    colibri_storage storage;
    struct memory memory;
    memory_storage(&storage, &memory, bytes, size, 0, 1);
    memory.beside = beside;
    memory.companions = companions;
    if (whole_life(&storage, meta) != COLIBRI_OK)
        stop(1, "an image that can only be read does not run");
    uint64_t reads = memory.reads;
    for (uint64_t n = 0; n < reads; n++) {
        memory.reads_left = n;
        colibri_status status = whole_life(&storage, meta);
        if (status != COLIBRI_ERR_STORAGE && !(companions != 0 && status == COLIBRI_ERR_COMPANION))
            stop(1, "read %llu failed and was not reported", (unsigned long long)n);
    }
    memory.reads_left = UINT64_MAX;
    for (uint32_t n = 0; n < meta; n++)
        if (whole_life(&storage, n) != COLIBRI_ERR_MEMORY)
            stop(1, "%u bytes for the tables are too few and were taken", (unsigned)n);
    uint32_t larger = word_at(other + 24) > meta ? word_at(other + 24) : meta;
    for (uint64_t n = 0; n <= reads; n++)
        for (int map = 0; map < 2; map++) {
            struct turncoat t = {bytes, other, size, other_size, n};
            storage.context = &t;
            storage.bytes = size > other_size ? size : other_size;
            storage.read = turncoat_read;
            storage.map = map ? turncoat_map : NULL;
            (void)whole_life(&storage, larger);
        }
    printf("reads %llu ", (unsigned long long)reads);
}

/* Cut anywhere a companion is refused; a bit of its header is seen at open, one of its records by verify. */
static void companion_files(const uint8_t *bytes, size_t size)
{
    enum { HEADER = 64 };
    for (uint32_t i = 0; i < companions; i++) {
        struct memory whole = beside[i];
        for (size_t n = 0; n < whole.size; n += n < 256 ? 1 : 61) {
            uint8_t *prefix = exact(n);
            memcpy(prefix, whole.bytes, n);
            beside[i] = (struct memory){.bytes = prefix, .size = n};
            if (attempt(bytes, size).open != COLIBRI_ERR_COMPANION)
                stop(1, "companion %u cut to %zu bytes was taken", (unsigned)i, n);
            free(prefix);
        }
        beside[i] = whole;
        for (size_t bit = 0; bit < whole.size * 8; bit += bit < HEADER * 8 ? 1 : 83) {
            uint8_t *byte = (uint8_t *)(uintptr_t)whole.bytes + bit / 8;
            *byte ^= (uint8_t)(1u << bit % 8);
            colibri_status status = attempt(bytes, size).open;
            *byte ^= (uint8_t)(1u << bit % 8);
            if (status != (bit < HEADER * 8 ? COLIBRI_ERR_COMPANION : COLIBRI_OK))
                stop(1, "bit %zu of companion %u: open says %s", bit, (unsigned)i, colibri_status_name(status));
        }
    }
}

static void load_companions(int count, char **paths)
{
    if (count > (int)COLIBRI_MAX_COMPANIONS)
        stop(2, "%d companions", count);
    for (int i = 0; i < count; i++)
        beside[i].bytes = load_file(paths[i], &beside[i].size);
    companions = count > 0 ? (uint32_t)count : 0;
}

static void files(int count, char **paths)
{
    for (int i = 0; i < count; i++) {
        size_t size;
        uint8_t *bytes = load_file(paths[i], &size);
        struct outcome o = attempt(bytes, size);
        printf("%d %d %d %d %s\n", (int)o.open, (int)o.verify, (int)o.init, (int)o.infer, paths[i]);
        free(bytes);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        stop(2, "usage: hostile MODE IMAGE ...");
    const char *mode = argv[1];
    size_t size, other_size;
    uint8_t *bytes = load_file(argv[2], &size);
    int own = strcmp(mode, "storage") == 0 || strcmp(mode, "bits") == 0 ? 4 : strcmp(mode, "fuzz") == 0 ? 5 : 3;
    if (strcmp(mode, "files") != 0)
        load_companions(argc - own, argv + own);
    if (strcmp(mode, "files") == 0)
        files(argc - 2, argv + 2);
    else if (strcmp(mode, "prefixes") == 0)
        prefixes(bytes, size);
    else if (strcmp(mode, "bits") == 0 && argc >= own)
        bits(bytes, size, strtoul(argv[3], NULL, 10));
    else if (strcmp(mode, "fields") == 0)
        fields(bytes, size);
    else if (strcmp(mode, "mended") == 0)
        mended(bytes, size);
    else if (strcmp(mode, "storage") == 0 && argc >= own) {
        uint8_t *other = load_file(argv[3], &other_size);
        storages(bytes, size, other, other_size);
        free(other);
    } else if (strcmp(mode, "fuzz") == 0 && argc >= own)
        fuzz(bytes, size, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    else if (strcmp(mode, "companions") == 0)
        companion_files(bytes, size);
    else
        stop(2, "unknown mode %s", mode);
    free(bytes);
    for (uint32_t i = 0; i < companions; i++)
        free((uint8_t *)(uintptr_t)beside[i].bytes);
    printf("opened %llu ran %llu caught %llu silent %llu\n", (unsigned long long)opened, (unsigned long long)ran,
           (unsigned long long)caught, (unsigned long long)silent);
    return 0;
}
