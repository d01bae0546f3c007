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
#ifndef COLIBRI_WITH_KV_F16
#define COLIBRI_WITH_KV_F16 1
#endif
#ifndef COLIBRI_WITH_KV_Q8
#define COLIBRI_WITH_KV_Q8 1
#endif
#ifndef COLIBRI_WITH_DENSE /* layers with a dense FFN */
#define COLIBRI_WITH_DENSE 1
#endif

#endif
