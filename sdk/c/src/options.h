/* SPDX-License-Identifier: Apache-2.0 */
/* What is compiled in. Each is 1 unless the build says 0: firmware carries only what its image needs.
 * colibri_image_open answers UNSUPPORTED for an image that needs a part left out. */
#ifndef COLIBRI_OPTIONS_H
#define COLIBRI_OPTIONS_H

#ifndef COLIBRI_WITH_F32 /* f32 weight matrices (norms and the router are always f32) */
#define COLIBRI_WITH_F32 1
#endif
#ifndef COLIBRI_WITH_F16
#define COLIBRI_WITH_F16 1
#endif
#ifndef COLIBRI_WITH_BF16
#define COLIBRI_WITH_BF16 1
#endif
#ifndef COLIBRI_WITH_Q8
#define COLIBRI_WITH_Q8 1
#endif
#ifndef COLIBRI_WITH_Q4
#define COLIBRI_WITH_Q4 1
#endif
#ifndef COLIBRI_WITH_TILES /* weights in tiles of sixteen rows */
#define COLIBRI_WITH_TILES 1
#endif
#ifndef COLIBRI_WITH_KV_F16
#define COLIBRI_WITH_KV_F16 1
#endif
#ifndef COLIBRI_WITH_KV_Q8
#define COLIBRI_WITH_KV_Q8 1
#endif
#ifndef COLIBRI_WITH_DENSE /* layers with a dense FFN */
#define COLIBRI_WITH_DENSE 1
#endif
#ifndef COLIBRI_WITH_LATENT /* multi-head latent attention */
#define COLIBRI_WITH_LATENT 1
#endif
#ifndef COLIBRI_WITH_EXPERT_ATTENTION /* attention made of experts */
#define COLIBRI_WITH_EXPERT_ATTENTION 1
#endif
#ifndef COLIBRI_WITH_LINEAR /* gated delta rule, Mamba 2, lightning attention */
#define COLIBRI_WITH_LINEAR 1
#endif
#ifndef COLIBRI_WITH_MAMBA /* Mamba, the first form */
#define COLIBRI_WITH_MAMBA 1
#endif
#ifndef COLIBRI_WITH_CONV /* short convolutions */
#define COLIBRI_WITH_CONV 1
#endif
#ifndef COLIBRI_WITH_BESIDE /* a dense FFN beside experts */
#define COLIBRI_WITH_BESIDE 1
#endif
#ifndef COLIBRI_WITH_NORMED_RESIDUAL /* blocks whose normed input goes on */
#define COLIBRI_WITH_NORMED_RESIDUAL 1
#endif
#ifndef COLIBRI_WITH_ATTENTION_EXTRAS /* norms of queries and keys, output gate, sinks, clip, temperature */
#define COLIBRI_WITH_ATTENTION_EXTRAS 1
#endif
#ifndef COLIBRI_WITH_LAYER_NORM
#define COLIBRI_WITH_LAYER_NORM 1
#endif
#ifndef COLIBRI_WITH_ACTIVATIONS /* other than SiLU */
#define COLIBRI_WITH_ACTIVATIONS 1
#endif
#ifndef COLIBRI_WITH_ROUTER_SIGMOID
#define COLIBRI_WITH_ROUTER_SIGMOID 1
#endif
#ifndef COLIBRI_WITH_ROUTER_TOPK /* top-k of the scores first, then softmax or sigmoid */
#define COLIBRI_WITH_ROUTER_TOPK 1
#endif
#ifndef COLIBRI_WITH_ROUTER_GROUPS
#define COLIBRI_WITH_ROUTER_GROUPS 1
#endif
#ifndef COLIBRI_WITH_ROUTER_SPARSEMIXER
#define COLIBRI_WITH_ROUTER_SPARSEMIXER 1
#endif
#ifndef COLIBRI_WITH_STREAMING /* experts read when they are needed; an image never needs it */
#define COLIBRI_WITH_STREAMING 1
#endif
#ifndef COLIBRI_WITH_PREFETCH /* and before their router has spoken */
#define COLIBRI_WITH_PREFETCH COLIBRI_WITH_STREAMING
#endif
#ifndef COLIBRI_WITH_PREFERENCE /* routing that does not only go by the scores; an image never needs it */
#define COLIBRI_WITH_PREFERENCE 1
#endif
#ifndef COLIBRI_WITH_COMPANIONS /* images in several files */
#define COLIBRI_WITH_COMPANIONS 1
#endif
#ifndef COLIBRI_WITH_BACKENDS /* experts bound to other backends; an image never needs it */
#define COLIBRI_WITH_BACKENDS 1
#endif

#endif
