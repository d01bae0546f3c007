/* SPDX-License-Identifier: Apache-2.0 */
/* Checks weight bytes against the checksums of the tables. */
#include "bytes.h"
#include "fail.h"
#include "image_rules.h"
#include "tensor.h"

struct source {
    const colibri_image *image;
    uint8_t *block;
    uint32_t block_bytes;
};

static colibri_status crc_of(const struct source *s, uint32_t file, uint64_t offset, uint64_t bytes,
                             uint32_t *crc, colibri_error *error)
{
    const colibri_storage *storage = s->image->storage;
    const void *mapped =
        storage->map != NULL ? storage->map(storage->context, file, offset, bytes) : NULL;
    *crc = 0;
    if (mapped != NULL) {
        *crc = colibri_crc32(0, mapped, bytes);
        return COLIBRI_OK;
    }
    if (s->block == NULL || s->block_bytes < 64)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 2, s->block_bytes, 64);
    while (bytes != 0) {
        uint32_t n = bytes < s->block_bytes ? (uint32_t)bytes : s->block_bytes;
        if (storage->read == NULL || storage->read(storage->context, file, offset, s->block, n) != 0)
            return colibri_fail(error, COLIBRI_ERR_STORAGE, COLIBRI_NO_EXPERT | file, offset, n);
        *crc = colibri_crc32(*crc, s->block, n);
        offset += n;
        bytes -= n;
    }
    return COLIBRI_OK;
}

static colibri_status check(const struct source *s, uint32_t block, uint32_t file, uint64_t offset,
                            uint64_t bytes, uint32_t expected, colibri_error *error)
{
    uint32_t crc;
    colibri_status status = crc_of(s, file, offset, bytes, &crc, error);
    if (status == COLIBRI_OK && crc != expected)
        return colibri_fail(error, COLIBRI_ERR_CHECKSUM, block, crc, expected);
    return status;
}

/* Blocks are numbered: tensors by their entry, then experts, then the tokenizer. */
colibri_status colibri_verify(const colibri_image *image, void *block, uint32_t block_bytes,
                              colibri_error *error)
{
    if (image == NULL || image->meta == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 1, 0, 0);
    struct source source = {image, block, block_bytes};
    colibri_status status = COLIBRI_OK;
    colibri_section section;
    colibri_tensor tensor;
    colibri_expert expert;
    for (uint32_t i = 0; status == COLIBRI_OK && i < image->tensor_count; i++) {
        (void)colibri_image_tensor(image, i, &tensor);
        if (!colibri_role_in_record(tensor.role))
            status = check(&source, i, 0, tensor.offset, tensor.bytes, tensor.crc32, error);
    }
    for (uint32_t i = 0; status == COLIBRI_OK && i < image->expert_count; i++) {
        (void)colibri_image_expert(image, i, &expert);
        status = check(&source, image->tensor_count + i, expert.file, expert.offset, expert.bytes,
                       expert.crc32, error);
    }
    if (status == COLIBRI_OK && colibri_find_section(image, COLIBRI_SECTION_TOKENIZER, &section))
        status = check(&source, image->tensor_count + image->expert_count, 0, section.offset,
                       section.bytes, section.crc32, error);
    return status;
}
