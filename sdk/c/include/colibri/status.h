/* SPDX-License-Identifier: Apache-2.0 */
/* Results of every call, grouped by who must act. Values are stable. */
#ifndef COLIBRI_STATUS_H
#define COLIBRI_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum colibri_status {
    COLIBRI_OK = 0,

    /* the caller: mend the call */
    COLIBRI_ERR_ARGUMENT = 1,   /* NULL, zero or contradictory argument; where: argument number from 1 */
    COLIBRI_ERR_TOKEN = 2,      /* token id outside the vocabulary; where: index in the batch */
    COLIBRI_ERR_SEQUENCE = 3,   /* sequence id not below limits.sequences; where: index in the batch */
    COLIBRI_ERR_CONTEXT = 4,    /* sequence would pass limits.context; need: the context that would do */
    COLIBRI_ERR_LOGITS = 5,     /* logits buffer too small; need: floats */
    COLIBRI_ERR_BROKEN = 6,     /* sequence lost its state in a failed call: reset it; where: sequence */

    /* the integrator: more memory, other limits, another port */
    COLIBRI_ERR_MEMORY = 20,    /* region too small; where: region index, need: bytes it must have */
    COLIBRI_ERR_ALIGNMENT = 21, /* region base misaligned; where: region index, need: alignment */
    COLIBRI_ERR_LIMIT = 22,     /* a limit is zero or above what the image or the runtime carries */
    COLIBRI_ERR_FP_ENV = 23,    /* rounding mode is not nearest, or denormals are flushed */

    /* whoever made the image: pack it again */
    COLIBRI_ERR_MAGIC = 40,     /* not a Colibri image */
    COLIBRI_ERR_VERSION = 41,   /* image version; have: the image's, need: this runtime's */
    COLIBRI_ERR_TRUNCATED = 42, /* file shorter than it says; have, need: bytes */
    COLIBRI_ERR_STRUCTURE = 43, /* tables or padding break a rule of docs/spec.md; where: file offset */
    COLIBRI_ERR_CHECKSUM = 44,  /* stored checksum does not match; where: block index */
    COLIBRI_ERR_CONFIG = 45,    /* model configuration out of range; where: word index of colibri_config */
    COLIBRI_ERR_TENSOR = 46,    /* missing, misplaced or misshapen tensor; where: layer << 16 | role */
    COLIBRI_ERR_UNSUPPORTED = 47, /* valid, but this build lacks the part; where: offset of the field, or
                                   * layer << 16 | role, have: type, or weight order << 8 */
    COLIBRI_ERR_COMPANION = 48, /* a companion file is not what the image needs; where: its number, have:
                                 * COLIBRI_COMPANION_*, need: its bytes */

    /* the storage or a device: retry, or replace it */
    COLIBRI_ERR_STORAGE = 60,   /* a read failed; where: layer << 16 | expert when it was of an expert's record,
                                 * else 0xFFFF0000 | file; have: offset in the file, need: bytes */
    COLIBRI_ERR_BACKEND = 61,   /* a backend refused or failed an expert; where: layer << 16 | expert,
                                 * have: what it returned (backend.h) */
    COLIBRI_ERR_CORRUPT = 62,   /* an expert's record was read and does not match its checksum; where, have, need:
                                 * as STORAGE */

    /* the numbers */
    COLIBRI_ERR_NONFINITE = 80, /* NaN or infinity in router scores or logits; where: layer or row */
    COLIBRI_ERR_SELFTEST = 81   /* golden vector differs; have, need: checksums */
} colibri_status;

/* What is wrong with a companion file. */
enum {
    COLIBRI_COMPANION_MISSING = 1, /* not there, or cannot be read */
    COLIBRI_COMPANION_SHORT = 2,   /* shorter than it should be */
    COLIBRI_COMPANION_MAGIC = 3,   /* no companion file, or of another version */
    COLIBRI_COMPANION_DAMAGED = 4, /* its header's checksum or padding is wrong */
    COLIBRI_COMPANION_NUMBER = 5,  /* the image's, in the place of another */
    COLIBRI_COMPANION_ID = 6,      /* of another image */
    COLIBRI_COMPANION_BYTES = 7    /* its header says another length */
};

/* What went wrong, in numbers. Filled only when a call fails; every call takes NULL for it. */
typedef struct colibri_error {
    colibri_status status;
    uint32_t where; /* meaning depends on status, see above */
    uint64_t have;
    uint64_t need;  /* the value that would work, where there is one */
} colibri_error;

/* English name of a status, e.g. "region too small". Leave status_names.c out to save the text. */
const char *colibri_status_name(colibri_status status);

#ifdef __cplusplus
}
#endif
#endif
