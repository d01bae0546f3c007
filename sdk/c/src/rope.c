/* SPDX-License-Identifier: Apache-2.0 */
#include "rope.h"

#include "float_math.h"
#include "step_tokens.h"

static float *table_row(const struct engine *e, uint32_t set, uint32_t token)
{
    size_t before = set == 1 ? 0 : (size_t)e->limits.batch * colibri_rope_size(&e->image->config, 1);
    return colibri_floats(e, COLIBRI_BUFFER_ROPE) + before +
           (size_t)token * colibri_rope_size(&e->image->config, set);
}

const float *colibri_rope_row(const struct engine *e, uint32_t set, uint32_t token)
{
    return table_row(e, set, token);
}

/* The angle is one f32 product, as in the reference. */
void colibri_rope_table(const struct engine *e, uint32_t set)
{
    const colibri_config *c = &e->image->config;
    const float *frequency = colibri_vector_of(e, COLIBRI_GLOBAL_LAYER, COLIBRI_ROLE_ROPE + set - 1);
    uint32_t n = colibri_rope_size(c, set) / 2;
    for (uint32_t t = 0; t < e->tokens; t++) {
        float *row = table_row(e, set, t);
        for (uint32_t i = 0; i < n; i++) {
            colibri_sincos((float)colibri_positions(e)[t] * frequency[i], &row[n + i], &row[i]);
            row[i] = row[i] * c->rope_scale;
            row[n + i] = row[n + i] * c->rope_scale;
        }
    }
}

void colibri_rotate(const colibri_config *c, uint32_t set, const float *row, float *x)
{
    uint32_t n = colibri_rope_size(c, set) / 2;
    bool pairs = c->rope_style == COLIBRI_ROPE_PAIRS;
    for (uint32_t i = 0; i < n; i++) {
        float *a = pairs ? x + 2 * i : x + i;
        float *b = pairs ? a + 1 : a + n;
        float first = *a * row[i] - *b * row[n + i];
        *b = *b * row[i] + *a * row[n + i];
        *a = first;
    }
}
