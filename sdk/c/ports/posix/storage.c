/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "colibri_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pages.h"
#include "reader.h"
#include "storage.h"

const colibri_posix_file *colibri_file_of(const colibri_posix_file *image, uint32_t number, uint64_t offset,
                                          uint64_t bytes)
{
    const colibri_posix_file *file = image;
    if (number != 0) file = number <= COLIBRI_MAX_COMPANIONS ? image->companions[number - 1] : NULL;
    if (file == NULL || offset > file->storage.bytes || bytes > file->storage.bytes - offset) return NULL;
    return file;
}

static const void *map(void *context, uint32_t number, uint64_t offset, uint64_t bytes)
{
    const colibri_posix_file *file = colibri_file_of(context, number, offset, bytes);
    return file != NULL && file->mapping != NULL ? (const char *)file->mapping + offset : NULL;
}

int colibri_file_read(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes)
{
    const colibri_posix_file *file = colibri_file_of(context, number, offset, bytes);
    char *out = destination;
    if (file == NULL) return -1;
    while (bytes > 0) {
        const size_t piece = bytes < (1u << 30) ? (size_t)bytes : (size_t)1u << 30;
        const ssize_t got = pread(file->descriptor, out, piece, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1; /* an error, or the file got shorter */
        out += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return 0;
}

static int fail(colibri_posix_file *file, int error)
{
    if (file->descriptor >= 0) (void)close(file->descriptor);
    file->descriptor = -1;
    file->error = error;
    return -1;
}

static int map_file(colibri_posix_file *file)
{
    const size_t bytes = (size_t)file->storage.bytes;
    void *mapping = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file->descriptor, 0);
    if (mapping == MAP_FAILED) return fail(file, errno);
    file->mapping = file->reserved = mapping;
    file->reserved_bytes = bytes;
    return 0;
}

/* 1: a copy is in memory; 0: there is no such memory, for file->reason; -1: the file cannot be read. */
static int copy_file(colibri_posix_file *file)
{
    colibri_huge huge;
    file->reason = colibri_huge_take(file->storage.bytes, &huge);
    if (file->reason != NULL) return 0;
    if (colibri_file_read(file, 0, 0, huge.memory, file->storage.bytes) != 0 ||
        mprotect(huge.memory, (size_t)huge.bytes, PROT_READ) != 0) {
        (void)munmap(huge.reserved, (size_t)huge.reserved_bytes);
        return fail(file, EIO);
    }
    file->mapping = huge.memory;
    file->reserved = huge.reserved;
    file->reserved_bytes = huge.reserved_bytes;
    file->own_bytes = huge.bytes;
    return 1;
}

static int open_file(colibri_posix_file *file, const char *path, int mode)
{
    struct stat status;
    memset(file, 0, sizeof *file);
    file->mode = mode;
    file->direct = -1;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0) return fail(file, errno);
    if (fstat(file->descriptor, &status) != 0) return fail(file, errno);
    if (S_ISDIR(status.st_mode)) return fail(file, EISDIR);
    if (!S_ISREG(status.st_mode)) return fail(file, EINVAL); /* a pipe has no offsets */
    file->storage.struct_bytes = sizeof file->storage;
    file->storage.context = file;
    file->storage.bytes = (uint64_t)status.st_size;
    file->storage.read = colibri_file_read;
    if (mode == COLIBRI_POSIX_READ || status.st_size == 0) return 0;
    if ((uint64_t)status.st_size > SIZE_MAX) return 0; /* a 32-bit host reads what it cannot map */
    const int copied = mode == COLIBRI_POSIX_HUGE ? copy_file(file) : 0;
    if (copied < 0 || (copied == 0 && map_file(file) != 0)) return -1;
    file->storage.map = map;
    return 0;
}

static void close_file(colibri_posix_file *file)
{
    if (file->reserved != NULL) (void)munmap(file->reserved, (size_t)file->reserved_bytes);
    if (file->direct >= 0) (void)close(file->direct);
    if (file->descriptor >= 0) (void)close(file->descriptor);
}

static void close_companion(colibri_posix_file *image, uint32_t index)
{
    if (image->companions[index] != NULL) close_file(image->companions[index]);
    free(image->companions[index]);
    image->companions[index] = NULL;
}

/* The path of a file beside the image; NULL: no memory. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    const size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0, length = strlen(name) + 1;
    char *out = malloc(folder + length);
    if (out == NULL) return NULL;
    memcpy(out, path, folder);
    memcpy(out + folder, name, length);
    return out;
}

static int companion(void *context, uint32_t number, const char *name, uint64_t bytes)
{
    colibri_posix_file *image = context;
    if (number - 1u >= COLIBRI_MAX_COMPANIONS) return COLIBRI_COMPANION_MISSING;
    close_companion(image, number - 1);
    colibri_posix_file *file = calloc(1, sizeof *file);
    char *path = file != NULL ? beside(image->path, name) : NULL;
    image->error = ENOMEM;
    if (path == NULL || open_file(file, path, image->mode) != 0) {
        if (path != NULL) image->error = file->error;
        free(path);
        free(file);
        return COLIBRI_COMPANION_MISSING;
    }
    free(path);
    image->companions[number - 1] = file;
    image->error = colibri_reader_add(image->reader, file);
    if (image->error != 0) return COLIBRI_COMPANION_MISSING;
    return file->storage.bytes < bytes ? COLIBRI_COMPANION_SHORT : 0;
}

int colibri_posix_open(colibri_posix_file *file, const char *path, int mode)
{
    if (open_file(file, path, mode) != 0) return -1;
    file->path = strdup(path);
    if (file->path == NULL) {
        close_file(file);
        file->descriptor = -1;
        return fail(file, ENOMEM);
    }
    file->storage.companion = companion;
    return 0;
}

static void pages_of(const colibri_posix_file *file, colibri_posix_pages *pages)
{
    const colibri_huge huge = {.memory = (void *)(uintptr_t)file->mapping, .bytes = file->own_bytes};
    *pages = (colibri_posix_pages){.bytes = file->own_bytes, .reason = file->reason};
    if (file->own_bytes == 0) return;
    const uint64_t count = colibri_huge_count(&huge);
    if (count == UINT64_MAX)
        pages->reason = "the kernel does not tell (/proc/self/smaps)";
    else if (count < file->own_bytes)
        pages->reason = "the kernel put the rest into ordinary pages";
    pages->huge_bytes = count == UINT64_MAX ? 0 : count;
}

void colibri_posix_file_pages(const colibri_posix_file *file, colibri_posix_pages *pages)
{
    pages_of(file, pages);
    for (uint32_t i = 0; i < COLIBRI_MAX_COMPANIONS; i++) {
        colibri_posix_pages more;
        if (file->companions[i] == NULL) continue;
        pages_of(file->companions[i], &more);
        pages->bytes += more.bytes;
        pages->huge_bytes += more.huge_bytes;
        pages->reason = pages->reason != NULL ? pages->reason : more.reason;
    }
}

void colibri_posix_close(colibri_posix_file *file)
{
    colibri_reader_end(file->reader);
    for (uint32_t i = 0; i < COLIBRI_MAX_COMPANIONS; i++)
        close_companion(file, i);
    close_file(file);
    free(file->path);
    memset(file, 0, sizeof *file);
    file->descriptor = file->direct = -1;
}
