/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: tickets are descriptor numbers. With caches, start would clean and wait invalidate the lines of the
 * destination; see docs/porting.md. */
#include "colibri_block_device.h"

/* The lowest descriptor that is free, or COLIBRI_READS_UNDER_WAY. */
static uint32_t free_descriptor(const colibri_block_device *d)
{
    uint32_t i = 0;
    while (i < COLIBRI_READS_UNDER_WAY && (d->taken >> i & 1u) != 0)
        i++;
    return i;
}

int colibri_block_start(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes,
                        uint32_t *ticket)
{
    colibri_block_device *d = context;
    colibri_block_registers *r = d->registers;
    uint64_t to = (uintptr_t)destination;
    *ticket = free_descriptor(d);
    if (*ticket == COLIBRI_READS_UNDER_WAY || bytes > UINT32_MAX || r->id != COLIBRI_BLOCK_DEVICE_ID)
        return -1;
    d->taken |= 1u << *ticket;
    r->file = file;
    r->offset_low = (uint32_t)offset;
    r->offset_high = (uint32_t)(offset >> 32);
    r->destination_low = (uint32_t)to;
    r->destination_high = (uint32_t)(to >> 32);
    r->bytes = (uint32_t)bytes;
    r->doorbell = *ticket;
    return 0;
}

int colibri_block_wait(void *context, uint32_t ticket)
{
    colibri_block_device *d = context;
    uint32_t status = d->registers->status[ticket];
    for (uint32_t i = 0; status == COLIBRI_BLOCK_BUSY && i < d->polls; i++)
        status = d->registers->status[ticket];
    if (status == COLIBRI_BLOCK_BUSY) /* nothing may be written after this returns */
        d->registers->cancel = ticket;
    d->taken &= ~(1u << ticket);
    return status == COLIBRI_BLOCK_DONE ? 0 : -1;
}

int colibri_block_read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    uint32_t ticket;
    int failed = colibri_block_start(context, file, offset, destination, bytes, &ticket);
    return failed != 0 ? failed : colibri_block_wait(context, ticket);
}
