/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty_storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct faulty_read *at(struct faulty_storage *s, uint32_t ticket)
{
    return &s->under_way[ticket % MAX_UNDER_WAY];
}

/* Once the run has begun: only whole records, to places that are aligned as the image is. */
static void check_request(const struct faulty_storage *s, uint32_t file, uint64_t offset, const void *destination,
                          uint64_t bytes)
{
    EXPECT(s->files[file] != NULL && offset <= s->sizes[file] && bytes <= s->sizes[file] - offset);
    if (s->records == NULL)
        return;
    const uint8_t *header = s->files[0];
    uint32_t alignment = (uint32_t)header[48] | (uint32_t)header[49] << 8 | (uint32_t)header[50] << 16, i = 0;
    colibri_expert record;
    while (colibri_image_expert(s->records, i, &record) == COLIBRI_OK &&
           (record.offset != offset || record.file != file))
        i++;
    EXPECT(i < s->records->expert_count && record.bytes == bytes);
    EXPECT((uintptr_t)destination % alignment == 0);
}

static enum fault next_fault(struct faulty_storage *s, uint32_t file, uint64_t offset)
{
    uint32_t n = s->reads++;
    if (n == s->fail_at) {
        s->fail_file = file;
        s->fail_offset = offset;
    }
    if (n < s->fail_at || offset != s->fail_offset || file != s->fail_file || s->fail_count == 0)
        return NONE;
    s->fail_count--;
    return s->fault;
}

static void give(const struct faulty_storage *s, struct faulty_read *r)
{
    if (r->given)
        return;
    r->given = 1;
    uint64_t n = r->fault == SHORT ? r->bytes / 2 : r->fault == FAILED || r->fault == NEVER ? 0 : r->bytes;
    memcpy(r->destination, s->files[r->file] + r->offset, (size_t)n);
    if (r->fault == CORRUPT)
        r->destination[r->bytes - 1] ^= 0x10;
}

/* What read and wait return. */
static int outcome(struct faulty_storage *s, const struct faulty_read *r)
{
    int wrong = r->fault != NONE && r->fault != LATE;
    s->failed += (uint32_t)wrong;
    s->bytes += wrong || s->records == NULL ? 0 : r->bytes;
    return wrong && r->fault != CORRUPT ? 5 : 0;
}

static int start(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes, uint32_t *ticket)
{
    struct faulty_storage *s = context;
    EXPECT(s->end - s->first < MAX_UNDER_WAY && s->records != NULL);
    check_request(s, file, offset, destination, bytes);
    for (uint32_t i = s->first; i != s->end; i++)
        EXPECT(at(s, i)->ended || at(s, i)->destination != destination);
    memset(destination, 0xA5, (size_t)bytes); /* whoever computes before the wait sees it */
    struct faulty_read r = {file, offset, destination, bytes, next_fault(s, file, offset), 0, 0, 0};
    r.again = offset == s->fail_offset || s->fault == NEVER;
    if (r.fault == REFUSED) {
        s->failed += s->storage.read == NULL;
        return -1;
    }
    *ticket = s->end++;
    *at(s, *ticket) = r;
    return 0;
}

static int wait(void *context, uint32_t ticket)
{
    struct faulty_storage *s = context;
    struct faulty_read *r = at(s, ticket);
    EXPECT(ticket - s->first < s->end - s->first && !r->ended);
    EXPECT(ticket == s->first || r->again);
    for (uint32_t i = s->end; i-- != s->first;) {
        if (r->fault == NEVER && !at(s, i)->ended && !at(s, i)->given)
            at(s, i)->fault = NEVER;
        if (at(s, i)->fault != LATE || i == ticket)
            give(s, at(s, i));
    }
    r->ended = 1;
    while (s->first != s->end && at(s, s->first)->ended)
        s->first++;
    return outcome(s, r);
}

static int read_now(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    struct faulty_storage *s = context;
    const int counted = s->storage.start == NULL || s->records == NULL;
    EXPECT(counted || s->fault == REFUSED);
    check_request(s, file, offset, destination, bytes);
    struct faulty_read r = {file, offset, destination, bytes, counted ? next_fault(s, file, offset) : NONE, 0, 0, 0};
    if (r.fault == REFUSED)
        r.fault = FAILED;
    give(s, &r);
    return outcome(s, &r);
}

static const void *map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct faulty_storage *s = context;
    return offset <= s->sizes[file] && bytes <= s->sizes[file] - offset ? s->files[file] + offset : NULL;
}

static int companion(void *context, uint32_t number, const char *name, uint64_t bytes)
{
    struct faulty_storage *s = context;
    char path[1024];
    const char *slash = strrchr(s->path, '/');
    if (s->files[number] == NULL) {
        (void)snprintf(path, sizeof path, "%.*s%s", slash != NULL ? (int)(slash - s->path) + 1 : 0, s->path, name);
        s->files[number] = load_file(path, &s->sizes[number]);
    }
    return s->sizes[number] < bytes ? COLIBRI_COMPANION_SHORT : 0;
}

void faulty_storage(struct faulty_storage *s, const char *path, enum reading how)
{
    for (uint32_t i = 0; i < MAX_FILES; i++)
        free(s->files[i]);
    memset(s, 0, sizeof *s);
    s->path = path;
    s->fail_at = UINT32_MAX;
    s->files[0] = load_file(path, &s->sizes[0]);
    s->storage = (colibri_storage){.struct_bytes = sizeof s->storage, .context = s, .bytes = s->sizes[0],
                                   .read = how == MAPPED ? NULL : read_now, .map = how == MAPPED ? map : NULL,
                                   .companion = companion};
    if (how != BLOCKING) {
        s->storage.start = start;
        s->storage.wait = wait;
    }
}

void set_fault(struct faulty_storage *s, enum fault fault, uint32_t at_read, uint32_t count)
{
    s->first = s->end = s->failed = 0;
    s->fault = fault;
    s->fail_at = at_read;
    s->fail_count = count;
    s->fail_file = 0;
    s->fail_offset = 0;
}

int harmless(const struct faulty_storage *s)
{
    return s->fault == NONE || s->fault == LATE ||
           (s->fault == REFUSED && s->storage.start != NULL && s->storage.read != NULL && s->records != NULL);
}
