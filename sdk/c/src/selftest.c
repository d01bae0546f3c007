/* SPDX-License-Identifier: Apache-2.0 */
/* The image's golden vector on this very device. */
#include "bytes.h"
#include "engine_state.h"
#include "image_rules.h"
#include "options.h"

/* Over the floats' little-endian bytes, whatever the CPU's order. */
static uint32_t crc_of_row(uint32_t crc, const float *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = colibri_float_bits(row[i]);
        uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
        crc = colibri_crc32(crc, bytes, sizeof bytes);
    }
    return crc;
}

static uint32_t expected_crc(const struct engine *e, const uint8_t *vector)
{
    if (e->limits.kv == COLIBRI_F32)
        return colibri_load_u32(vector);
    return colibri_load_u32(vector + (e->limits.kv == COLIBRI_F16 ? 4 : 8));
}

colibri_status colibri_selftest(colibri_engine *handle, float *logits, colibri_error *error)
{
    struct engine *e = colibri_engine_of(handle);
    colibri_section section;
    if (e == NULL || e->image == NULL || logits == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, e == NULL || e->image == NULL ? 1 : 2, 0, 0);
    (void)colibri_find_section(e->image, COLIBRI_SECTION_SELFTEST, &section);
    const uint8_t *vector = e->image->meta + section.offset;
    uint32_t vocabulary = e->image->config.vocabulary, crc = 0;
#if COLIBRI_WITH_PREFERENCE
    const uint32_t balance = e->limits.balance, prefer_cached = e->limits.prefer_cached;
    e->limits.balance = e->limits.prefer_cached = 0; /* the vector is the model's own router's */
#endif
    colibri_status status = colibri_reset(handle, 0);
    for (uint32_t i = 0; status == COLIBRI_OK && i < section.count; i++) {
        uint32_t token = colibri_load_u32(vector + 12 + i * 4u);
        colibri_batch batch = {.struct_bytes = sizeof batch, .count = 1, .tokens = &token,
                               .logits = logits, .logits_floats = vocabulary};
        status = colibri_infer(handle, &batch, error);
        crc = crc_of_row(crc, logits, vocabulary);
    }
#if COLIBRI_WITH_PREFERENCE
    e->limits.balance = balance;
    e->limits.prefer_cached = prefer_cached;
#endif
    (void)colibri_reset(handle, 0);
    if (status == COLIBRI_OK && crc != expected_crc(e, vector))
        return colibri_fail(error, COLIBRI_ERR_SELFTEST, 0, crc, expected_crc(e, vector));
    return status;
}
