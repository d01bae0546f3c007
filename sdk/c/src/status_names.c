/* SPDX-License-Identifier: Apache-2.0 */
#include "colibri/status.h"

const char *colibri_status_name(colibri_status status)
{
    switch (status) {
    case COLIBRI_OK: return "ok";
    case COLIBRI_ERR_ARGUMENT: return "bad argument";
    case COLIBRI_ERR_TOKEN: return "token id outside the vocabulary";
    case COLIBRI_ERR_SEQUENCE: return "no such sequence";
    case COLIBRI_ERR_CONTEXT: return "sequence longer than the context";
    case COLIBRI_ERR_LOGITS: return "logits buffer too small";
    case COLIBRI_ERR_BROKEN: return "sequence lost its state in a failed call";
    case COLIBRI_ERR_MEMORY: return "region too small";
    case COLIBRI_ERR_ALIGNMENT: return "region base misaligned";
    case COLIBRI_ERR_LIMIT: return "limit out of range";
    case COLIBRI_ERR_FP_ENV: return "floating-point environment not IEEE nearest with subnormals";
    case COLIBRI_ERR_MAGIC: return "not a Colibri image";
    case COLIBRI_ERR_VERSION: return "image version not supported";
    case COLIBRI_ERR_TRUNCATED: return "image truncated";
    case COLIBRI_ERR_STRUCTURE: return "image structure broken";
    case COLIBRI_ERR_CHECKSUM: return "checksum mismatch";
    case COLIBRI_ERR_CONFIG: return "model configuration out of range";
    case COLIBRI_ERR_TENSOR: return "tensor missing, misplaced or misshapen";
    case COLIBRI_ERR_UNSUPPORTED: return "not carried by this build";
    case COLIBRI_ERR_COMPANION: return "companion file missing or not the image's";
    case COLIBRI_ERR_STORAGE: return "storage read failed";
    case COLIBRI_ERR_BACKEND: return "backend refused or failed an expert";
    case COLIBRI_ERR_CORRUPT: return "bytes read do not match their checksum";
    case COLIBRI_ERR_NONFINITE: return "NaN or infinity";
    case COLIBRI_ERR_SELFTEST: return "self-test differs from its golden vector";
    default: return "unknown status";
    }
}
