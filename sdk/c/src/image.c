/* SPDX-License-Identifier: Apache-2.0 */
/* Opening an image: shape of the file first, then meaning of the fields, before any memory is used.
 * docs/spec.md has the rules; section numbers below are its. */
#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "image_rules.h"
#include "options.h"
#include "size.h"
#include "tensor.h"

enum { HEADER = 64, SECTION = 32, MAX_SECTIONS = 32, META_KINDS = 16 };

static const uint8_t magic[8] = {0x89, 'C', 'L', 'B', '\r', '\n', 0x1A, '\n'};

static colibri_status broken(colibri_error *error, uint64_t at)
{
    return colibri_fail(error, COLIBRI_ERR_STRUCTURE, (uint32_t)at, 0, 0);
}

static bool all_zero(const uint8_t *p, uint64_t bytes)
{
    while (bytes != 0)
        if (p[--bytes] != 0)
            return false;
    return true;
}

/* Bytes [0, n) of the image: mapped, or read into memory of the caller. */
static colibri_status fetch(const colibri_storage *s, void *memory, uint32_t capacity, uint32_t bytes,
                            const uint8_t **out, colibri_error *error)
{
    if (s->map != NULL) {
        *out = s->map(s->context, 0, 0, bytes);
        if (*out != NULL)
            return COLIBRI_OK;
    }
    if (memory == NULL || capacity < bytes)
        return colibri_fail(error, COLIBRI_ERR_MEMORY, 0, memory == NULL ? 0 : capacity, bytes);
    *out = memory;
    if (s->read == NULL || s->read(s->context, 0, 0, memory, bytes) != 0)
        return colibri_fail(error, COLIBRI_ERR_STORAGE, COLIBRI_NO_EXPERT, 0, bytes);
    return COLIBRI_OK;
}

static colibri_status check_header(colibri_image *image, const uint8_t *h, colibri_error *error)
{
    uint64_t file_bytes = colibri_load_u64(h + 16);
    uint32_t alignment = colibri_load_u32(h + 48);
    if (memcmp(h, magic, sizeof magic) != 0)
        return colibri_fail(error, COLIBRI_ERR_MAGIC, 0,
                            COLIBRI_WITH_COMPANIONS && h[3] == 'X' && memcmp(h, magic, 3) == 0, 0);
    if (colibri_load_u32(h + 8) != COLIBRI_IMAGE_VERSION)
        return colibri_fail(error, COLIBRI_ERR_VERSION, 8, colibri_load_u32(h + 8),
                            COLIBRI_IMAGE_VERSION);
    if (colibri_load_u32(h + 12) > COLIBRI_LAYOUT_HYBRID)
        return broken(error, 12);
    if (!COLIBRI_WITH_COMPANIONS && colibri_load_u32(h + 12) != COLIBRI_LAYOUT_MONOLITHIC)
        return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, 12, colibri_load_u32(h + 12), 0);
    if (file_bytes > image->storage->bytes)
        return colibri_fail(error, COLIBRI_ERR_TRUNCATED, 16, image->storage->bytes, file_bytes);
    image->bytes = image->total_bytes = file_bytes;
    image->meta_bytes = colibri_load_u32(h + 24);
    image->section_count = colibri_load_u32(h + 28);
    if (image->section_count - 1u >= MAX_SECTIONS)
        return broken(error, 28);
    if (image->meta_bytes % 64 != 0 || image->meta_bytes > file_bytes ||
        image->meta_bytes < HEADER + image->section_count * SECTION)
        return broken(error, 24);
    if (alignment < 64 || alignment > 65536 || (alignment & (alignment - 1u)) != 0)
        return broken(error, 48);
    if (!all_zero(h + 52, 8))
        return broken(error, 52);
    return COLIBRI_OK;
}

/* Of the image's own sections; expert weights in companions have entries behind these. */
static bool known_kind(const colibri_image *image, uint32_t kind)
{
    if (kind == COLIBRI_SECTION_FILES || kind == COLIBRI_SECTION_EXPERT_WEIGHTS)
        return (kind == COLIBRI_SECTION_FILES) == (colibri_companions(image) != 0);
    return kind <= COLIBRI_SECTION_NOTES || kind == COLIBRI_SECTION_TOKENIZER || kind == COLIBRI_SECTION_WEIGHTS;
}

static bool has_count(uint32_t kind)
{
    return kind < COLIBRI_SECTION_NOTES || kind == COLIBRI_SECTION_FILES;
}

