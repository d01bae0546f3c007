/* SPDX-License-Identifier: Apache-2.0 */
#include "broken.h"

#include <math.h>
#include <string.h>

#include "../../sdk/c/kernels/ref/ref.h"
#include "../../sdk/c/kernels/ref/sums.h"
#include "../../sdk/c/src/convert.h"
#include "../../sdk/c/src/float_math.h"
#include "colibri/image.h"

enum defect {
    /* quantize */
    TIES_AWAY, NO_RAISE, PADDING_LEFT, INPUT_CHANGED,
    /* matmul of floats */
    FUSED, ONE_SUM, NO_TAIL, NO_PLUS_ZERO, BIAS_FIRST,
    /* matmul of codes */
    FLUSHED, HALF_FLUSHED, REGROUPED, SATURATED, TILES_AS_ROWS,
    /* any matmul */
    ONE_TOO_MANY, IN_ROWS_IGNORED, TOKENS_LOST, GAP_WRITTEN,
    /* vectors, attend */
    SQRTF, EXPF, SINK_FORGOTTEN, OUT_BEFORE_QUERY, WHOLE_VALUE, SUM_IN_ORDER, SCORE_TOO_MANY,
    DEFECTS
};

static const char *const names[] = {
    [TIES_AWAY] = "ties_away", [NO_RAISE] = "no_raise", [PADDING_LEFT] = "padding_left",
    [INPUT_CHANGED] = "input_changed", [FUSED] = "fused", [ONE_SUM] = "one_sum", [NO_TAIL] = "no_tail",
    [NO_PLUS_ZERO] = "no_plus_zero", [BIAS_FIRST] = "bias_first", [FLUSHED] = "flushed",
    [HALF_FLUSHED] = "half_flushed", [REGROUPED] = "regrouped", [SATURATED] = "saturated",
    [TILES_AS_ROWS] = "tiles_as_rows", [ONE_TOO_MANY] = "one_too_many", [IN_ROWS_IGNORED] = "in_rows_ignored",
    [TOKENS_LOST] = "tokens_lost", [GAP_WRITTEN] = "gap_written", [SQRTF] = "sqrtf", [EXPF] = "expf",
    [SINK_FORGOTTEN] = "sink_forgotten", [OUT_BEFORE_QUERY] = "out_before_query", [WHOLE_VALUE] = "whole_value",
    [SUM_IN_ORDER] = "sum_in_order", [SCORE_TOO_MANY] = "score_too_many"};

static enum defect defect; /* one program, one table */

static int subnormal(float x)
{
    return (colibri_float_bits(x) & 0x7F800000u) == 0;
}

static void quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales)
{
    if (defect == PADDING_LEFT && n % group != 0) {
        int8_t kept[256];
        uint32_t missing = group - n % group;
        memcpy(kept, codes + n, missing);
        colibri_ref_quantize(x, n, group, codes, scales);
        memcpy(codes + n, kept, missing);
        return;
    }
    colibri_ref_quantize(x, n, group, codes, scales);
    if (defect == INPUT_CHANGED && n > 8)
        *(float *)(uintptr_t)&x[n - 1] = 0.0f;
    for (uint32_t i = 0; (defect == TIES_AWAY || defect == NO_RAISE) && i < n; i++) {
        float scale = scales[i / group], amax = scale * 127.0f;
        if (defect == TIES_AWAY && !subnormal(scale) && scale == 1.0f)
            codes[i] = (int8_t)roundf(x[i]);
        if (defect == NO_RAISE && isinf(127.0f / amax) && amax > 0.0f)
            codes[i] = x[i] > 0.0f ? 127 : -127;
    }
}

static float weight_at(const uint8_t *row, uint32_t type, uint32_t i)
{
    if (type == COLIBRI_F32)
        return ((const float *)(const void *)row)[i];
    uint32_t half = ((const uint16_t *)(const void *)row)[i];
    return type == COLIBRI_F16 ? colibri_f16_to_float(half) : colibri_float_from_bits(half << 16);
}

static float float_row(const colibri_matmul *m, uint32_t r, uint32_t in)
{
    const colibri_matrix *w = m->weight;
    const uint8_t *row = w->codes + (size_t)r * w->stride;
    const float *x = m->values + (size_t)in * m->value_stride;
    uint32_t n = defect == NO_TAIL ? w->columns & ~3u : w->columns;
    colibri_sums s = {{0}};
    if (defect == BIAS_FIRST && m->bias != NULL)
        s.part[0] = m->bias[r];
    for (uint32_t i = 0; i < n; i++) {
        float a = weight_at(row, w->type, i), *part = &s.part[defect == ONE_SUM ? 0 : i % 16];
        if (defect == FUSED)
            *part = fmaf(a, x[i], *part);
        else
            *part = defect == NO_PLUS_ZERO && i == 0 && n == 1 ? a * x[i] : *part + a * x[i];
    }
    if (defect == NO_PLUS_ZERO && n == 1)
        return s.part[0];
    return colibri_sums_tree(&s);
}

static int32_t code(const colibri_matrix *w, const uint8_t *row, uint32_t i)
{
    if (w->type == COLIBRI_Q8)
        return (int8_t)row[i];
    uint32_t half = w->group / 2, byte = row[i / w->group * half + i % half];
    return (int32_t)(i % w->group < half ? byte & 15u : byte >> 4) - 8;
}

/* Pairs of products of unsigned and signed bytes in 16 bits, as one instruction has them. */
static int32_t saturated(int32_t a, int32_t x, int32_t b, int32_t y)
{
    int32_t sum = (a + 128) * x + (b + 128) * y;
    return (sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum) - 128 * (x + y);
}

