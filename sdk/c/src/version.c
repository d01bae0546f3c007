/* SPDX-License-Identifier: Apache-2.0 */
#include "colibri/engine.h"
#include "options.h"

uint32_t colibri_version(void)
{
    return 0u << 16 | 1u << 8 | 0u;
}

uint32_t colibri_built_with(void)
{
    return (COLIBRI_WITH_F32 ? COLIBRI_HAS_F32 : 0u) | (COLIBRI_WITH_F16 ? COLIBRI_HAS_F16 : 0u) |
           (COLIBRI_WITH_BF16 ? COLIBRI_HAS_BF16 : 0u) | (COLIBRI_WITH_Q8 ? COLIBRI_HAS_Q8 : 0u) |
           (COLIBRI_WITH_Q4 ? COLIBRI_HAS_Q4 : 0u) |
           (COLIBRI_WITH_KV_F16 ? COLIBRI_HAS_KV_F16 : 0u) |
           (COLIBRI_WITH_KV_Q8 ? COLIBRI_HAS_KV_Q8 : 0u);
}