/* Sections follow each other without hole or overlap: each must begin where the one before ended. */
static colibri_status check_sections(const colibri_image *image, colibri_error *error)
{
    uint64_t end = HEADER + (uint64_t)image->section_count * SECTION, start;
    uint32_t alignment = colibri_load_u32(image->meta + 48), kind_before = 0;
    bool in_meta = true;
    for (uint32_t i = 0; i < image->section_count - colibri_companions(image); i++) {
        uint32_t at = HEADER + i * SECTION;
        colibri_section s;
        (void)colibri_image_section(image, i, &s);
        bool meta = s.kind < META_KINDS;
        if (s.kind <= kind_before || s.file != 0 || !known_kind(image, s.kind))
            return broken(error, at);
        if (!colibri_align(end, s.kind == COLIBRI_SECTION_EXPERT_WEIGHTS ? alignment : 64, &start) ||
            s.offset != start)
            return broken(error, at + 8);
        if (in_meta && !all_zero(image->meta + end, (meta ? start : image->meta_bytes) - end))
            return broken(error, end);
        if (!meta && in_meta && s.offset < image->meta_bytes)
            return broken(error, at + 8);
        if (!colibri_inside(s.offset, s.bytes, meta ? image->meta_bytes : image->bytes))
            return broken(error, at + 16);
        if (s.kind != COLIBRI_SECTION_TOKENIZER && s.crc32 != 0)
            return broken(error, at + 24);
        if (!has_count(s.kind) && s.count != (s.kind == COLIBRI_SECTION_TOKENIZER))
            return broken(error, at + 28);
        in_meta = meta;
        kind_before = s.kind;
        end = s.offset + s.bytes;
    }
    return end == image->bytes && !in_meta ? COLIBRI_OK : broken(error, 16);
}

/* A table section: there, with as many bytes as its entries need. Returns its offset, 0 if not. */
static uint32_t table(const colibri_image *image, uint32_t kind, uint32_t entry, uint32_t extra,
                      uint32_t *count)
{
    colibri_section s;
    if (!colibri_find_section(image, kind, &s) || s.bytes != extra + (uint64_t)s.count * entry)
        return 0;
    *count = s.count;
    return (uint32_t)s.offset;
}

static bool layer_built(const colibri_layer *l)
{
    if (!COLIBRI_WITH_DENSE && l->ffn != COLIBRI_FFN_MOE)
        return false;
    if (!COLIBRI_WITH_BESIDE && l->ffn == COLIBRI_FFN_BOTH)
        return false;
    if (!COLIBRI_WITH_ATTENTION_EXTRAS && l->flags != 0)
        return false;
    if (!COLIBRI_WITH_LINEAR && l->mixer >= COLIBRI_MIXER_DELTA && l->mixer != COLIBRI_MIXER_MAMBA)
        return false;
    if (!COLIBRI_WITH_MAMBA && l->mixer == COLIBRI_MIXER_MAMBA)
        return false;
    if (!COLIBRI_WITH_CONV && l->mixer == COLIBRI_MIXER_CONV)
        return false;
    if (!COLIBRI_WITH_EXPERT_ATTENTION && l->mixer == COLIBRI_MIXER_EXPERTS)
        return false;
    return COLIBRI_WITH_LATENT || l->mixer != COLIBRI_MIXER_LATENT;
}

/* Sizes of the layer's own, and a hold that the next layer releases. */
static bool layer_ok(const colibri_layer *l, bool held, const colibri_config *c)
{
    return l->mixer - 1u < COLIBRI_MIXER_MAMBA && l->ffn - 1u < COLIBRI_FFN_BOTH && l->rope <= 2 &&
           (l->window == 0 || l->chunk == 0) && l->kv_heads <= c->heads &&
           c->heads % l->kv_heads == 0 && l->head_size >= 2 && l->head_size <= 1024 &&
           l->head_size % 2 == 0 && held == ((l->flags & COLIBRI_LAYER_RELEASE) != 0) &&
           (l->ffn & COLIBRI_FFN_MOE || !(l->flags & COLIBRI_LAYER_EARLY_ROUTER)) &&
           (l->mixer != COLIBRI_MIXER_EXPERTS || !(l->flags & COLIBRI_LAYER_EARLY_ROUTER)) &&
           (l->ffn == COLIBRI_FFN_BOTH || !(l->flags & COLIBRI_LAYER_HOLD)) &&
           (l->mixer != COLIBRI_MIXER_LATENT || (l->rope == 1 && l->head_size > c->rope_size)) &&
           (l->mixer != COLIBRI_MIXER_EXPERTS || (l->ffn == COLIBRI_FFN_MOE && c->top_k <= 64 &&
                                                  c->heads == c->top_k * l->kv_heads));
}

static colibri_status check_layers(colibri_image *image, colibri_error *error)
{
    bool held = false;
    for (uint32_t i = 0; i < image->config.layers; i++) {
        uint32_t at = image->layers + i * COLIBRI_LAYER_ENTRY;
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        if (!layer_ok(&l, held, &image->config))
            return broken(error, at);
        if (!layer_built(&l))
            return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, at, 0, 0);
        held = (l.flags & COLIBRI_LAYER_HOLD) != 0;
        image->moe_layers += (l.ffn & COLIBRI_FFN_MOE) != 0;
        image->dense_layers += (l.ffn & COLIBRI_FFN_DENSE) != 0;
        image->latent_layers += l.mixer == COLIBRI_MIXER_LATENT;
        image->conv_layers += l.mixer == COLIBRI_MIXER_CONV;
        image->linear_layers += l.mixer >= COLIBRI_MIXER_DELTA;
        image->mamba_layers += l.mixer == COLIBRI_MIXER_MAMBA;
        image->filter_layers += colibri_layer_filters(&l);
        image->rope_sets |= colibri_layer_attends(&l) ? l.rope : 0u;
    }
    return held ? broken(error, image->layers) : COLIBRI_OK;
}

