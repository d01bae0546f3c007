/* SPDX-License-Identifier: Apache-2.0 */
/* The packed model (docs/spec.md): one checked, read-only view. This is the project's only reader. */
#ifndef COLIBRI_IMAGE_H
#define COLIBRI_IMAGE_H

#include <stdbool.h>

#include "colibri/platform.h"
#include "colibri/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_IMAGE_VERSION 1u
#define COLIBRI_MAX_COMPANIONS 22u   /* sections beside them: 10 of 32 */
#define COLIBRI_MAX_POSITION 131072u /* RoPE angles are exact enough up to here (docs/numerics.md) */

/* Element type of a tensor, and of the KV cache (f32, f16, q8 only there). */
enum { COLIBRI_F32 = 1, COLIBRI_F16 = 2, COLIBRI_BF16 = 3, COLIBRI_Q8 = 4, COLIBRI_Q4 = 5 };

/* What a tensor is for. Shapes are rows x columns, one output per row. */
enum {
    COLIBRI_ROLE_EMBEDDING = 1,   /* vocabulary x hidden */
    COLIBRI_ROLE_OUTPUT = 2,      /* vocabulary x hidden; absent when tied */
    COLIBRI_ROLE_OUTPUT_NORM = 3, /* 1 x hidden, f32 */
    COLIBRI_ROLE_ROPE = 4,        /* 1 x rope_size / 2, f32: inverse frequencies */
    COLIBRI_ROLE_ROPE_2 = 5,      /* a second set, for layers that ask for it */
    COLIBRI_ROLE_OUTPUT_NORM_BIAS = 6,
    COLIBRI_ROLE_OUTPUT_BIAS = 7, /* 1 x vocabulary */
    COLIBRI_ROLE_ATTENTION_NORM = 16, /* absent: the block reads the stream as it is; also FFN_NORM */
    COLIBRI_ROLE_QUERY = 17,      /* heads * head_size x hidden */
    COLIBRI_ROLE_KEY = 18,        /* kv_heads * head_size x hidden */
    COLIBRI_ROLE_VALUE = 19,
    COLIBRI_ROLE_ATTENTION_OUT = 20, /* hidden x heads * head_size */
    COLIBRI_ROLE_QUERY_BIAS = 21, /* biases and norms: 1 x n, f32 */
    COLIBRI_ROLE_KEY_BIAS = 22,
    COLIBRI_ROLE_VALUE_BIAS = 23,
    COLIBRI_ROLE_ATTENTION_OUT_BIAS = 24,
    COLIBRI_ROLE_QUERY_NORM = 25, /* 1 x head_size: per head; 1 x heads * head_size: the whole vector */
    COLIBRI_ROLE_KEY_NORM = 26,
    COLIBRI_ROLE_SINKS = 27,      /* 1 x heads: one more logit in the softmax of each head */
    COLIBRI_ROLE_OUTPUT_GATE = 28, /* heads * head_size x hidden: sigmoid of it times the attention output */
    COLIBRI_ROLE_ATTENTION_NORM_BIAS = 29,
    COLIBRI_ROLE_ATTENTION_POST_NORM = 30, /* on the block's output, before it is added */
    COLIBRI_ROLE_ATTENTION_ROUTER = 31, /* experts x hidden, f32: chooses experts of attention */
    COLIBRI_ROLE_FFN_NORM = 32,
    COLIBRI_ROLE_DENSE_GATE = 33, /* dense_size x hidden */
    COLIBRI_ROLE_DENSE_UP = 34,
    COLIBRI_ROLE_DENSE_DOWN = 35, /* hidden x dense_size */
    COLIBRI_ROLE_FFN_NORM_BIAS = 36,
    COLIBRI_ROLE_FFN_POST_NORM = 37,
    COLIBRI_ROLE_CONV_IN = 38,     /* 3 * hidden x hidden: gate B, gate C, input x */
    COLIBRI_ROLE_CONV = 39,        /* hidden x conv_size, f32: one filter a channel, oldest tap first */
    COLIBRI_ROLE_LATENT_QUERY = 40,      /* query_latent x hidden */
    COLIBRI_ROLE_LATENT_QUERY_NORM = 41,
    COLIBRI_ROLE_LATENT = 42,            /* latent_size + rope_size x hidden: what the cache keeps */
    COLIBRI_ROLE_LATENT_NORM = 43,       /* 1 x latent_size */
    COLIBRI_ROLE_LATENT_KEY = 44,        /* heads * latent_size x head_size - rope_size: a query into the latent */
    COLIBRI_ROLE_LATENT_VALUE = 45,      /* heads * value_size x latent_size: out of the latent */
    COLIBRI_ROLE_CONV_OUT = 46,    /* hidden x hidden */
    COLIBRI_ROLE_LAYER_SCALE = 47, /* 1 x 1: multiplies the layer's output */
    COLIBRI_ROLE_ROUTER = 48,     /* experts x hidden, f32; all router vectors are f32 */
    COLIBRI_ROLE_ROUTER_BIAS = 49, /* 1 x experts: added to the scores */
    COLIBRI_ROLE_SHARED_GATE = 50, /* shared_size x hidden */
    COLIBRI_ROLE_SHARED_UP = 51,
    COLIBRI_ROLE_SHARED_DOWN = 52,
    COLIBRI_ROLE_SHARED_ROUTER = 53, /* 1 x hidden, f32: sigmoid gate of the shared expert */
    COLIBRI_ROLE_ROUTER_SELECTION = 54, /* 1 x experts: added for the choice only, not in the weight */
    COLIBRI_ROLE_ROUTER_NORM = 55,  /* 1 x hidden: the router reads the residual stream under this norm */
    COLIBRI_ROLE_ROUTER_WEIGHT = 56, /* 1 x experts: multiplies the weights after everything else */
    COLIBRI_ROLE_EXPERTS_NORM = 57, /* layers with a dense FFN beside experts: the experts' own norm ... */
    COLIBRI_ROLE_EXPERTS_POST_NORM = 58, /* ... of their output ... */
    COLIBRI_ROLE_DENSE_POST_NORM = 59, /* ... and of the dense output, before both are added */
    COLIBRI_ROLE_EXPERTS_BIAS = 60, /* 1 x hidden: added to the experts' sum */
    COLIBRI_ROLE_EXPERT_QUERY = 61, /* experts * kv_heads * head_size x hidden: one expert after the other */
    COLIBRI_ROLE_EXPERT_ATTENTION_OUT = 62, /* experts * hidden x kv_heads * head_size */
    COLIBRI_ROLE_EXPERT_GATE = 64, /* expert_size x hidden; 64 .. 79 lie in the expert's record */
    COLIBRI_ROLE_EXPERT_UP = 65,
    COLIBRI_ROLE_EXPERT_DOWN = 66,
    COLIBRI_ROLE_EXPERT_GATE_BIAS = 67, /* 1 x rows of the matrices */
    COLIBRI_ROLE_EXPERT_UP_BIAS = 68,
    COLIBRI_ROLE_EXPERT_DOWN_BIAS = 69,
    /* linear attention: K = linear_keys * linear_key_size, V = linear_values * linear_value_size */
    COLIBRI_ROLE_LINEAR_IN = 80,    /* 2 K + V x hidden: queries, keys, values, through the filter */
    COLIBRI_ROLE_LINEAR_GATE = 81,  /* V x hidden */
    COLIBRI_ROLE_LINEAR_STEP = 82,  /* linear_values x hidden, f32: how far the state decays */
    COLIBRI_ROLE_LINEAR_BETA = 83,  /* linear_values x hidden, f32: how much is written (DELTA) */
    COLIBRI_ROLE_LINEAR_CONV = 84,  /* 2 K + V x conv_size, f32, oldest tap first */
    COLIBRI_ROLE_LINEAR_CONV_BIAS = 85,
    COLIBRI_ROLE_LINEAR_STEP_BIAS = 86, /* 1 x linear_values, as the next two */
    COLIBRI_ROLE_LINEAR_DECAY = 87, /* logarithm of the decay rate; LIGHTNING: the rate */
    COLIBRI_ROLE_LINEAR_SKIP = 88,  /* of the value past the state (MAMBA2) */
    COLIBRI_ROLE_LINEAR_NORM = 89,  /* DELTA: 1 x linear_value_size; MAMBA2: 1 x V, over V / linear_keys each;
                                     * LIGHTNING: 1 x V */
    COLIBRI_ROLE_LINEAR_OUT = 90,   /* hidden x V */
    /* 1 x 2, of every layer: the block's input goes on, times the first, and its output is added times the second */
    COLIBRI_ROLE_ATTENTION_RESIDUAL = 91,
    COLIBRI_ROLE_FFN_RESIDUAL = 92,
    /* MAMBA, whose LINEAR_IN and LINEAR_CONV have V rows only */
    COLIBRI_ROLE_LINEAR_SELECT = 93, /* linear_rank + 2 K x V: step, key, query of the filtered values */
    COLIBRI_ROLE_LINEAR_STEP_NORM = 94, /* norms of these, each optional */
    COLIBRI_ROLE_LINEAR_KEY_NORM = 95,
    COLIBRI_ROLE_LINEAR_QUERY_NORM = 96,
    COLIBRI_ROLE_LINEAR_STEP_UP = 97, /* V x linear_rank: a step for each channel */
    COLIBRI_ROLE_LINEAR_STATE_DECAY = 98 /* V x K, f32: logarithms of the rates */
};
static inline int colibri_role_in_record(uint32_t role)
{
    return role >= COLIBRI_ROLE_EXPERT_GATE && role < COLIBRI_ROLE_LINEAR_IN;
}
#define COLIBRI_GLOBAL_LAYER 0xFFFFu /* layer of tensors that belong to none */

