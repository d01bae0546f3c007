/* SPDX-License-Identifier: Apache-2.0 */
/* Reading entries of an image's tables. */
#include "bytes.h"
#include "image_rules.h"

colibri_status colibri_image_section(const colibri_image *image, uint32_t index, colibri_section *out)
{
    if (index >= image->section_count)
        return COLIBRI_ERR_ARGUMENT;
    const uint8_t *p = image->meta + 64 + index * 32u;
    out->kind = colibri_load_u32(p);
    out->file = colibri_load_u32(p + 4);
    out->offset = colibri_load_u64(p + 8);
    out->bytes = colibri_load_u64(p + 16);
    out->crc32 = colibri_load_u32(p + 24);
    out->count = colibri_load_u32(p + 28);
    return COLIBRI_OK;
}

uint32_t colibri_record_alignment(const colibri_image *image)
{
    return colibri_load_u32(image->meta + 48);
}

bool colibri_find_section(const colibri_image *image, uint32_t kind, colibri_section *out)
{
    for (uint32_t i = 0; colibri_image_section(image, i, out) == COLIBRI_OK; i++)
        if (out->kind == kind)
            return true;
    return false;
}

/* Companions have one section each, the last of the table, in the order of the files. */
bool colibri_find_records(const colibri_image *image, uint32_t file, colibri_section *out)
{
    uint32_t companions = colibri_companions(image), first = companions != 0, each = first != 0 ? companions : 1;
    return file >= first && file - first < each &&
           colibri_image_section(image, image->section_count - each + file - first, out) == COLIBRI_OK &&
           out->kind == COLIBRI_SECTION_EXPERT_WEIGHTS;
}

colibri_status colibri_image_file(const colibri_image *image, uint32_t file, colibri_file *out)
{
    if (file > colibri_companions(image))
        return COLIBRI_ERR_ARGUMENT;
    *out = (colibri_file){"", colibri_file_bytes(image, file)};
    if (file != 0)
        out->name = (const char *)image->meta + image->files + (file - 1) * (uint32_t)COLIBRI_FILE_ENTRY + 32;
    return COLIBRI_OK;
}

colibri_status colibri_image_tensor(const colibri_image *image, uint32_t index, colibri_tensor *out)
{
    if (index >= image->tensor_count)
        return COLIBRI_ERR_ARGUMENT;
    const uint8_t *p = image->meta + image->tensors + index * (uint32_t)COLIBRI_TENSOR_ENTRY;
    out->layer = (uint16_t)colibri_load_u16(p);
    out->role = (uint16_t)colibri_load_u16(p + 2);
    out->type = p[4];
    out->order = p[5];
    out->group = (uint16_t)colibri_load_u16(p + 6);
    out->rows = colibri_load_u32(p + 8);
    out->columns = colibri_load_u32(p + 12);
    out->offset = colibri_load_u64(p + 16);
    out->bytes = colibri_load_u64(p + 24);
    out->crc32 = colibri_load_u32(p + 32);
    return COLIBRI_OK;
}

colibri_status colibri_image_expert(const colibri_image *image, uint32_t index, colibri_expert *out)
{
    if (index >= image->expert_count)
        return COLIBRI_ERR_ARGUMENT;
    const uint8_t *p = image->meta + image->experts + index * (uint32_t)COLIBRI_EXPERT_ENTRY;
    out->offset = colibri_load_u64(p);
    out->bytes = colibri_load_u32(p + 8);
    out->crc32 = colibri_load_u32(p + 12);
    out->file = colibri_load_u32(p + 16);
    return COLIBRI_OK;
}

/* Entries ascend by (layer, role): binary search. */
colibri_status colibri_image_find(const colibri_image *image, uint32_t layer, uint32_t role,
                                  colibri_tensor *out)
{
    uint32_t low = 0, high = image->tensor_count, key = layer << 16 | role;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        (void)colibri_image_tensor(image, middle, out);
        uint32_t found = (uint32_t)out->layer << 16 | out->role;
        if (found == key)
            return COLIBRI_OK;
        if (found < key)
            low = middle + 1;
        else
            high = middle;
    }
    return COLIBRI_ERR_TENSOR;
}

void colibri_image_layer(const colibri_image *image, uint32_t layer, colibri_layer *out)
{
    const uint8_t *p = image->meta + image->layers + layer * (uint32_t)COLIBRI_LAYER_ENTRY;
    out->mixer = p[0];
    out->ffn = p[1];
    out->rope = p[2];
    out->flags = p[3];
    out->window = colibri_load_u32(p + 4);
    out->chunk = colibri_load_u32(p + 8);
    out->head_size = colibri_load_u16(p + 12);
    out->kv_heads = colibri_load_u16(p + 14);
    out->head_size = out->head_size != 0 ? out->head_size : image->config.head_size;
    out->kv_heads = out->kv_heads != 0 ? out->kv_heads : image->config.kv_heads;
}

uint32_t colibri_image_stop_ids(const colibri_image *image, uint32_t *ids, uint32_t capacity)
{
    colibri_section s;
    if (!colibri_find_section(image, COLIBRI_SECTION_STOP, &s))
        return 0;
    for (uint32_t i = 0; i < s.count && i < capacity; i++)
        ids[i] = colibri_load_u32(image->meta + s.offset + i * 4u);
    return s.count;
}

bool colibri_image_is_stop(const colibri_image *image, uint32_t token)
{
    colibri_section s;
    bool found = false;
    if (colibri_find_section(image, COLIBRI_SECTION_STOP, &s))
        for (uint32_t i = 0; i < s.count && !found; i++)
            found = colibri_load_u32(image->meta + s.offset + i * 4u) == token;
    return found;
}
