/* SPDX-License-Identifier: Apache-2.0 */
/* Linux kernel documentation, admin-guide/mm/transhuge: a mapping whose addresses start and end at
 * huge pages and that MADV_HUGEPAGE was asked for gets them when it is touched, if there are any. */
#define _GNU_SOURCE /* MADV_HUGEPAGE */

#include "pages.h"

#if defined(__linux__)
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"

/* The start of a file as text; empty when there is none. */
static void read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    const size_t got = file != NULL ? fread(text, 1, size - 1, file) : 0;
    text[got] = '\0';
    if (file != NULL) (void)fclose(file);
}

/* Of a huge page; 0: there are none. */
static uint64_t page_bytes(void)
{
    char text[32];
    unsigned long long bytes = 0;
    read_text(THP "hpage_pmd_size", text, sizeof text);
    if (sscanf(text, "%llu", &bytes) != 1 || (bytes & (bytes - 1)) != 0) return 0;
    return bytes;
}

/* A page that is not there ends the process later: better to know now. */
static int is_short(uint64_t bytes)
{
    char text[512];
    unsigned long long available = 0;
    read_text("/proc/meminfo", text, sizeof text);
    const char *line = strstr(text, "MemAvailable:");
    return line != NULL && sscanf(line, "MemAvailable: %llu", &available) == 1 && bytes / 1024 > available;
}

static const char *obstacle(uint64_t bytes)
{
    char enabled[64];
    read_text(THP "enabled", enabled, sizeof enabled);
    if (strstr(enabled, "[never]") != NULL) return "transparent huge pages are off (" THP "enabled)";
    if (is_short(bytes)) return "the system has less memory available than the image takes";
    return NULL;
}

const char *colibri_huge_take(uint64_t bytes, colibri_huge *huge)
{
    const uint64_t page = page_bytes();
    memset(huge, 0, sizeof *huge);
    if (page == 0) return "this system has no transparent huge pages";
    if (bytes > SIZE_MAX - 3 * page) return "the address space is too small";
    const uint64_t whole = (bytes + page - 1) / page * page, reserved = whole + 2 * page;
    const char *reason = obstacle(whole);
    if (reason != NULL) return reason;
    void *start = mmap(NULL, (size_t)reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return "the address space is too small";
    char *memory = (char *)start + (page - (uintptr_t)start % page);
    if (mprotect(memory, (size_t)whole, PROT_READ | PROT_WRITE) != 0)
        reason = "this process may not have as much memory";
    else if (madvise(memory, (size_t)whole, MADV_HUGEPAGE) != 0)
        reason = "the kernel refuses MADV_HUGEPAGE";
    if (reason != NULL) {
        (void)munmap(start, (size_t)reserved);
        return reason;
    }
    *huge = (colibri_huge){memory, whole, start, reserved};
    return NULL;
}

uint64_t colibri_huge_count(const colibri_huge *huge)
{
    const unsigned long long begin = (uintptr_t)huge->memory, end = begin + huge->bytes;
    unsigned long long from, to, kib, total = 0;
    int inside = 0;
    char line[512];
    FILE *file = fopen("/proc/self/smaps", "re");
    if (file == NULL) return UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = from >= begin && to <= end; /* head of the next mapping */
        else if (inside && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1)
            total += kib * 1024;
    }
    (void)fclose(file);
    return total;
}
#else
const char *colibri_huge_take(uint64_t bytes, colibri_huge *huge)
{
    (void)bytes, (void)huge;
    return "this system has no transparent huge pages";
}

uint64_t colibri_huge_count(const colibri_huge *huge)
{
    (void)huge;
    return UINT64_MAX;
}
#endif