enum { COLIBRI_FFN_DENSE = 1, COLIBRI_FFN_MOE = 2, COLIBRI_FFN_BOTH = 3 }; /* both: side by side */
enum {
    COLIBRI_MIXER_ATTENTION = 1,
    COLIBRI_MIXER_LATENT = 2, /* multi-head latent attention: the cache holds the latent */
    COLIBRI_MIXER_CONV = 3,   /* gated short convolution: a state instead of a cache */
    COLIBRI_MIXER_EXPERTS = 4, /* attention made of experts (JetMoE): top_k * kv_heads heads */
    COLIBRI_MIXER_DELTA = 5,   /* gated delta rule (Qwen3-Next): linear attention with a state */
    COLIBRI_MIXER_MAMBA2 = 6,  /* selective state space, second form; its C, B, x are query, key, value */
    COLIBRI_MIXER_LIGHTNING = 7, /* lightning attention (MiniMax): a fixed decay a head, no filter */
    COLIBRI_MIXER_MAMBA = 8    /* selective state space, first form: a decay an element of the state */
};

/* How scores s become choices S and weights w. b: the selection vector, when the layer has one. */
enum {
    COLIBRI_ROUTER_SOFTMAX = 1,      /* p = softmax(s); S = top_k of p + b; w = p[S] */
    COLIBRI_ROUTER_TOPK_SOFTMAX = 2, /* S = top_k of s; w = softmax(s[S]) */
    COLIBRI_ROUTER_SIGMOID = 3,      /* p = sigmoid(s); S = top_k of p + b; w = p[S] */
    COLIBRI_ROUTER_SPARSEMIXER = 4,  /* PhiMoE: two choices, each the softmax among its near rivals */
    COLIBRI_ROUTER_TOPK_SIGMOID = 5  /* S = top_k of s; w = sigmoid(s[S]) */
};
enum {
    COLIBRI_ROUTER_RENORMALISE = 1,  /* w /= sum(w) + epsilon */
    COLIBRI_ROUTER_CLAMP = 2,        /* w /= max(sum(w), epsilon) instead */
    COLIBRI_ROUTER_LENGTH = 4,       /* w /= sqrt(sum(w^2)) instead */
    COLIBRI_ROUTER_GROUP_BEST = 8,   /* groups ranked by their best p + b */
    COLIBRI_ROUTER_GROUP_TWO = 16,   /* ... by the sum of their two best */
    COLIBRI_ROUTER_ON_INPUT = 32     /* the weight multiplies the expert's input, not its output */
};
enum { COLIBRI_SHARED_SIGMOID = 1 };      /* shared output *= sigmoid(shared_router . x) */
enum { COLIBRI_ROPE_HALVES = 0, COLIBRI_ROPE_PAIRS = 1 }; /* rotate (i, i + n/2) or (2i, 2i + 1) */
enum {
    COLIBRI_ACTIVATION_SILU = 1,
    COLIBRI_ACTIVATION_GELU = 2,   /* tanh form */
    COLIBRI_ACTIVATION_RELU = 3,
    COLIBRI_ACTIVATION_CLAMPED = 4 /* gpt-oss: (clamp(u) + 1) * g * sigmoid(alpha * g), g at most the limit */
};
enum { COLIBRI_NORM_RMS = 0, COLIBRI_NORM_LAYER = 1 };

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
    uint32_t norm;           /* COLIBRI_NORM_* of the blocks and the output */
    uint32_t value_size;     /* latent attention: elements of a head's value, else 0 */
    uint32_t latent_size;    /* latent attention: elements that the cache keeps beside the rotated key, else 0 */
    uint32_t query_latent;   /* size of the query's own latent, 0: none */
    uint32_t identities;     /* the last of the experts return their input and have no record */
    uint32_t router_groups;  /* 0: none; divides experts */
    uint32_t router_groups_kept;
    float router_scale;      /* multiplies the weights, 1: nothing */
    float router_epsilon;    /* see router_flags; sparsemixer: its jitter */
    float embedding_scale;   /* 1: nothing, here and below */
    float residual_scale;    /* of each block's output before it is added */
    float logits_scale;
    float clip;              /* queries, keys and values are clamped to +-clip; 0: not */
    float activation_limit;  /* COLIBRI_ACTIVATION_CLAMPED */
    float activation_alpha;
    float temperature_floor; /* llama4: queries *= 1 + scale * log(1 + floor((position + 1) / floor)), 0: not */
    float temperature_scale;
    float latent_epsilon;    /* of the norms inside latent and lightning attention */
    float logits_cap;        /* logits become cap * tanh(logits / cap); 0: not */
    uint32_t conv_size;      /* taps of the short convolution, 0: none */
    uint32_t rope_size_2;    /* rotated elements with frequency set 2; 0: as rope_size */
    float output_epsilon;    /* of the output norm; 0: norm_epsilon */
    uint32_t linear_keys;    /* linear attention: heads of queries and keys; 0: no such layers */
    uint32_t linear_values;  /* heads of values: a multiple */
    uint32_t linear_key_size; /* elements of a query, of a key */
    uint32_t linear_value_size;
    uint32_t linear_rank;    /* MAMBA: elements that a step is made from, else 0 */
    uint32_t reserved[15];   /* zero */
} colibri_config;

