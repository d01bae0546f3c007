/* SPDX-License-Identifier: Apache-2.0 */
/* The packed model (docs/spec.md): one checked, read-only view. This is the project's only reader. */
#ifndef COLIBRI_IMAGE_H
#define COLIBRI_IMAGE_H

#include "colibri/platform.h"
#include "colibri/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_IMAGE_VERSION 1u
#define COLIBRI_MAX_POSITION 131072u /* RoPE angles are exact enough up to here (docs/numerics.md) */

/* Element type of a tensor, and of the KV cache (f32, f16, q8 only there). */
enum { COLIBRI_F32 = 1, COLIBRI_F16 = 2, COLIBRI_BF16 = 3, COLIBRI_Q8 = 4, COLIBRI_Q4 = 5 };

/* What a tensor is for. Shapes are rows x columns, one output per row. */
enum {
    COLIBRI_ROLE_EMBEDDING = 1,   /* vocabulary x hidden */
    COLIBRI_ROLE_OUTPUT = 2,      /* vocabulary x hidden; absent when tied */
    COLIBRI_ROLE_OUTPUT_NORM = 3, /* 1 x hidden, f32 */
    COLIBRI_ROLE_ROPE = 4,        /* 1 x rope_size / 2, f32: inverse frequencies */
    COLIBRI_ROLE_ATTENTION_NORM = 16,
    COLIBRI_ROLE_QUERY = 17,      /* heads * head_size x hidden */
    COLIBRI_ROLE_KEY = 18,        /* kv_heads * head_size x hidden */
    COLIBRI_ROLE_VALUE = 19,
    COLIBRI_ROLE_ATTENTION_OUT = 20, /* hidden x heads * head_size */
    COLIBRI_ROLE_QUERY_BIAS = 21, /* biases and norms: 1 x n, f32 */
    COLIBRI_ROLE_KEY_BIAS = 22,
    COLIBRI_ROLE_VALUE_BIAS = 23,
    COLIBRI_ROLE_FFN_NORM = 32,
    COLIBRI_ROLE_DENSE_GATE = 33, /* dense_size x hidden */
    COLIBRI_ROLE_DENSE_UP = 34,
    COLIBRI_ROLE_DENSE_DOWN = 35, /* hidden x dense_size */
    COLIBRI_ROLE_ROUTER = 48,     /* experts x hidden, f32 */
    COLIBRI_ROLE_SHARED_GATE = 50, /* shared_size x hidden */
    COLIBRI_ROLE_SHARED_UP = 51,
    COLIBRI_ROLE_SHARED_DOWN = 52,
    COLIBRI_ROLE_SHARED_ROUTER = 53, /* 1 x hidden, f32: sigmoid gate of the shared expert */
    COLIBRI_ROLE_EXPERT_GATE = 64, /* expert_size x hidden; these three lie in the expert's record */
    COLIBRI_ROLE_EXPERT_UP = 65,
    COLIBRI_ROLE_EXPERT_DOWN = 66
};
#define COLIBRI_GLOBAL_LAYER 0xFFFFu /* layer of tensors that belong to none */

enum { COLIBRI_FFN_DENSE = 1, COLIBRI_FFN_MOE = 2 };
enum { COLIBRI_MIXER_ATTENTION = 1 };
enum { COLIBRI_ROUTER_SOFTMAX_TOPK = 1 }; /* p = softmax(l); S = topk(p); w = p[S] */
enum { COLIBRI_ROUTER_RENORMALISE = 1 };  /* w /= sum(w) */
enum { COLIBRI_SHARED_SIGMOID = 1 };      /* shared output *= sigmoid(shared_router . x) */
enum { COLIBRI_ROPE_HALVES = 0, COLIBRI_ROPE_PAIRS = 1 }; /* rotate (i, i + n/2) or (2i, 2i + 1) */
enum { COLIBRI_ACTIVATION_SILU = 1 };

/* Effective model settings, 32-bit words in file order. Floats are IEEE single. */
typedef struct colibri_config {
    uint32_t vocabulary;
    uint32_t hidden;
    uint32_t layers;
    uint32_t context;        /* longest context the model was made for */
    uint32_t heads;
    uint32_t kv_heads;       /* divides heads */
    uint32_t head_size;      /* even */
    uint32_t rope_size;      /* rotated elements of a head: even, 0 .. head_size */
    uint32_t rope_style;
    uint32_t activation;
    uint32_t router;         /* 0 when no layer has experts */
    uint32_t router_flags;
    uint32_t experts;
    uint32_t top_k;
    uint32_t expert_size;    /* intermediate size of a routed expert */
    uint32_t shared_size;    /* intermediate size of the shared expert, 0: none */
    uint32_t shared_flags;
    uint32_t dense_size;     /* intermediate size of dense layers, 0: none */
    uint32_t tied;           /* 1: output projection is the embedding */
    float norm_epsilon;
    float attention_scale;   /* multiplies q.k */
    float rope_scale;        /* multiplies cos and sin */
    uint32_t reserved[42];   /* zero */
} colibri_config;

