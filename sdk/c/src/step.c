/* SPDX-License-Identifier: Apache-2.0 */
/* What every block is made of: work shared over the pool, norms, products. Work is split over outputs,
 * never over sums, so nothing here depends on the number of workers. */
#include <string.h>

#include "../kernels/ref/sums.h"
#include "engine_state.h"
#include "float_math.h"
#include "options.h"
#include "size.h"

void colibri_run(const struct engine *e, uint32_t items, colibri_task fn, void *arg)
{
    const colibri_pool *pool = e->platform.pool;
    if (pool != NULL && items > 1)
        pool->run(pool->context, items, fn, arg);
    else
        for (uint32_t i = 0; i < items; i++)
            fn(arg, i, 0);
    if (e->platform.yield != NULL)
        e->platform.yield(e->platform.yield_context);
}

/* Below this many elements, waking the workers costs more than they save. */
#define LIGHT 16384u

void colibri_run_rows(const struct engine *e, uint32_t rows, uint32_t columns, colibri_task fn, void *arg)
{
    if (columns >= LIGHT || rows > LIGHT / (columns + 1u)) {
        colibri_run(e, rows, fn, arg);
        return;
    }
    for (uint32_t row = 0; row < rows; row++)
        fn(arg, row, 0);
}

void colibri_trace(const struct engine *e, uint32_t kind, uint32_t layer, uint32_t index, uint32_t count,
                   uint64_t bytes, uint64_t work)
{
    if (e->platform.trace == NULL)
        return;
    colibri_event event = {kind, layer, index, count, bytes, work};
    e->platform.trace(e->platform.trace_context, &event);
}

bool colibri_matrix_of(const struct engine *e, uint32_t layer, uint32_t role, colibri_matrix *matrix)
{
    colibri_tensor t;
    if (colibri_image_find(e->image, layer, role, &t) != COLIBRI_OK)
        return false;
    colibri_matrix_init(matrix, &t, colibri_weights_at(e, t.offset));
    return true;
}

const float *colibri_vector_of(const struct engine *e, uint32_t layer, uint32_t role)
{
    colibri_matrix m;
    if (!colibri_matrix_of(e, layer, role, &m))
        return NULL;
    return (const float *)(const void *)m.codes;
}

struct quantize_task {
    const struct engine *engine;
    struct activations *a;
};

static void quantize_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct quantize_task *t = arg;
    const struct activations *a = t->a;
    uint32_t groups = colibri_divide_up(a->columns, a->group);
    (void)worker;
    row = colibri_row(a, row);
    t->engine->kernels->quantize(a->values + (size_t)row * a->stride, a->columns, a->group,
                                 a->codes + (size_t)row * groups * a->group,
                                 a->scales + (size_t)row * groups);
}

void colibri_quantize(const struct engine *e, struct activations *a, uint32_t group)
{
    if (group == 0 || a->group == group)
        return;
    a->group = group;
    struct quantize_task task = {e, a};
    colibri_run_rows(e, a->rows, a->columns, quantize_row, &task);
}

#if COLIBRI_WITH_LAYER_NORM
/* Sums by index mod 16, as everywhere (docs/numerics.md section 2). */
static void layer_norm(const float *x, const float *weight, const float *bias, uint32_t n, float epsilon,
                       float *out)
{
    colibri_sums s = {{0}}, v = {{0}};
    for (uint32_t i = 0; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + x[i];
    float mean = colibri_sums_tree(&s) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        v.part[i % 16] = v.part[i % 16] + (x[i] - mean) * (x[i] - mean);
    float r = colibri_rsqrt(colibri_sums_tree(&v) / (float)n + epsilon);
    for (uint32_t i = 0; i < n; i++)
        out[i] = ((x[i] - mean) * r) * weight[i] + bias[i];
}
#endif

void colibri_norm_row(const struct engine *e, const float *x, const float *weight, const float *bias,
                      float epsilon, uint32_t columns, float *out)
{
#if COLIBRI_WITH_LAYER_NORM
    if (bias != NULL) {
        layer_norm(x, weight, bias, columns, epsilon, out);
        return;
    }
#endif
    (void)bias;
    e->kernels->rms_norm(x, weight, columns, epsilon, out);
}

struct norm_task {
    const struct engine *engine;
    const float *x;
    const float *weight;
    const float *bias;
    struct activations *out;
};

static void norm_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct norm_task *t = arg;
    size_t at = (size_t)row * t->out->stride;
    (void)worker;
    if (t->weight == NULL) { /* a block without a norm of its own */
        memcpy(t->out->values + at, t->x + at, t->out->columns * sizeof *t->x);
        return;
    }
    colibri_norm_row(t->engine, t->x + at, t->weight, t->bias, t->engine->image->config.norm_epsilon,
                     t->out->columns, t->out->values + at);
}