/* How the codes of a q8 or q4 tensor lie (docs/spec.md section 4). ROWS: row by row, for CPUs that take a few rows at
 * a time (Cortex-M). TILES: sixteen rows interleaved, for wide vectors. Float tensors are always ROWS. */
enum { COLIBRI_ORDER_ROWS = 0, COLIBRI_ORDER_TILES = 1 };

/* One tensor, decoded from the table. */
typedef struct colibri_tensor {
    uint16_t layer;
    uint16_t role;
    uint8_t type;   /* COLIBRI_F32 ... */
    uint8_t order;  /* COLIBRI_ORDER_* */
    uint16_t group; /* elements per scale, q8 and q4 only */
    uint32_t rows;
    uint32_t columns;
    uint64_t offset; /* in the file; of expert roles: in the expert's record */
    uint64_t bytes;
    uint32_t crc32;  /* of the tensor's bytes; 0 for expert roles, whose records carry it */
} colibri_tensor;

/* One layer, decoded from the table. */
enum {
    COLIBRI_LAYER_UNIT_KEYS = 1,   /* queries and keys are divided by their root mean square after rotation */
    COLIBRI_LAYER_TEMPERATURE = 2, /* queries are scaled by position, see config.temperature_* */
    COLIBRI_LAYER_NORM_LAST = 4,   /* norms of queries and keys come after the rotation, not before */
    COLIBRI_LAYER_KEY_IS_VALUE = 8, /* no value projection: values are the keys as projected */
    COLIBRI_LAYER_UNIT_VALUES = 16, /* values are divided by their root mean square */
    COLIBRI_LAYER_HOLD = 32,       /* the experts' output is kept back (ffn: both) ... */
    COLIBRI_LAYER_RELEASE = 64,    /* ... and added at the end of this layer, the next one */
    COLIBRI_LAYER_EARLY_ROUTER = 128 /* the router reads the layer's input as it comes, before attention */
};
typedef struct colibri_layer {
    uint8_t mixer;
    uint8_t ffn;
    uint8_t rope;    /* 0: no rotation, 1 or 2: set of frequencies */
    uint8_t flags;
    uint32_t window; /* positions seen, the token's own included; 0: all before */
    uint32_t chunk;  /* attention stays within blocks of this many positions; 0: no blocks */
    uint32_t head_size; /* the layer's own, or the config's */
    uint32_t kv_heads;
} colibri_layer;

