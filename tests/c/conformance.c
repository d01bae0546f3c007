/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of a kernel table over all lengths, groups and kinds of numbers, as checksums:
 *   conformance TABLE      prints "operation type group crc32" lines
 * The lines of every table on every CPU must equal tests/golden/numerics.json. Inputs come from integers, so
 * they are the same everywhere; buffers are exactly as long as the operation may touch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum kind { PLAIN, SMALL, SUBNORMAL, HUGE_VALUES, ANY_EXPONENT, ZEROS, SPECIAL, KINDS };
enum { FINITE_KINDS = ZEROS + 1 };

static const colibri_kernels *table;
static struct random source = {20240229};

/* 16 random bits and a sign, times a power of two: exact. */
static float number(enum kind kind)
{
    static const float power[] = {[PLAIN] = 0x1p-15f, [SMALL] = 0x1p-85f, [SUBNORMAL] = 0x1p-149f,
                                  [HUGE_VALUES] = 0x1p84f};
    static const uint32_t special[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F7FFFFF,
                                       0x00000001, 0x80000000, 0x3F800000};
    uint32_t bits = random_bits(&source);
    if (kind == ZEROS)
        return float_from(bits & 0x80000000u);
    if (kind == SPECIAL && bits >> 31)
        return float_from(special[bits >> 8 & 7]);
    if (kind == ANY_EXPONENT) /* 2^-133 .. 2^26: sums of products stay finite */
        return float_from((bits & 0x807FFFFFu) | (random_below(&source, 154) << 23));
    float x = (float)(bits & 0xFFFF) * power[kind == SPECIAL ? PLAIN : kind];
    return bits >> 16 & 1 ? -x : x;
}

