/* SPDX-License-Identifier: Apache-2.0 */
/* Several images in one memory: what the planned ones leave to the next. */
#include "buffers.h"
#include "colibri/plan.h"
#include "fail.h"

int colibri_buffer_keeps(uint32_t kind)
{
    return colibri_buffer_kept(kind);
}

/* Part of a region; one without an address has parts without. */
static colibri_region part_of(const colibri_region *whole, uint64_t offset, uint64_t size, uint32_t use)
{
    colibri_region part = *whole;
    if (whole->base != NULL)
        part.base = (uint8_t *)whole->base + (size_t)offset;
    part.size = size;
    part.use = use;
    return part;
}

static uint64_t kept_in(const colibri_plan_result *plan, uint32_t region)
{
    uint64_t kept = 0;
    for (uint32_t i = 0; i < plan->buffer_count; i++)
        if (plan->buffers[i].region == region && colibri_buffer_kept(plan->buffers[i].kind))
            kept += plan->buffers[i].bytes;
    return kept;
}

colibri_status colibri_plan_beside(const colibri_plan_result *plan, const colibri_region *regions,
                                   colibri_region *left, uint32_t *left_count, colibri_error *error)
{
    uint32_t count = 0;
    if (plan == NULL || regions == NULL || left == NULL || left_count == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 0, 0, 0);
    for (uint32_t r = 0; r < plan->region_count; r++) {
        colibri_region parts[2];
        uint64_t kept = kept_in(plan, r), used = plan->used[r];
        uint32_t n = 0;
        if (used > regions[r].size) /* not the regions of this plan */
            return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 2, regions[r].size, used);
        if (regions[r].use == COLIBRI_REGION_WORK) /* lent, all of it, to every image */
            parts[n++] = regions[r];
        else {
            if (used != kept)
                parts[n++] = part_of(&regions[r], kept, used - kept, COLIBRI_REGION_WORK);
            parts[n++] = part_of(&regions[r], used, regions[r].size - used, COLIBRI_REGION_ANY);
        }
        for (uint32_t i = 0; i < n; i++, count++)
            if (count < COLIBRI_MAX_REGIONS)
                left[count] = parts[i];
    }
    *left_count = count;
    return count <= COLIBRI_MAX_REGIONS
               ? COLIBRI_OK : colibri_fail(error, COLIBRI_ERR_ARGUMENT, 2, count, COLIBRI_MAX_REGIONS);
}
