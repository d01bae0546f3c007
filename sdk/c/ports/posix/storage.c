/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "colibri_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pages.h"

/* One file, and the range lies inside it. */
static int inside(const colibri_posix_file *file, uint32_t number, uint64_t offset, uint64_t bytes)
{
    return number == 0 && offset <= file->storage.bytes && bytes <= file->storage.bytes - offset;
}

static const void *map(void *context, uint32_t number, uint64_t offset, uint64_t bytes)
{
    const colibri_posix_file *file = context;
    if (!inside(file, number, offset, bytes)) return NULL;
    return (const char *)file->mapping + offset;
}

static int read_all(void *context, uint32_t number, uint64_t offset, void *destination,
                    uint64_t bytes)
{
    const colibri_posix_file *file = context;
    char *out = destination;
    if (!inside(file, number, offset, bytes)) return -1;
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
    if (read_all(file, 0, 0, huge.memory, file->storage.bytes) != 0 ||
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

int colibri_posix_open(colibri_posix_file *file, const char *path, int mode)
{
    struct stat status;
    memset(file, 0, sizeof *file);
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0) return fail(file, errno);
    if (fstat(file->descriptor, &status) != 0) return fail(file, errno);
    if (S_ISDIR(status.st_mode)) return fail(file, EISDIR);
    if (!S_ISREG(status.st_mode)) return fail(file, EINVAL); /* a pipe has no offsets */
    file->storage.struct_bytes = sizeof file->storage;
    file->storage.context = file;
    file->storage.bytes = (uint64_t)status.st_size;
    file->storage.read = read_all;
    if (mode == COLIBRI_POSIX_READ || status.st_size == 0) return 0;
    if ((uint64_t)status.st_size > SIZE_MAX) return 0; /* a 32-bit host reads what it cannot map */
    const int copied = mode == COLIBRI_POSIX_HUGE ? copy_file(file) : 0;
    if (copied < 0 || (copied == 0 && map_file(file) != 0)) return -1;
    file->storage.map = map;
    return 0;
}

void colibri_posix_file_pages(const colibri_posix_file *file, colibri_posix_pages *pages)
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

void colibri_posix_close(colibri_posix_file *file)
{
    if (file->reserved != NULL) (void)munmap(file->reserved, (size_t)file->reserved_bytes);
    if (file->descriptor >= 0) (void)close(file->descriptor);
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
}
