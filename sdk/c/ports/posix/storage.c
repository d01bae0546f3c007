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
    void *mapping = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file->descriptor, 0);
    if (mapping == MAP_FAILED) return fail(file, errno);
    file->mapping = mapping;
    file->storage.map = map;
    return 0;
}

void colibri_posix_close(colibri_posix_file *file)
{
    if (file->mapping != NULL) (void)munmap(file->mapping, (size_t)file->storage.bytes);
    if (file->descriptor >= 0) (void)close(file->descriptor);
    memset(file, 0, sizeof *file);
    file->descriptor = -1;
}