static colibri_status check_tables(colibri_image *image, colibri_error *error)
{
    uint32_t one, layers, tokens, stops;
    uint32_t config = table(image, COLIBRI_SECTION_CONFIG, sizeof(colibri_config), 0, &one);
    if (config == 0 || one != 1)
        return broken(error, COLIBRI_SECTION_CONFIG);
    uint32_t words[sizeof(colibri_config) / 4];
    for (uint32_t i = 0; i < sizeof words / 4; i++)
        words[i] = colibri_load_u32(image->meta + config + i * 4);
    memcpy(&image->config, words, sizeof words);
    colibri_status status = colibri_check_sizes(&image->config, error);
    if (status != COLIBRI_OK)
        return status;
    image->layers = table(image, COLIBRI_SECTION_LAYERS, COLIBRI_LAYER_ENTRY, 0, &layers);
    if (image->layers == 0 || layers != image->config.layers)
        return broken(error, COLIBRI_SECTION_LAYERS);
    image->tensors = table(image, COLIBRI_SECTION_TENSORS, COLIBRI_TENSOR_ENTRY, 0,
                           &image->tensor_count);
    if (image->tensors == 0)
        return broken(error, COLIBRI_SECTION_TENSORS);
    image->experts = table(image, COLIBRI_SECTION_EXPERTS, COLIBRI_EXPERT_ENTRY, 0,
                           &image->expert_count);
    if (image->experts == 0)
        image->expert_count = 0;
    if (table(image, COLIBRI_SECTION_STOP, 4, 0, &stops) == 0)
        return broken(error, COLIBRI_SECTION_STOP);
    if (table(image, COLIBRI_SECTION_SELFTEST, 4, 12, &tokens) == 0 || tokens - 1u >= 64)
        return broken(error, COLIBRI_SECTION_SELFTEST);
    return check_layers(image, error);
}

static colibri_status check_checksum(const colibri_image *image, colibri_error *error)
{
    uint32_t crc = colibri_crc32(0, image->meta, 60);
    crc = colibri_crc32(crc, image->meta + HEADER, image->meta_bytes - HEADER);
    if (crc != colibri_load_u32(image->meta + 60))
        return colibri_fail(error, COLIBRI_ERR_CHECKSUM, 0, crc, colibri_load_u32(image->meta + 60));
    return COLIBRI_OK;
}

colibri_status colibri_image_open(colibri_image *image, const colibri_storage *storage,
                                  void *meta, uint32_t meta_bytes, colibri_error *error)
{
    if (image == NULL || storage == NULL || (storage->map == NULL && storage->read == NULL))
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, image == NULL ? 1 : 2, 0, 0);
    memset(image, 0, sizeof *image);
    image->storage = storage;
    if (storage->bytes < HEADER)
        return colibri_fail(error, COLIBRI_ERR_TRUNCATED, 0, storage->bytes, HEADER);
    uint8_t local[HEADER];
    const uint8_t *header;
    colibri_status status = fetch(storage, local, HEADER, HEADER, &header, error);
    if (status == COLIBRI_OK)
        status = check_header(image, header, error);
    if (status != COLIBRI_OK)
        return status;
    status = fetch(storage, meta, meta_bytes, image->meta_bytes, &image->meta, error);
    /* storage may give other bytes the second time: from here only these count */
    if (status == COLIBRI_OK && memcmp(image->meta, header, HEADER) != 0)
        status = broken(error, 0);
    if (status == COLIBRI_OK)
        status = check_checksum(image, error);
#if COLIBRI_WITH_COMPANIONS
    if (status == COLIBRI_OK)
        status = colibri_count_files(image, error);
#endif
    if (status == COLIBRI_OK)
        status = check_sections(image, error);
#if COLIBRI_WITH_COMPANIONS
    if (status == COLIBRI_OK)
        status = colibri_check_files(image, error);
#endif
    if (status == COLIBRI_OK)
        status = check_tables(image, error);
    if (status == COLIBRI_OK)
        status = colibri_check_config(image, error);
    if (status == COLIBRI_OK)
        status = colibri_check_tensors(image, error);
    if (status == COLIBRI_OK)
        status = colibri_check_experts(image, error);
#if COLIBRI_WITH_COMPANIONS
    if (status == COLIBRI_OK)
        status = colibri_check_companions(image, error);
#endif
    return status;
}
