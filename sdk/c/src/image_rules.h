/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by image.c (shape of the file), image_config.c and image_rules.c (meaning of its fields),
 * image_tables.c (access). */
#ifndef COLIBRI_IMAGE_RULES_H
#define COLIBRI_IMAGE_RULES_H

#include <stdbool.h>

#include "colibri/image.h"

enum { COLIBRI_LAYER_ENTRY = 16, COLIBRI_TENSOR_ENTRY = 48, COLIBRI_EXPERT_ENTRY = 24 };

/* False when the image has no such section; checked images have a place for every one that is needed. */
bool colibri_find_section(const colibri_image *image, uint32_t kind, colibri_section *out);

/* Whether a layer has heads over a cache; others have a state. */
static inline bool colibri_layer_attends(const colibri_layer *l)
{
    return l->mixer != COLIBRI_MIXER_CONV && l->mixer < COLIBRI_MIXER_DELTA;
}

/* Whether a layer begins with a short filter over time. */
static inline bool colibri_layer_filters(const colibri_layer *l)
{
    return !colibri_layer_attends(l) && l->mixer != COLIBRI_MIXER_LIGHTNING;
}

/* The config's sizes alone: what the layer table is read with. Then everything that needs the layers. */
colibri_status colibri_check_sizes(const colibri_config *config, colibri_error *error);
colibri_status colibri_check_config(const colibri_image *image, colibri_error *error);
colibri_status colibri_check_tensors(const colibri_image *image, colibri_error *error);
colibri_status colibri_check_experts(const colibri_image *image, colibri_error *error);

#endif
