/* SPDX-License-Identifier: Apache-2.0 */
/* Does a kernel table give the bits of docs/numerics.md? Runs every operation of a table and of the reference
 * on the same inputs and compares: every length from zero to two blocks, all types, orders and groups, extreme
 * scales, denormals, overflow, ties, zeros of both signs. Also seen: a write outside the output and a change of
 * an input. The bits of a NaN are free. Inputs come from integers, so they, and one checksum over all outputs,
 * are the same on every CPU.
 *
 * Freestanding like the runtime: no allocation, no printing. Not part of libcolibri. */
#ifndef COLIBRI_CONFORMANCE_H
#define COLIBRI_CONFORMANCE_H

#include <stddef.h>

#include "colibri/kernels.h"
#include "colibri/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* QUICK takes selected lengths (tens of millions of instructions); FULL takes all of them. */
enum { COLIBRI_CONFORMANCE_QUICK = 0, COLIBRI_CONFORMANCE_FULL = 1 };

/* Scratch that each level needs. */
#define COLIBRI_CONFORMANCE_QUICK_BYTES (44u << 10)
#define COLIBRI_CONFORMANCE_FULL_BYTES (80u << 10)

enum { COLIBRI_OP_QUANTIZE = 1, COLIBRI_OP_MATMUL = 2, COLIBRI_OP_RMS_NORM = 3, COLIBRI_OP_SILU_GATE = 4,
       COLIBRI_OP_ATTEND = 5 };

/* VALUE: another number. OUTSIDE: a write where there is no output. INPUT: an input changed. */
enum { COLIBRI_WRONG_VALUE = 1, COLIBRI_WRONG_OUTSIDE = 2, COLIBRI_WRONG_INPUT = 3 };

/* One call of an operation. attend: type is the cache's, rows are positions, columns the head size, tokens
 * the value size. Vectors: columns is the length. */
typedef struct colibri_conformance_case {
    uint32_t operation; /* COLIBRI_OP_* */
    uint32_t type;      /* COLIBRI_F32 ... COLIBRI_Q4 */
    uint32_t order;     /* COLIBRI_ORDER_* */
    uint32_t group;
    uint32_t rows;
    uint32_t columns;
    uint32_t tokens;
    uint32_t numbers;   /* which class of values (numbers.c) */
} colibri_conformance_case;

/* All cases of one operation, type, order and group, or of everything. */
typedef struct colibri_conformance_result {
    colibri_conformance_case first; /* the first failed case, or the last one run */
    uint32_t cases;
    uint32_t failures; /* cases that failed */
    uint32_t crc32;    /* over the outputs of the tested table; of everything: over the parts' checksums */
    uint32_t wrong;    /* of the first failure: COLIBRI_WRONG_*; 0: none */
    int32_t index;     /* its element: of the output (rows of tokens follow each other), or the number of the input */
    uint32_t want;     /* bits of the element, or of the input's hash */
    uint32_t got;
    uint32_t scratch;  /* bytes of memory that were used */
} colibri_conformance_result;

/* memory: scratch, aligned to 64. exact: where the host has it, memory for one buffer that ends after `bytes` and
 * where reading on is seen (never NULL; alignment is a power of two up to 64); release: all of it is free again.
 * report: called after each group of cases. All three may be NULL. */
typedef struct colibri_conformance {
    uint32_t level; /* COLIBRI_CONFORMANCE_* */
    void *memory;
    size_t bytes;
    void *(*exact)(void *context, size_t bytes, size_t alignment);
    void (*release)(void *context);
    void (*report)(void *context, const colibri_conformance_result *part);
    void *context;
} colibri_conformance;

/* Runs all cases of a level. OK says that they ran; whether the table passed is result->failures == 0.
 * Errors: ARGUMENT (NULL, or no such level), MEMORY (too little scratch), ALIGNMENT. */
colibri_status colibri_conformance_run(const colibri_kernels *table, const colibri_conformance *setup,
                                       colibri_conformance_result *result);

#ifdef __cplusplus
}
#endif
#endif