typedef struct colibri_expert {
    uint64_t offset; /* of the record, in its file */
    uint32_t bytes;
    uint32_t crc32;
    uint32_t file;
} colibri_expert;

/* Where expert records lie: in the image, in companion files below a limit of bytes, in one companion. */
enum { COLIBRI_LAYOUT_MONOLITHIC = 0, COLIBRI_LAYOUT_SHARDED = 1, COLIBRI_LAYOUT_HYBRID = 2 };

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
    uint64_t bytes;        /* of the image itself */
    uint64_t total_bytes;  /* with companion files, each at a multiple of 64 */
    uint32_t meta_bytes;
    uint32_t section_count;
    uint32_t tensor_count;
    uint32_t expert_count; /* entries of the expert table */
    uint32_t tensors;      /* offsets in meta */
    uint32_t layers;
    uint32_t experts;
    uint32_t files;
    uint32_t companions;   /* files beside the image, 0: monolithic */
    uint32_t moe_layers;
    uint32_t dense_layers;
    uint32_t latent_layers;
    uint32_t conv_layers;
    uint32_t linear_layers;
    uint32_t mamba_layers; /* the linear ones of the first form */
    uint32_t filter_layers; /* those that need conv_size */
    uint32_t rope_sets;    /* bit n - 1: some layer rotates with set n */
} colibri_image;

