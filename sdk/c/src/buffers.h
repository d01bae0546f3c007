/* SPDX-License-Identifier: Apache-2.0 */
/* Every buffer that a plan can have. The order breaks ties of placement. */
#ifndef COLIBRI_BUFFERS_H
#define COLIBRI_BUFFERS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    COLIBRI_BUFFER_STATE,         /* u64 whose memory it is, u32 length and saved length of each sequence, preference.h.
                                   * Always the first of all: the next engine in this memory writes over it */
    COLIBRI_BUFFER_STEP,          /* u32 position, u32 sequence, u16 wanted of each token of a step */
    COLIBRI_BUFFER_ROPE,          /* cos, sin of each token */
    COLIBRI_BUFFER_HIDDEN,        /* residual stream */
    COLIBRI_BUFFER_NORMED,        /* a block's input, then its output */
    COLIBRI_BUFFER_WORK,          /* queries, attention output; shared or dense FFN output */
    COLIBRI_BUFFER_KEY_VALUE,     /* keys and values before they enter the cache */
    COLIBRI_BUFFER_LATENT,        /* queries carried into the latent of latent attention, then its results */
    COLIBRI_BUFFER_CODES,         /* int8 activations */
    COLIBRI_BUFFER_CODE_SCALES,
    COLIBRI_BUFFER_SCORES,        /* one row of attention scores a worker */
    COLIBRI_BUFFER_ROUTER,        /* router scores; what a preference adds to a token's */
    COLIBRI_BUFFER_ROUTES,        /* f32 weight, u16 expert of each token's choices */
    COLIBRI_BUFFER_DISPATCH,      /* u16 token, slot, start, active: tokens packed by expert */
    COLIBRI_BUFFER_FFN_GATE,      /* intermediate activations */
    COLIBRI_BUFFER_FFN_UP,
    COLIBRI_BUFFER_FFN_CODES,     /* the same as int8 */
    COLIBRI_BUFFER_FFN_SCALES,
    COLIBRI_BUFFER_EXPERT_OUT,    /* one row for each choice of each token */
    COLIBRI_BUFFER_BESIDE,        /* experts' output while a dense FFN runs beside them */
    COLIBRI_BUFFER_RECURRENT,     /* states of layers without a cache */
    COLIBRI_BUFFER_KV,            /* keys and values of every position */
    COLIBRI_BUFFER_WEIGHTS,       /* the image, when it is loaded; its dense part, when experts are streamed */
    COLIBRI_BUFFER_EXPERT_CACHE,  /* which expert lies in which slot; prefetch.h */
    COLIBRI_BUFFER_EXPERT_SLOTS,  /* records of streamed experts */
    COLIBRI_BUFFER_COUNT
};

/* Whether it holds anything between calls. The others are lent to the images beside this one. */
static inline bool colibri_buffer_kept(uint32_t kind)
{
    return kind - 1u >= COLIBRI_BUFFER_RECURRENT - 1u; /* the state, too */
}

#endif
