/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void stop(int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fflush(stdout);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(code);
}

uint8_t *exact(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes != 0 ? bytes : 1) != 0)
        stop(2, "no memory for %zu bytes", bytes);
    return memory;
}

uint8_t *load_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        stop(2, "cannot open %s", path);
    *bytes = (size_t)ftell(file);
    uint8_t *memory = exact(*bytes);
    rewind(file);
    if (fread(memory, 1, *bytes, file) != *bytes)
        stop(2, "cannot read %s", path);
    fclose(file);
    return memory;
}

static const void *memory_map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct memory *m = context;
    if (file > m->companions)
        return NULL;
    m = file == 0 ? m : &m->beside[file - 1];
    return offset <= m->size && bytes <= m->size - offset ? m->bytes + offset : NULL;
}

static int memory_read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    struct memory *m = context;
    const void *source = memory_map(context, file, offset, bytes);
    m->reads++;
    if (m->reads_left-- == 0 || source == NULL) {
        memset(destination, 0xA5, (size_t)bytes); /* a failed read promises nothing */
        return -1;
    }
    memcpy(destination, source, (size_t)bytes);
    return 0;
}

void memory_storage(colibri_storage *storage, struct memory *memory, const uint8_t *bytes, size_t size,
                    int map, int read)
{
    *memory = (struct memory){.bytes = bytes, .size = size, .reads_left = UINT64_MAX};
    *storage = (colibri_storage){.struct_bytes = sizeof *storage, .context = memory, .bytes = size,
                                 .map = map ? memory_map : NULL, .read = read ? memory_read : NULL};
}

const colibri_kernels *kernel_table(uint32_t index)
{
    if (index == 0)
        return &colibri_kernels_ref;
#ifdef COLIBRI_KERNELS_X86
    if (index == 1)
        return colibri_kernels_avx2();
    if (index == 2)
        return colibri_kernels_avx512();
#endif
    return NULL;
}

uint32_t random_bits(struct random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 32);
}

uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((uint64_t)random_bits(r) * n >> 32);
}

uint32_t crc_u32(uint32_t crc, uint32_t word)
{
    const uint8_t bytes[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16), (uint8_t)(word >> 24)};
    return colibri_crc32(crc, bytes, 4);
}

float float_from(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