/* A file of an image; name: how a companion is called, zero-terminated UTF-8; of the image itself, "". */
typedef struct colibri_file {
    const char *name;
    uint64_t bytes;
} colibri_file;

/* Opens and checks header, tables, padding, and of each companion file its header and length; weights are not
 * read.
 * meta, meta_bytes: memory for the tables when the storage cannot map them (else NULL, 0); must stay.
 * Errors: MAGIC (have 1: a companion file), VERSION, TRUNCATED, STRUCTURE, CHECKSUM, CONFIG, TENSOR, UNSUPPORTED,
 * COMPANION, STORAGE;
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

/* File 0 is the image itself, 1 .. companions are beside it; else ARGUMENT. */
colibri_status colibri_image_file(const colibri_image *image, uint32_t file, colibri_file *out);

/* Finds a tensor; COLIBRI_ERR_TENSOR when the image has none. Layer: COLIBRI_GLOBAL_LAYER for globals. */
colibri_status colibri_image_find(const colibri_image *image, uint32_t layer, uint32_t role,
                                  colibri_tensor *out);

/* layer below config.layers */
void colibri_image_layer(const colibri_image *image, uint32_t layer, colibri_layer *out);

/* Stop token ids: writes at most capacity of them, returns how many there are. */
uint32_t colibri_image_stop_ids(const colibri_image *image, uint32_t *ids, uint32_t capacity);

/* Whether a token ends a text: it is one of the image's stop ids, however many there are. */
bool colibri_image_is_stop(const colibri_image *image, uint32_t token);

/* zlib's CRC-32; start with 0, feed the result back in. */
uint32_t colibri_crc32(uint32_t crc, const void *data, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
