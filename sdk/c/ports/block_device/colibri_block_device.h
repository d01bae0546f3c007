/* SPDX-License-Identifier: Apache-2.0 */
/* A storage that moves bytes into memory by itself, such as an SD card behind a DMA controller, reduced to what
 * the runtime needs of one. No such device exists: emulator/colibri_emulator/block_device.py is it, so that firmware
 * with streamed experts runs before there is a board. On a board, a driver for its own controller takes the
 * place of block_device.c, with the same three functions. */
#ifndef COLIBRI_BLOCK_DEVICE_H
#define COLIBRI_BLOCK_DEVICE_H

#include "colibri/platform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 32-bit registers. A read: fill in file to bytes, write the number of a free descriptor to doorbell; the six words
 * are copied, and status[descriptor] is BUSY until the bytes are in memory (DONE) or will not be (FAILED). Writing
 * the number to cancel stops a read: from then on nothing is written for it, and its status is FAILED. */
#define COLIBRI_BLOCK_DEVICE_ID 0x4B4C4243u /* "CBLK" */
typedef struct colibri_block_registers {
    volatile uint32_t id; /* COLIBRI_BLOCK_DEVICE_ID */
    volatile uint32_t file;
    volatile uint32_t offset_low;
    volatile uint32_t offset_high;
    volatile uint32_t destination_low;
    volatile uint32_t destination_high;
    volatile uint32_t bytes;
    volatile uint32_t doorbell;
    volatile uint32_t cancel;
    volatile uint32_t reserved[7];
    volatile uint32_t status[COLIBRI_READS_UNDER_WAY]; /* COLIBRI_BLOCK_* */
} colibri_block_registers;

enum { COLIBRI_BLOCK_IDLE = 0, COLIBRI_BLOCK_BUSY = 1, COLIBRI_BLOCK_DONE = 2, COLIBRI_BLOCK_FAILED = 3 };

/* The context of the functions below. `polls` is the time limit of a read in looks at its status; a driver for a real
 * device takes a clock. Zeros in taken. */
typedef struct colibri_block_device {
    colibri_block_registers *registers;
    uint32_t polls;
    uint32_t taken; /* a bit for each descriptor that has been begun and not waited for */
} colibri_block_device;

/* For colibri_storage: read, start, wait. */
int colibri_block_read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes);
int colibri_block_start(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes,
                        uint32_t *ticket);
int colibri_block_wait(void *context, uint32_t ticket);

#ifdef __cplusplus
}
#endif
#endif
