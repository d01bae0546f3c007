/* SPDX-License-Identifier: Apache-2.0 */
/* Companion files of sharded and hybrid images (docs/spec.md section 7): what the tables say of them, then
 * what they say themselves. Names are only checked here; where a file lies is the port's to know. */
#include <stddef.h>
#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "image_rules.h"
#include "options.h"
#include "size.h"

enum { LAYOUT = 12, FILE_ID = 8, FILE_ZERO = 24, FILE_NAME = 32, NAME_BYTES = 64, HEADER = 64 };

#if COLIBRI_WITH_COMPANIONS
static const uint8_t magic[8] = {0x89, 'C', 'L', 'X', '\r', '\n', 0x1A, '\n'};

/* As many as the files section says; its bytes are checked with the other sections'. */
colibri_status colibri_count_files(colibri_image *image, colibri_error *error)
{
    uint32_t layout = colibri_load_u32(image->meta + LAYOUT);
    colibri_section s;
    if (layout == COLIBRI_LAYOUT_MONOLITHIC)
        return COLIBRI_OK;
    if (!colibri_find_section(image, COLIBRI_SECTION_FILES, &s) || s.count - 1u >= COLIBRI_MAX_COMPANIONS ||
        s.count >= image->section_count || (layout == COLIBRI_LAYOUT_HYBRID && s.count != 1) ||
        s.bytes != (uint64_t)s.count * COLIBRI_FILE_ENTRY)
        return colibri_fail(error, COLIBRI_ERR_STRUCTURE, LAYOUT, 0, 0);
    image->companions = s.count;
    image->files = (uint32_t)s.offset; /* inside the meta part once check_sections has passed */
    return COLIBRI_OK;
}

/* Bytes of the well-formed UTF-8 sequence at p, 0 for none (RFC 3629, section 4). A zero ends the text. */
static uint32_t sequence(const uint8_t *p)
{
    uint32_t lead = p[0], n = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xC2) || lead >= 0xF5)
        return 0;
    for (uint32_t i = 1; i < n; i++)
        if ((p[i] & 0xC0u) != 0x80)
            return 0;
    bool outside = (lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] >= 0xA0) ||
                   (lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] >= 0x90);
    return outside ? 0 : n;
}

/* A name and no path: 1 to 63 bytes, padded with zeros. */
static bool name_ok(const uint8_t *name)
{
    uint32_t n = 0, step;
    for (uint32_t i = 0; i < NAME_BYTES; i++)
        n += n == i && name[i] != 0;
    for (uint32_t i = n; i < NAME_BYTES; i++)
        if (name[i] != 0)
            return false;
    if (n == 0 || n == NAME_BYTES || (name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.'))))
        return false;
    for (uint32_t i = 0; i < n; i += step) {
        step = sequence(name + i);
        if (step == 0 || name[i] < ' ' || name[i] == 0x7F || name[i] == '/' || name[i] == '\\' || name[i] == ':')
            return false;
    }
    return true;
}

static bool all_zero(const uint8_t *p, uint32_t bytes)
{
    while (bytes != 0)
        if (p[--bytes] != 0)
            return false;
    return true;
}

/* The entry of the files table, and the section that fills the file. */
static bool entry_ok(const colibri_image *image, uint32_t file, const uint8_t *entry)
{
    uint32_t alignment = colibri_load_u32(image->meta + 48);
    colibri_section s;
    uint64_t end;
    return colibri_find_records(image, file, &s) && s.file == file && s.offset == alignment && s.bytes != 0 &&
           s.crc32 == 0 && s.count == 0 && colibri_add(s.offset, s.bytes, &end) && end == colibri_load_u64(entry) &&
           memcmp(entry + FILE_ID, image->meta + 32, 16) == 0 && all_zero(entry + FILE_ZERO, 8) &&
           name_ok(entry + FILE_NAME);
}

colibri_status colibri_check_files(colibri_image *image, colibri_error *error)
{
    uint64_t total = image->bytes, start;
    for (uint32_t i = 0; i < image->companions; i++) {
        uint32_t at = image->files + i * (uint32_t)COLIBRI_FILE_ENTRY;
        if (!entry_ok(image, i + 1, image->meta + at) || !colibri_align(total, 64, &start) ||
            !colibri_add(start, colibri_load_u64(image->meta + at), &total))
            return colibri_fail(error, COLIBRI_ERR_STRUCTURE, at, 0, 0);
    }
    image->total_bytes = total;
    return COLIBRI_OK;
}

/* Some bytes of a file: mapped, or read into memory; NULL when neither works. */
static const uint8_t *look(const colibri_storage *s, uint32_t file, uint64_t offset, uint32_t bytes, uint8_t *memory)
{
    const uint8_t *mapped = s->map != NULL ? s->map(s->context, file, offset, bytes) : NULL;
    if (mapped != NULL)
        return mapped;
    return s->read != NULL && s->read(s->context, file, offset, memory, bytes) == 0 ? memory : NULL;
}

/* 0, or COLIBRI_COMPANION_* */
static uint32_t check_header(const colibri_image *image, uint32_t number, uint64_t bytes, const uint8_t *h)
{
    if (memcmp(h, magic, sizeof magic) != 0 || colibri_load_u32(h + 8) != COLIBRI_IMAGE_VERSION)
        return COLIBRI_COMPANION_MAGIC;
    if (colibri_crc32(0, h, 60) != colibri_load_u32(h + 60) || !all_zero(h + 40, 20))
        return COLIBRI_COMPANION_DAMAGED;
    if (memcmp(h + 24, image->meta + 32, 16) != 0)
        return COLIBRI_COMPANION_ID;
    if (colibri_load_u32(h + 12) != number)
        return COLIBRI_COMPANION_NUMBER;
    return colibri_load_u64(h + 16) == bytes ? 0 : COLIBRI_COMPANION_BYTES;
}

static uint32_t check_companion(const colibri_image *image, uint32_t number, const colibri_file *file)
{
    const colibri_storage *s = image->storage;
    const bool told = s->struct_bytes >= offsetof(colibri_storage, companion) + sizeof s->companion;
    uint8_t memory[HEADER];
    int refused = told && s->companion != NULL ? s->companion(s->context, number, file->name, file->bytes) : 0;
    if (refused != 0)
        return refused == COLIBRI_COMPANION_SHORT ? COLIBRI_COMPANION_SHORT : COLIBRI_COMPANION_MISSING;
    const uint8_t *header = look(s, number, 0, HEADER, memory);
    uint32_t wrong = header != NULL ? check_header(image, number, file->bytes, header) : COLIBRI_COMPANION_MISSING;
    if (wrong == 0 && look(s, number, file->bytes - 1, 1, memory) == NULL)
        return COLIBRI_COMPANION_SHORT;
    return wrong;
}

colibri_status colibri_check_companions(const colibri_image *image, colibri_error *error)
{
    for (uint32_t i = 1; i <= image->companions; i++) {
        colibri_file file;
        (void)colibri_image_file(image, i, &file);
        uint32_t wrong = check_companion(image, i, &file);
        if (wrong != 0)
            return colibri_fail(error, COLIBRI_ERR_COMPANION, i, wrong, file.bytes);
    }
    return COLIBRI_OK;
}
#endif
