/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance test (sdk/c/conformance) as a program. With AddressSanitizer every buffer is exactly as long as an
 * operation may touch; without, they lie side by side in one memory, as on a device.
 *   conformance TABLE quick|full      prints "operation type group order crc32" lines, then "all crc32"
 *   conformance broken:NAME quick     a table with a known defect (broken.c); "conformance broken" lists them
 * Ends with 1 when the table differs from the reference, and says where first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broken.h"
#include "conformance.h"
#include "support.h"

enum { MOST = 16 };
static void *buffers[MOST];
static unsigned taken;

static void *take(void *context, size_t bytes, size_t alignment)
{
    (void)context, (void)alignment;
    if (taken == MOST)
        stop(2, "a case takes more than %d buffers", MOST);
    return buffers[taken++] = exact(bytes);
}

static void release(void *context)
{
    (void)context;
    while (taken > 0)
        free(buffers[--taken]);
}

static const char *operation(const colibri_conformance_result *part)
{
    static const char *const names[] = {"", "quantize", "matmul", "rms_norm", "silu_gate", "attend"};
    return names[part->first.operation];
}

static void report(void *context, const colibri_conformance_result *part)
{
    static const char *const types[] = {"", "f32", "f16", "bf16", "q8", "q4"};
    const colibri_conformance_case *c = &part->first;
    (void)context;
    printf("%s %s %u %u %08x\n", operation(part), types[c->type], (unsigned)c->group, (unsigned)c->order,
           (unsigned)part->crc32);
}

static const colibri_kernels *find(const char *name)
{
    if (strncmp(name, "broken:", 7) == 0)
        return broken_table(name + 7);
    for (uint32_t i = 0; kernel_table(i) != NULL; i++)
        if (strcmp(kernel_table(i)->name, name) == 0)
            return kernel_table(i);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "broken") == 0) {
        for (uint32_t i = 0; broken_name(i) != NULL; i++)
            puts(broken_name(i));
        return 0;
    }
    const colibri_kernels *table = argc == 3 ? find(argv[1]) : NULL;
    if (table == NULL)
        stop(2, "usage: conformance TABLE quick|full, with a table that this CPU has, or broken:NAME");
    colibri_conformance setup = {.report = report};
#ifdef __SANITIZE_ADDRESS__
    setup.exact = take;
    setup.release = release;
#else
    setup.memory = take(NULL, COLIBRI_CONFORMANCE_FULL_BYTES, 64);
    setup.bytes = COLIBRI_CONFORMANCE_FULL_BYTES;
#endif
    setup.level = strcmp(argv[2], "full") == 0 ? COLIBRI_CONFORMANCE_FULL : COLIBRI_CONFORMANCE_QUICK;
    colibri_conformance_result r;
    if (colibri_conformance_run(table, &setup, &r) != COLIBRI_OK)
        stop(2, "the test could not run");
    release(NULL);
    printf("all %08x\n", (unsigned)r.crc32);
    if (r.failures != 0)
        stop(1, "%u of %u cases differ; first: %s type %u group %u order %u rows %u columns %u tokens %u numbers %u, "
             "wrong %u, index %d: want %08x, got %08x", (unsigned)r.failures, (unsigned)r.cases, operation(&r),
             (unsigned)r.first.type, (unsigned)r.first.group, (unsigned)r.first.order, (unsigned)r.first.rows,
             (unsigned)r.first.columns, (unsigned)r.first.tokens, (unsigned)r.first.numbers, (unsigned)r.wrong,
             (int)r.index, (unsigned)r.want, (unsigned)r.got);
    return 0;
}
