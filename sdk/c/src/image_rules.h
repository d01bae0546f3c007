/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by image.c (shape of the file), image_config.c and image_rules.c (meaning of its fields),
 * image_tables.c (access). */
#ifndef COLIBRI_IMAGE_RULES_H
#define COLIBRI_IMAGE_RULES_H

#include <stdbool.h>

#include "bytes.h"
#include "colibri/image.h"
#include "options.h"

enum { COLIBRI_LAYER_ENTRY = 16, COLIBRI_TENSOR_ENTRY = 48, COLIBRI_EXPERT_ENTRY = 24, COLIBRI_FILE_ENTRY = 96 };

/* A power of two from 64: of expert records in their file. */
uint32_t colibri_record_alignment(const colibri_image *image);

/* False when the image has no such section; checked images have a place for every one that is needed. */
bool colibri_find_section(const colibri_image *image, uint32_t kind, colibri_section *out);

/* The expert weights of a file; false when it has none. */
bool colibri_find_records(const colibri_image *image, uint32_t file, colibri_section *out);

/* Of the image itself or a companion. */
static inline uint64_t colibri_file_bytes(const colibri_image *image, uint32_t file)
{
    return !COLIBRI_WITH_COMPANIONS || file == 0
               ? image->bytes
               : colibri_load_u64(image->meta + image->files + (file - 1) * (uint32_t)COLIBRI_FILE_ENTRY);
}

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

#if COLIBRI_WITH_COMPANIONS
/* image_files.c: the number of companions, what the tables say of them, and what they say themselves. */
colibri_status colibri_count_files(colibri_image *image, colibri_error *error);
colibri_status colibri_check_files(colibri_image *image, colibri_error *error);
colibri_status colibri_check_companions(const colibri_image *image, colibri_error *error);
#endif

/* A constant where they are left out, so that loops over files go. */
static inline uint32_t colibri_companions(const colibri_image *image)
{
    return COLIBRI_WITH_COMPANIONS ? image->companions : 0;
}

/* The config's sizes alone: what the layer table is read with. Then everything that needs the layers. */
colibri_status colibri_check_sizes(const colibri_config *config, colibri_error *error);
colibri_status colibri_check_config(const colibri_image *image, colibri_error *error);
colibri_status colibri_check_tensors(const colibri_image *image, colibri_error *error);
colibri_status colibri_check_experts(const colibri_image *image, colibri_error *error);

#endif
