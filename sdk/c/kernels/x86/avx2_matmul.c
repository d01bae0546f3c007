/* SPDX-License-Identifier: Apache-2.0 */
/* Products with row-contiguous weights. Quantised: eight rows at a time, so that the eight integer dots
 * of a group become one register and its float sum stays one multiply and one add a row, groups ascending. */
#include "../../src/convert.h"
#include "../ref/ref.h"
#include "avx2.h"
#include "avx2_sums.h"
#include "colibri/image.h"

enum { ROWS = 8 };

/* Where a product's rows for one token begin. */
struct place {
    const colibri_matrix *w;
    const int8_t *x;
    const float *d;
};

/* 32 codes of q4: nibbles 0-15 of 16 bytes, low halves then high halves. half: bytes from low to high element. */
static inline __m256i dot_q4(const uint8_t *codes, const int8_t *x, uint32_t half)
{
    const __m128i mask = _mm_set1_epi8(15);
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    __m256i nibbles = _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask),
                                       _mm_and_si128(bytes, mask));
    __m256i a = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(const void *)(x + half)),
                                 _mm_loadu_si128((const __m128i *)(const void *)x));
    /* (n - 8) * a, pairwise in 16 bits: |8 * 127 * 2| fits */
    __m256i sums = _mm256_sub_epi16(_mm256_maddubs_epi16(nibbles, a),
                                    _mm256_maddubs_epi16(_mm256_set1_epi8(8), a));
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

/* 32 codes of q8: |w| * (a with w's sign); 127 * 127 * 2 fits 16 bits. */
static inline __m256i dot_q8(const uint8_t *codes, const int8_t *x)
{
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)x);
    __m256i sums = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(a, w));
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

/* Eight partial integer sums of one row's group. */
static inline __m256i group_dot(const struct place *p, uint32_t row, uint32_t g)
{
    const colibri_matrix *w = p->w;
    const uint8_t *codes = w->codes + (size_t)row * w->stride;
    const int8_t *x = p->x + (size_t)g * w->group;
    __m256i sum = _mm256_setzero_si256();
    if (w->type == COLIBRI_Q8) {
        codes += (size_t)g * w->group;
        for (uint32_t i = 0; i < w->group; i += 32)
            sum = _mm256_add_epi32(sum, dot_q8(codes + i, x + i));
        return sum;
    }
    uint32_t half = w->group / 2;
    codes += (size_t)g * half;
    for (uint32_t i = 0; i < half; i += 16)
        sum = _mm256_add_epi32(sum, dot_q4(codes + i, x + i, half));
    return sum;
}

/* Totals of eight registers, one a lane, in order. */
static inline __m256i totals(const __m256i r[ROWS])
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(r[4], r[5]), _mm256_hadd_epi32(r[6], r[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

static inline __m256 group_scales(const colibri_matrix *w, uint32_t row, uint32_t g)
{
    uint16_t halves[ROWS];
    for (uint32_t r = 0; r < ROWS; r++)
        halves[r] = w->scales[(size_t)(row + r) * w->groups + g];
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
}

static void rows_quantised(const struct place *p, uint32_t row, float *out)
{
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t g = 0; g < p->w->groups; g++) {
        __m256i parts[ROWS];
        for (uint32_t r = 0; r < ROWS; r++)
            parts[r] = group_dot(p, row + r, g);
        __m256 scale = _mm256_mul_ps(group_scales(p->w, row, g), _mm256_set1_ps(p->d[g]));
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_cvtepi32_ps(totals(parts)), scale));
    }
    _mm256_storeu_ps(out, sum);
}

static inline __m256 load_float(const uint8_t *row, uint32_t type, uint32_t i)
{
    const uint16_t *half = (const uint16_t *)(const void *)row + i;
    if (type == COLIBRI_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)half);
    if (type == COLIBRI_F16)
        return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static float scalar_float(const uint8_t *row, uint32_t type, uint32_t i)
{
    if (type == COLIBRI_F32)
        return ((const float *)(const void *)row)[i];
    uint32_t half = ((const uint16_t *)(const void *)row)[i];
    return type == COLIBRI_F16 ? colibri_f16_to_float(half) : colibri_float_from_bits(half << 16);
}

static float row_float(const colibri_matrix *w, uint32_t row, const float *x)
{
    const uint8_t *elements = w->codes + (size_t)row * w->stride;
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= w->columns; i += 16) {
        low = _mm256_add_ps(low, _mm256_mul_ps(load_float(elements, w->type, i), _mm256_loadu_ps(x + i)));
        high = _mm256_add_ps(high, _mm256_mul_ps(load_float(elements, w->type, i + 8),
                                                 _mm256_loadu_ps(x + i + 8)));
    }
    if (i == w->columns)
        return colibri_avx2_tree(low, high);
    colibri_sums s;
    colibri_avx2_spill(&s, low, high);
    for (; i < w->columns; i++)
        s.part[i % 16] = s.part[i % 16] + scalar_float(elements, w->type, i) * x[i];
    return colibri_sums_tree(&s);
}

static void token_float(const colibri_matmul *m, uint32_t in_row, uint32_t begin, uint32_t end, float *out)
{
    const float *x = m->values + (size_t)in_row * m->value_stride;
    for (uint32_t r = begin; r < end; r++)
        out[r] = row_float(m->weight, r, x);
}

/* The last rows, fewer than eight, go through the reference with the same lists. */
static void token_quantised(const colibri_matmul *m, uint32_t in_row, uint32_t begin, uint32_t end, float *out)
{
    struct place p = {m->weight, m->codes + (size_t)in_row * m->code_stride,
                      m->scales + (size_t)in_row * m->scale_stride};
    uint32_t r = begin;
    for (; end - r >= ROWS; r += ROWS)
        rows_quantised(&p, r, out + r);
    colibri_matmul rest = {.weight = m->weight, .codes = p.x, .scales = p.d, .out = out, .tokens = 1};
    colibri_ref_matmul(&rest, r, end);
}

void colibri_avx2_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    if (m->weight->order == COLIBRI_ORDER_TILES && m->weight->groups != 0) {
        colibri_avx2_matmul_tiles(m, row_begin, row_end);
        return;
    }
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
        uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
        float *out = m->out + (size_t)out_row * m->out_stride;
        if (m->weight->groups != 0)
            token_quantised(m, in_row, row_begin, row_end, out);
        else
            token_float(m, in_row, row_begin, row_end, out);
        for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
            out[r] = out[r] + m->bias[r];
    }
}
