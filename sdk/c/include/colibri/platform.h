/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime needs from the board. Structs of functions with a context; the first member is
 * the struct's size, so that they can grow. Nothing here is called from an interrupt. */
#ifndef COLIBRI_PLATFORM_H
#define COLIBRI_PLATFORM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the image lives. At least one of map and read must be given; start and wait come together or not at all.
 *
 * file: 0 is the image itself, n the n-th companion file of a sharded or hybrid image.
 * companion: colibri_image_open tells the port of each companion before it reads one: the name that the image
 *       has for it and its bytes. A name is only that (no / \\ : and neither . nor ..): the port looks beside the
 *       image and nowhere else. 0, or the COLIBRI_COMPANION_* (status.h) that says why not. A port that knows
 *       where its files are leaves it NULL. Told again when an image is opened again.
 * map:  address of bytes that stay readable and unchanged while the image is in use, or NULL when
 *       that range cannot be mapped. Must be 8-byte aligned when offset is.
 * read: copies exactly `bytes` bytes and returns 0, or returns non-zero and promises nothing about
 *       the destination. A short read is a failed read. May block, may sleep.
 * start: begins such a read and may return before it is done; *ticket names it. Non-zero: nothing was begun,
 *       and read has to do it, if there is one.
 *       At most COLIBRI_READS_UNDER_WAY have been begun and not waited for.
 * wait: returns when the read of a ticket is done, 0 when all its bytes are there. From then on the storage
 *       does not touch the destination any more, failed or not: a port with a time limit takes the read back.
 *       Every begun read is waited for once, in the order of the starts unless one had to be begun again, and
 *       before colibri_infer returns, also those that were begun on a guess and are of no use (limits.prefetch).
 *       Without the two, read is used.
 *
 * Expert records (weights STREAMED) are read to an address that is a multiple of the image's alignment, with
 * room behind it up to the next such multiple: what moves whole blocks may fill it. */
#define COLIBRI_READS_UNDER_WAY 16u
typedef struct colibri_storage {
    uint32_t struct_bytes;
    uint32_t reserved;
    void *context;
    uint64_t bytes; /* size of file 0 */
    const void *(*map)(void *context, uint32_t file, uint64_t offset, uint64_t bytes);
    int (*read)(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes);
    int (*start)(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes,
                 uint32_t *ticket);
    int (*wait)(void *context, uint32_t ticket);
    int (*companion)(void *context, uint32_t file, const char *name, uint64_t bytes);
} colibri_storage;

/* Workers. run(context, n, fn, arg) equals
 *     for (uint32_t item = 0; item < n; item++) fn(arg, item, worker);
 * in any order, on any worker in [0, workers), each worker one item at a time; it returns when all
 * items are done. Results never depend on the schedule. A NULL pool means the caller does it. */
typedef void (*colibri_task)(void *arg, uint32_t item, uint32_t worker);
typedef struct colibri_pool {
    uint32_t struct_bytes;
    uint32_t workers;
    void *context;
    void (*run)(void *context, uint32_t n, colibri_task fn, void *arg);
} colibri_pool;

/* Numeric events of the forward pass, from the thread that called colibri_infer. The emulator's
 * clock, the expert statistics and a logic analyser on a pin all read these. */
typedef enum colibri_event_kind {
    COLIBRI_EVENT_STEP = 1,   /* start of a step; count: tokens */
    COLIBRI_EVENT_LAYER = 2,  /* start of a layer */
    COLIBRI_EVENT_MATMUL = 3, /* index: role; bytes: weight bytes read; work: multiply-adds */
    COLIBRI_EVENT_ATTEND = 4, /* bytes: KV cache bytes read and written; work: multiply-adds */
    COLIBRI_EVENT_EXPERT = 5, /* index: expert; count: tokens; bytes, work: as MATMUL, all matrices */
    COLIBRI_EVENT_ROUTE = 6,  /* index: expert; count: rank << 16 | token of the step; bytes: bits of the weight */
    COLIBRI_EVENT_VECTOR = 7, /* element-wise work; bytes: activations touched */
    COLIBRI_EVENT_READ = 8,   /* a storage read begins; index: expert, count: which attempt, from 1, or 0: on a
                               * guess (limits.prefetch), in another layer than the one that runs; bytes.
                               * At init, of what is loaded: layer COLIBRI_GLOBAL_LAYER */
    /* experts bound to a backend, index: expert */
    COLIBRI_EVENT_BACKEND_COPY = 9,   /* bytes between memory and device: a call's inputs and outputs, or at
                                       * bind (count 0) the weights */
    COLIBRI_EVENT_BACKEND_START = 10, /* a call begins; count, bytes, work: as EXPERT */
    COLIBRI_EVENT_BACKEND_WAIT = 11,  /* the call has been waited for */
    /* experts that are streamed, index: expert. The step's other experts were in memory or on their way: a READ
     * with count 1 is a miss, an EXPERT without one a hit */
    COLIBRI_EVENT_READ_WAIT = 12      /* the read has been waited for; count: 0, or the status that it failed with */
} colibri_event_kind;

typedef struct colibri_event {
    uint32_t kind;
    uint32_t layer;
    uint32_t index;
    uint32_t count;
    uint64_t bytes;
    uint64_t work;
} colibri_event;

typedef struct colibri_kernels colibri_kernels; /* kernels.h */
typedef struct colibri_binding colibri_binding; /* backend.h */

/* Everything optional: zero it, set struct_bytes. */
typedef struct colibri_platform {
    uint32_t struct_bytes;
    uint32_t reserved;
    const colibri_pool *pool;       /* NULL: the calling thread does all work */
    const colibri_kernels *kernels; /* NULL: the reference kernels */
    void (*yield)(void *context);   /* between pool runs: feed a watchdog, let others run */
    void *yield_context;
    void (*trace)(void *context, const colibri_event *event); /* free when NULL */
    void *trace_context;
    const colibri_binding *bindings; /* experts that a backend computes, ascending by layer, then expert */
    uint32_t binding_count;
    uint32_t pin_count;
    /* weights STREAMED: experts, layer << 16 | expert, the hottest first, that stay once they have been read. Half of a
     * layer's slots (of all, when layers share them) may be pinned, and what one token uses must fit beside them; those
     * that have no room are not: colibri_expert_statistics tells how many are. */
    const uint32_t *pins;
} colibri_platform;

#ifdef __cplusplus
}
#endif
#endif