static float quantised_row(const colibri_matmul *m, uint32_t r, uint32_t in)
{
    const colibri_matrix *w = m->weight;
    const uint8_t *row = w->codes + (size_t)r * w->stride;
    const int8_t *x = m->codes + (size_t)in * m->code_stride;
    const float *d = m->scales + (size_t)in * m->scale_stride;
    float sum = 0.0f;
    for (uint32_t g = 0; g < w->groups; g++) {
        uint32_t half = w->scales[(size_t)r * w->groups + g];
        float scale = defect == HALF_FLUSHED && (half & 0x7C00u) == 0 ? 0.0f : colibri_f16_to_float(half);
        int32_t dot = 0;
        for (uint32_t i = g * w->group; i < (g + 1) * w->group; i += 2) {
            int32_t a = code(w, row, i), b = code(w, row, i + 1);
            dot += defect == SATURATED ? saturated(a, x[i], b, x[i + 1]) : a * x[i] + b * x[i + 1];
        }
        float both = scale * d[g];
        if (defect == FLUSHED && subnormal(both))
            both = 0.0f;
        sum = sum + (defect == REGROUPED ? (float)dot * scale * d[g] : (float)dot * both);
    }
    return sum;
}

/* Row by row, with the defects inside a row. */
static void matmul_rows(const colibri_matmul *m, uint32_t begin, uint32_t end)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t in = m->in_rows != NULL ? m->in_rows[t] : t, to = m->out_rows != NULL ? m->out_rows[t] : t;
        for (uint32_t r = begin; r < end; r++) {
            float sum = m->weight->groups != 0 ? quantised_row(m, r, in) : float_row(m, r, in);
            int add = m->bias != NULL && !(defect == BIAS_FIRST && m->weight->groups == 0);
            m->out[(size_t)to * m->out_stride + r] = add ? sum + m->bias[r] : sum;
        }
    }
}

static void matmul(const colibri_matmul *m, uint32_t begin, uint32_t end)
{
    colibri_matmul other = *m;
    colibri_matrix weight = *m->weight;
    other.weight = &weight;
    if (defect == TILES_AS_ROWS)
        weight.order = COLIBRI_ORDER_ROWS;
    if (defect == IN_ROWS_IGNORED)
        other.in_rows = NULL;
    if (defect == TOKENS_LOST && m->tokens > 4)
        other.tokens = m->tokens & ~3u;
    if (weight.order == COLIBRI_ORDER_ROWS && defect <= TILES_AS_ROWS)
        matmul_rows(&other, begin, end);
    else
        colibri_ref_matmul(&other, begin, end);
    if (defect == ONE_TOO_MANY && m->tokens != 0 && end == weight.rows)
        m->out[(size_t)(m->out_rows != NULL ? m->out_rows[m->tokens - 1] : m->tokens - 1) * m->out_stride + end] = 1;
    if (defect == GAP_WRITTEN && m->tokens > 1 && m->out_rows == NULL && m->out_stride > weight.rows)
        m->out[m->out_stride - 1] = 0.0f;
}

static void rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    if (defect != SQRTF) {
        colibri_ref_rms_norm(x, weight, n, epsilon, out);
        return;
    }
    float r = 1.0f / sqrtf(colibri_dot(x, x, n) / (float)n + epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

static void silu_gate(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; defect == EXPF && i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    if (defect != EXPF)
        colibri_ref_silu_gate(gate, up, n);
}

/* The softmax of the reference with its sum in the order of positions, over f32. */
static void attend_in_order(const colibri_attend *a)
{
    float maximum = a->sink != NULL ? *a->sink : -INFINITY, sum = 0.0f;
    for (uint32_t p = 0; p < a->positions; p++) {
        const float *key = (const float *)(const void *)(a->keys + (size_t)p * a->stride);
        a->scores[p] = colibri_dot(a->query, key, a->head_size) * a->scale;
        maximum = a->scores[p] > maximum ? a->scores[p] : maximum;
    }
    for (uint32_t p = 0; p < a->positions; p++) {
        a->scores[p] = colibri_exp(a->scores[p] - maximum);
        sum = sum + a->scores[p];
    }
    if (a->sink != NULL)
        sum = sum + colibri_exp(*a->sink - maximum);
    float inverse = 1.0f / sum;
    for (uint32_t i = 0; i < a->value_size; i++) {
        float acc = 0.0f;
        for (uint32_t p = 0; p < a->positions; p++)
            acc = acc + a->scores[p] * ((const float *)(const void *)(a->values + (size_t)p * a->stride))[i];
        a->out[i] = acc * inverse;
    }
}

static void attend(const colibri_attend *a)
{
    colibri_attend other = *a;
    if (defect == SUM_IN_ORDER && a->kv == COLIBRI_F32) {
        attend_in_order(a);
        return;
    }
    if (defect == SINK_FORGOTTEN)
        other.sink = NULL;
    if (defect == WHOLE_VALUE)
        other.value_size = a->head_size;
    for (uint32_t i = 0; defect == OUT_BEFORE_QUERY && i < a->value_size; i++)
        a->out[i] = 0.0f;
    colibri_ref_attend(&other);
    if (defect == SCORE_TOO_MANY && a->positions % 4 != 0)
        a->scores[a->positions] = 0.0f;
}

const char *broken_name(uint32_t index)
{
    return index < DEFECTS ? names[index] : NULL;
}

const colibri_kernels *broken_table(const char *name)
{
    static const colibri_kernels table = {.struct_bytes = sizeof table, .name = "broken", .quantize = quantize,
                                          .matmul = matmul, .rms_norm = rms_norm, .silu_gate = silu_gate,
                                          .attend = attend};
    for (uint32_t i = 0; i < DEFECTS; i++)
        if (strcmp(names[i], name) == 0) {
            defect = (enum defect)i;
            return &table;
        }
    return NULL;
}
