/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a token ends a text: asked of the image's own list, however long, where it is mapped. */
#ifndef COLIBRI_FIRMWARE_STOPS_H
#define COLIBRI_FIRMWARE_STOPS_H

#include "colibri/colibri.h"

static inline int stops(const colibri_image *image, uint32_t token)
{
    const colibri_storage *storage = image->storage;
    colibri_section s;
    for (uint32_t i = 0; colibri_image_section(image, i, &s) == COLIBRI_OK; i++) {
        if (s.kind != COLIBRI_SECTION_STOP) {
            continue;
        }
        const uint32_t *ids = storage->map(storage->context, s.file, s.offset, s.bytes);
        for (uint32_t id = 0; ids != 0 && id < s.count; id++) {
            if (ids[id] == token) { /* little-endian, as all targets are */
                return 1;
            }
        }
    }
    return 0;
}

#endif