void colibri_norm(const struct engine *e, const float *x, uint32_t layer, uint32_t role, uint32_t bias_role,
                  struct activations *out)
{
    bool biased = bias_role != 0 && e->image->config.norm == COLIBRI_NORM_LAYER;
    struct norm_task task = {e, x, colibri_vector_of(e, layer, role),
                             biased ? colibri_vector_of(e, layer, bias_role) : NULL, out};
    out->group = 0;
    colibri_run_rows(e, out->rows, out->columns, norm_row, &task);
    colibri_trace(e, COLIBRI_EVENT_VECTOR, layer, role, out->rows, (uint64_t)out->rows * out->columns * 8, 0);
}

struct add_task {
    const struct engine *engine;
    const float *y;
    uint32_t stride;
    float scale;
};

static void add_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct add_task *t = arg;
    uint32_t n = t->engine->image->config.hidden;
    float *x = colibri_floats(t->engine, COLIBRI_BUFFER_HIDDEN) + (size_t)row * n;
    const float *y = t->y + (size_t)row * t->stride;
    (void)worker;
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] + t->scale * y[i];
}

void colibri_add_block(const struct engine *e, uint32_t layer, uint32_t post_norm, float scale, struct activations *y)
{
    struct add_task task = {e, y->values, y->stride, scale};
    if (colibri_vector_of(e, layer, post_norm) != NULL)
        colibri_norm(e, y->values, layer, post_norm, 0, y);
    colibri_run_rows(e, e->tokens, y->columns, add_row, &task);
}

/* Products with one input, their rows cut into items one product after the other. */
struct products {
    const struct engine *engine;
    const struct activations *in;
    const struct colibri_linear_to *to;
    uint32_t layer;
    uint32_t count;
    uint32_t chunk;
    uint32_t ends[COLIBRI_LINEARS]; /* items up to and with each product */
};

static void product_rows(void *arg, uint32_t item, uint32_t worker)
{
    const struct products *p = arg;
    const struct colibri_linear_to *to = p->to;
    uint32_t i = 0;
    (void)worker;
    while (item >= p->ends[i])
        i++;
    to += i;
    colibri_matrix w;
    (void)colibri_matrix_of(p->engine, p->layer, to->role, &w);
    colibri_matmul m = {.out = to->out, .out_stride = to->stride, .tokens = p->in->rows};
    colibri_matmul_inputs(&m, &w, p->in);
    m.bias = to->bias_role != 0 ? colibri_vector_of(p->engine, p->layer, to->bias_role) : NULL;
    uint32_t begin = (item - (i != 0 ? p->ends[i - 1] : 0)) * p->chunk;
    p->engine->kernels->matmul(&m, begin, w.rows - begin < p->chunk ? w.rows : begin + p->chunk);
}

/* Runs the products added so far; the next one begins after them. */
static void run_products(struct products *p, const uint32_t *rows)
{
    uint32_t all = 0, items = 0;
    for (uint32_t i = 0; i < p->count; i++)
        all += rows[i];
    p->chunk = colibri_chunk(p->engine, all);
    for (uint32_t i = 0; i < p->count; i++) {
        items += colibri_divide_up(rows[i], p->chunk);
        p->ends[i] = items;
    }
    colibri_run(p->engine, items, product_rows, p);
    p->to += p->count;
    p->count = 0;
}

uint32_t colibri_chunk(const struct engine *e, uint32_t rows)
{
    uint32_t workers = e->limits.workers;
    if (workers == 1)
        return rows;
    return (colibri_divide_up(rows, workers * 12) + 15u) & ~15u; /* whole tiles */
}

void colibri_matmul_inputs(colibri_matmul *m, const colibri_matrix *w, const struct activations *in)
{
    m->weight = w;
    m->values = in->values;
    m->codes = in->codes;
    m->scales = in->scales;
    m->value_stride = in->stride;
    m->code_stride = w->groups * w->group;
    m->scale_stride = w->groups;
}

void colibri_linears(const struct engine *e, uint32_t layer, struct activations *in,
                     const struct colibri_linear_to *to, uint32_t count)
{
    struct products p = {.engine = e, .in = in, .to = to, .layer = layer};
    uint32_t rows[COLIBRI_LINEARS];
    for (; count != 0; count--, to++) {
        colibri_tensor t = {0}; /* always found: open has checked every tensor that a layer needs */
        (void)colibri_image_find(e->image, layer, to->role, &t);
        if (t.group != 0 && in->group != t.group && p.count != 0)
            run_products(&p, rows); /* the codes that these need are about to go */
        colibri_quantize(e, in, t.group);
        rows[p.count++] = t.rows;
        colibri_trace(e, COLIBRI_EVENT_MATMUL, layer, to->role, in->rows, t.bytes,
                      (uint64_t)t.rows * t.columns * in->rows);
    }
    run_products(&p, rows);
}

void colibri_linear(const struct engine *e, uint32_t layer, uint32_t role, uint32_t bias_role,
                    struct activations *in, float *out, uint32_t stride)
{
    struct colibri_linear_to to = {role, bias_role, out, stride};
    colibri_linears(e, layer, in, &to, 1);
}