static float *numbers(size_t n, enum kind kind)
{
    float *x = (float *)(void *)exact(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = number(kind);
    return x;
}

static uint8_t *bytes(size_t n)
{
    uint8_t *p = exact(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(random_bits(&source) >> 24);
    return p;
}

static uint32_t crc_floats(uint32_t crc, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) /* the bits of a NaN are nobody's promise */
        crc = crc_u32(crc, x[i] != x[i] ? 0x7FC00000u : bits_of(x[i]));
    return crc;
}

static void report(const char *operation, const char *type, uint32_t group, uint32_t crc)
{
    printf("%s %s %u %08x\n", operation, type, (unsigned)group, (unsigned)crc);
}

static uint32_t quantize_once(uint32_t crc, uint32_t n, uint32_t group, enum kind kind)
{
    uint32_t groups = n / group + (n % group != 0);
    float *x = numbers(n, kind), *scales = (float *)(void *)exact(groups * sizeof *scales);
    int8_t *codes = (int8_t *)exact((size_t)groups * group);
    table->quantize(x, n, group, codes, scales);
    crc = colibri_crc32(crc, codes, (uint64_t)groups * group);
    crc = crc_floats(crc, scales, groups);
    free(x), free(scales), free(codes);
    return crc;
}

static void quantize_all(void)
{
    static const uint32_t groups[] = {2, 6, 8, 16, 20, 24, 32, 48, 64, 80, 128, 256};
    for (uint32_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        uint32_t crc = 0;
        for (uint32_t n = 1; n <= 2 * groups[g] + 1; n++)
            for (int kind = 0; kind < KINDS; kind++)
                crc = quantize_once(crc, n, groups[g], (enum kind)kind);
        report("quantize", "-", groups[g], crc);
    }
}

/* A weight tensor as in an image: codes, then scales at the next 64 bytes. Half scales include
 * subnormals and the largest; with `hostile` any 16 bits, and codes that no packer writes. */
static uint8_t *weights(colibri_tensor *t, int hostile)
{
    uint32_t padded = t->group == 0 ? t->columns : (t->columns + t->group - 1) / t->group * t->group;
    size_t wide = t->type == COLIBRI_F32 ? 4 : t->type == COLIBRI_Q8 ? 1 : 2;
    size_t coded = t->type == COLIBRI_Q4 ? (size_t)t->rows * padded / 2 : (size_t)t->rows * padded * wide;
    size_t scales = t->group == 0 ? 0 : (size_t)t->rows * (padded / t->group);
    size_t start = t->group == 0 ? coded : (coded + 63) & ~(size_t)63;
    uint8_t *data = bytes(start + scales * 2);
    for (size_t i = 0; !hostile && t->type == COLIBRI_Q8 && i < coded; i++)
        data[i] = data[i] == 0x80 ? 0x81 : data[i];
    for (size_t i = 0; !hostile && t->group == 0 && t->type != COLIBRI_F32 && i < coded; i += 2)
        data[i + 1] &= 0xBF; /* no exponent of infinity: f16 below 2, bf16 below 2^0 */
    for (size_t i = 0; t->type == COLIBRI_F32 && i < coded; i += 4) {
        float x = number(ANY_EXPONENT);
        if (!hostile)
            memcpy(data + i, &x, 4);
    }
    for (size_t i = 0; !hostile && i < scales; i++) {
        uint16_t half = (uint16_t)random_below(&source, 0x7C00);
        memcpy(data + start + i * 2, &half, 2);
    }
    t->bytes = start + scales * 2;
    return data;
}

static uint32_t matmul_once(uint32_t crc, colibri_tensor *t, enum kind kind, int hostile)
{
    enum { TOKENS = 3, ROWS_IN = 4, ROWS_OUT = 5 };
    static const uint16_t in_rows[TOKENS] = {3, 0, 3}, out_rows[TOKENS] = {1, 4, 0};
    uint32_t turn = random_below(&source, 4), groups = t->group == 0 ? 0 : (t->columns + t->group - 1) / t->group;
    uint8_t *data = weights(t, hostile);
    float *bias = numbers(t->rows, kind), *x = numbers((size_t)ROWS_IN * t->columns, kind);
    float *scales = (float *)(void *)exact((size_t)ROWS_IN * groups * sizeof *scales);
    int8_t *codes = (int8_t *)exact((size_t)ROWS_IN * groups * t->group);
    float *out = numbers((size_t)ROWS_OUT * t->rows, ZEROS);
    colibri_matrix w;
    colibri_matrix_init(&w, t, data);
    for (uint32_t r = 0; groups != 0 && r < ROWS_IN; r++)
        table->quantize(x + (size_t)r * t->columns, t->columns, t->group, codes + (size_t)r * groups * t->group,
                        scales + (size_t)r * groups);
    colibri_matmul m = {.weight = &w, .bias = turn & 1 ? bias : NULL, .values = x, .codes = codes,
                        .scales = scales, .value_stride = t->columns, .code_stride = groups * t->group,
                        .scale_stride = groups, .out_stride = t->rows, .out = out, .tokens = TOKENS,
                        .in_rows = turn & 2 ? in_rows : NULL, .out_rows = turn & 2 ? out_rows : NULL};
    uint32_t middle = random_below(&source, t->rows + 1); /* two parts, as two workers would */
    table->matmul(&m, middle, t->rows);
    table->matmul(&m, 0, middle);
    crc = crc_floats(crc, out, (size_t)ROWS_OUT * t->rows);
    free(data), free(bias), free(x), free(scales), free(codes), free(out);
    return crc;
}

static void matmul_type(const char *name, uint32_t type, uint32_t group)
{
    static const uint16_t rows[] = {1, 7, 8, 9, 17};
    uint32_t last = group == 0 ? 67 : 2 * group + 1, crc = 0, hostile = 0;
    for (uint32_t columns = 1; columns <= last; columns++)
        for (int kind = 0; kind < KINDS; kind++) {
            colibri_tensor t = {.type = (uint8_t)type, .group = (uint16_t)group,
                                .rows = rows[random_below(&source, 5)], .columns = columns};
            if (kind < FINITE_KINDS)
                crc = matmul_once(crc, &t, (enum kind)kind, 0);
            hostile = matmul_once(hostile, &t, (enum kind)kind, 1);
        }
    report("matmul", name, group, crc);
    report("matmul_hostile", name, group, hostile);
}

static void matmul_all(void)
{
    matmul_type("f32", COLIBRI_F32, 0);
    matmul_type("f16", COLIBRI_F16, 0);
    matmul_type("bf16", COLIBRI_BF16, 0);
    for (uint32_t group = 32; group <= 128; group *= 2) {
        matmul_type("q8", COLIBRI_Q8, group);
        matmul_type("q4", COLIBRI_Q4, group);
    }
}

static void vectors_all(void)
{
    uint32_t norm = 0, silu = 0;
    for (uint32_t n = 1; n <= 67; n++)
        for (int kind = 0; kind < KINDS; kind++) {
            float *x = numbers(n, (enum kind)kind), *y = numbers(n, PLAIN), *out = numbers(n, ZEROS);
            table->rms_norm(x, y, n, 1e-6f, out);
            norm = crc_floats(norm, out, n);
            table->rms_norm(x, y, n, 0x1p-140f, x); /* in place; epsilon subnormal */
            norm = crc_floats(norm, x, n);
            for (uint32_t i = 0; kind == PLAIN && i < n; i++)
                out[i] = number(PLAIN) * 64.0f; /* across the whole range of exp */
            table->silu_gate(kind == PLAIN ? out : y, x, n);
            silu = crc_floats(silu, kind == PLAIN ? out : y, n);
            free(x), free(y), free(out);
        }
    report("rms_norm", "f32", 0, norm);
    report("silu_gate", "f32", 0, silu);
}

static uint32_t stride_of(uint32_t kv, uint32_t head_size)
{
    uint32_t n = kv == COLIBRI_F32 ? head_size * 4 : kv == COLIBRI_F16 ? head_size * 2 : head_size + 4;
    return (n + 3) & ~3u;
}

/* Cache rows as the engine stores them; f16 rows hold any finite half. */
static uint8_t *cache_rows(uint32_t kv, uint32_t head_size, uint32_t positions, enum kind kind)
{
    uint32_t stride = stride_of(kv, head_size);
    uint8_t *rows = bytes((size_t)stride * positions);
    for (uint32_t p = 0; p < positions; p++) {
        uint8_t *row = rows + (size_t)p * stride;
        float *x = numbers(head_size, kind);
        if (kv == COLIBRI_F32)
            memcpy(row, x, head_size * 4);
        if (kv == COLIBRI_Q8) /* as the engine does, on rows that are only 4-byte aligned */
            table->quantize(x, head_size, head_size, (int8_t *)row + 4, (float *)(void *)row);
        for (uint32_t i = 0; kv == COLIBRI_F16 && i < head_size; i++)
            row[2 * i + 1] &= 0xBF;
        free(x);
    }
    return rows;
}

static uint32_t attend_once(uint32_t crc, uint32_t kv, uint32_t head_size, uint32_t positions, enum kind kind)
{
    uint8_t *keys = cache_rows(kv, head_size, positions, kind);
    uint8_t *values = cache_rows(kv, head_size, positions, kind);
    float *query = numbers(head_size, PLAIN), *scores = numbers(positions, ZEROS);
    colibri_attend a = {.query = query, .keys = keys, .values = values, .stride = stride_of(kv, head_size),
                        .kv = kv, .head_size = head_size, .value_size = head_size, .positions = positions,
                        .scale = 0.25f, .scores = scores, .out = query}; /* in place, as the engine calls it */
    table->attend(&a);
    crc = crc_floats(crc, query, head_size);
    free(keys), free(values), free(query), free(scores);
    return crc;
}

static void attend_all(void)
{
    static const struct { const char *name; uint32_t kv; } types[] = {
        {"f32", COLIBRI_F32}, {"f16", COLIBRI_F16}, {"q8", COLIBRI_Q8}};
    static const uint32_t sizes[] = {2, 6, 8, 14, 16, 20, 32, 48, 64, 80, 128};
    for (uint32_t t = 0; t < 3; t++) {
        uint32_t crc = 0;
        for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (uint32_t positions = 1; positions <= 37; positions++)
                for (int kind = 0; kind < FINITE_KINDS; kind++)
                    crc = attend_once(crc, types[t].kv, sizes[s], positions, (enum kind)kind);
        report("attend", types[t].name, 0, crc);
    }
}

int main(int argc, char **argv)
{
    for (uint32_t i = 0; argc == 2 && table == NULL && kernel_table(i) != NULL; i++)
        if (strcmp(kernel_table(i)->name, argv[1]) == 0)
            table = kernel_table(i);
    if (table == NULL)
        stop(2, "usage: conformance TABLE, one that this CPU has");
    quantize_all();
    matmul_all();
    vectors_all();
    attend_all();
    return 0;
}