/* One tensor, decoded from the table. */
typedef struct colibri_tensor {
    uint16_t layer;
    uint16_t role;
    uint8_t type;   /* COLIBRI_F32 ... */
    uint8_t order;  /* 0: row-contiguous */
    uint16_t group; /* elements per scale, q8 and q4 only */
    uint32_t rows;
    uint32_t columns;
    uint64_t offset; /* in the file; of expert roles: in the expert's record */
    uint64_t bytes;
    uint32_t crc32;  /* of the tensor's bytes; 0 for expert roles, whose records carry it */
} colibri_tensor;

typedef struct colibri_expert {
    uint64_t offset; /* of the record, in its file */
    uint32_t bytes;
    uint32_t crc32;
    uint32_t file;
} colibri_expert;

/* Section kinds (docs/spec.md, table 2). */
enum {
    COLIBRI_SECTION_CONFIG = 1, COLIBRI_SECTION_LAYERS = 2, COLIBRI_SECTION_TENSORS = 3,
    COLIBRI_SECTION_EXPERTS = 4, COLIBRI_SECTION_STOP = 5, COLIBRI_SECTION_SELFTEST = 6,
    COLIBRI_SECTION_NOTES = 7, COLIBRI_SECTION_FILES = 8,
    COLIBRI_SECTION_TOKENIZER = 16, COLIBRI_SECTION_WEIGHTS = 17, COLIBRI_SECTION_EXPERT_WEIGHTS = 18
};
typedef struct colibri_section {
    uint32_t kind;
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
    uint32_t crc32;
    uint32_t count; /* entries in a table section, else 0 */
} colibri_section;

/* Caller-owned. Read config freely; the rest belongs to the library. Keep the storage alive. */
typedef struct colibri_image {
    colibri_config config;
    const colibri_storage *storage;
    const uint8_t *meta;   /* header and tables: mapped, or in the caller's buffer */
    uint64_t bytes;
    uint32_t meta_bytes;
    uint32_t section_count;
    uint32_t tensor_count;
    uint32_t expert_count; /* entries of the expert table */
    uint32_t tensors;      /* offsets in meta */
    uint32_t layers;
    uint32_t experts;
    uint32_t moe_layers;
} colibri_image;

/* Opens and checks header, tables and padding; weights are not read.
 * meta, meta_bytes: memory for the tables when the storage cannot map them (else NULL, 0); must stay.
 * Errors: MAGIC, VERSION, TRUNCATED, STRUCTURE, CHECKSUM, CONFIG, TENSOR, UNSUPPORTED, STORAGE;
 * MEMORY with need = bytes of meta when the buffer is missing or too small. */
colibri_status colibri_image_open(colibri_image *image, const colibri_storage *storage,
                                  void *meta, uint32_t meta_bytes, colibri_error *error);

/* Checks every weight block against its checksum. block, block_bytes: working memory for reads when
 * the storage cannot map (any size from 64 bytes), else NULL, 0. */
colibri_status colibri_verify(const colibri_image *image, void *block, uint32_t block_bytes,
                              colibri_error *error);

/* Table access. Index below section_count / tensor_count / expert_count, else ARGUMENT. */
colibri_status colibri_image_section(const colibri_image *image, uint32_t index, colibri_section *out);
colibri_status colibri_image_tensor(const colibri_image *image, uint32_t index, colibri_tensor *out);
colibri_status colibri_image_expert(const colibri_image *image, uint32_t index, colibri_expert *out);

/* Finds a tensor; COLIBRI_ERR_TENSOR when the image has none. Layer: COLIBRI_GLOBAL_LAYER for globals. */
colibri_status colibri_image_find(const colibri_image *image, uint32_t layer, uint32_t role,
                                  colibri_tensor *out);

/* COLIBRI_FFN_DENSE or COLIBRI_FFN_MOE. */
uint32_t colibri_image_ffn(const colibri_image *image, uint32_t layer);

/* Stop token ids: writes at most capacity of them, returns how many there are. */
uint32_t colibri_image_stop_ids(const colibri_image *image, uint32_t *ids, uint32_t capacity);

/* zlib's CRC-32; start with 0, feed the result back in. */
uint32_t colibri_crc32(uint32_t crc, const void *data, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
