/* SPDX-License-Identifier: Apache-2.0 */
/* An empty port: copy this folder and fill it in, top to bottom. It builds as it is, reads nothing
 * and works alone. docs/porting.md tells the order of steps; every comment below is the contract.
 *
 * The runtime itself needs only memcpy, memmove, memset and memcmp from you or your C library. */
#include "port.h"

#include <stddef.h>

/* STORAGE. Where the image lives. Give map when the image is in flash that the CPU can address (or
 * in RAM); give read when it must be copied, from an SD card for example; or give both.
 *
 * map: returns the address of `bytes` bytes from `offset`. They must stay readable and unchanged
 *      while the image is in use. When offset is a multiple of 8 the address must be one too: put
 *      the image at an 8-byte boundary (64 is best: a cache line).
 *      NULL means: this range cannot be mapped. */
static const void *storage_map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    (void)context, (void)file, (void)offset, (void)bytes;
    return NULL; /* e.g. (const uint8_t *)0x10100000 + offset */
}

/* read: copies exactly `bytes` bytes to destination and returns 0. Anything less is a failure:
 *       return non-zero, and the call that needed the bytes fails with COLIBRI_ERR_STORAGE.
 *       It may block and sleep, but runs on the thread that called the runtime, never on an
 *       interrupt. Retry here what is worth retrying: the runtime does so for streamed experts only. */
static int storage_read(void *context, uint32_t file, uint64_t offset, void *destination,
                        uint64_t bytes)
{
    (void)context, (void)file, (void)offset, (void)destination, (void)bytes;
    return -1;
}

/* start, wait: with weights STREAMED, reads that go on while the CPU computes: an SD card by DMA. start queues
 * the read (up to COLIBRI_READS_UNDER_WAY of them) and gives it a ticket; wait returns when that one is done,
 * 0 when all its bytes are there. Sleep as your system does it, and give up after a time of your choosing:
 * stop the transfer, so that nothing is written any more, and return non-zero. Leave both out to use read. */
/* COMPANION. For images in several files, on a board that finds files by name: the runtime tells the
 * number, name and length of each before it reads it. Leave it out where an image is one file, or where
 * map and read know by the number what is meant. */

const colibri_storage port_storage = {
    .struct_bytes = sizeof(colibri_storage),
    .bytes = 0, /* length of the image */
    .map = storage_map,
    .read = storage_read,
};

/* POOL. Only with more than one core; otherwise leave it out (NULL). run calls fn for every item
 * once, each worker one item at a time, `worker` below pool.workers, and returns when all are done.
 * What workers wrote must be visible to the caller on return (a barrier, a lock or a join gives
 * that). Which worker takes which item is yours to choose: the results do not depend on it. */
static void pool_run(void *context, uint32_t n, colibri_task fn, void *arg)
{
    (void)context;
    for (uint32_t item = 0; item < n; item++) fn(arg, item, 0);
}

const colibri_pool port_pool = {
    .struct_bytes = sizeof(colibri_pool),
    .workers = 1,
    .run = pool_run,
};

/* YIELD. Called between pool runs, some thousand times a token: feed the watchdog, let another
 * task run. Must return; must not call the runtime. */
static void port_yield(void *context)
{
    (void)context;
}

/* TRACE. Numbers about the forward pass, from the calling thread. NULL costs nothing. */

const colibri_platform port_platform = {
    .struct_bytes = sizeof(colibri_platform),
    .pool = NULL,    /* &port_pool on several cores */
    .kernels = NULL, /* the reference; or the table of your core's kernels */
    .yield = port_yield,
    .trace = NULL,
    .bindings = NULL, /* experts for an NPU or FPGA: backend.h, and "Binding an accelerator" in the guide */
};
