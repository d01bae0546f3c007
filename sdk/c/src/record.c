/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <stddef.h>
#include <string.h>

#include "image_rules.h"

#if COLIBRI_WITH_STREAMING
bool colibri_storage_overlaps(const colibri_storage *s)
{
    return s->struct_bytes >= offsetof(colibri_storage, wait) + sizeof s->wait && s->start != NULL && s->wait != NULL;
}

int colibri_storage_read(const colibri_storage *s, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    if (s->read != NULL)
        return s->read(s->context, file, offset, destination, bytes);
    const void *mapped = s->map(s->context, file, offset, bytes);
    if (mapped == NULL)
        return -1;
    memcpy(destination, mapped, (size_t)bytes);
    return 0;
}

uint32_t colibri_crc_of(const struct engine *e, const uint8_t *data, uint64_t bytes)
{
    const colibri_kernels *k = e->kernels;
    bool own = k->struct_bytes >= offsetof(colibri_kernels, crc32) + sizeof k->crc32 && k->crc32 != NULL;
    return own ? k->crc32(0, data, bytes) : colibri_crc32(0, data, bytes);
}

struct colibri_record colibri_record_in(const struct engine *e, uint32_t layer, uint32_t first, uint32_t expert)
{
    struct colibri_record r = {.engine = e, .layer = layer, .expert = expert,
                               .slot = e->cache.places[first + expert]};
    (void)colibri_image_expert(e->image, first + expert, &r.entry);
    return r;
}

static uint8_t *memory_of(const struct colibri_record *r)
{
    return r->engine->slots + (size_t)r->slot * r->engine->slot_bytes;
}

bool colibri_record_begin(const struct colibri_record *r, uint32_t attempt)
{
    const colibri_storage *s = r->engine->image->storage;
    struct colibri_slot *slot = &r->engine->cache.slots[r->slot];
    slot->begun = colibri_storage_overlaps(s) && s->start(s->context, r->entry.file, r->entry.offset, memory_of(r),
                                                          r->entry.bytes, &slot->ticket) == 0;
    if (slot->begun || attempt != 0)
        colibri_trace(r->engine, COLIBRI_EVENT_READ, r->layer, r->expert, attempt, r->entry.bytes, 0);
    return slot->begun;
}

colibri_status colibri_record_end(const struct colibri_record *r)
{
    const colibri_storage *s = r->engine->image->storage;
    struct colibri_slot *slot = &r->engine->cache.slots[r->slot];
    int failed = -1;
    if (slot->begun)
        failed = s->wait(s->context, slot->ticket);
    else if (!colibri_storage_overlaps(s) || s->read != NULL)
        failed = colibri_storage_read(s, r->entry.file, r->entry.offset, memory_of(r), r->entry.bytes);
    slot->begun = 0;
    colibri_status status = COLIBRI_OK;
    if (failed != 0)
        status = COLIBRI_ERR_STORAGE;
    else if (colibri_crc_of(r->engine, memory_of(r), r->entry.bytes) != r->entry.crc32)
        status = COLIBRI_ERR_CORRUPT;
    colibri_trace(r->engine, COLIBRI_EVENT_READ_WAIT, r->layer, r->expert, (uint32_t)status, r->entry.bytes, 0);
    return status;
}
#endif
