/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing the next token without memory or sorting: thresholds are found digit by digit over an order-preserving key
 * of the logits, eight linear scans each. Sums run in id order. */
#include "colibri/engine.h"
#include "fail.h"
#include "float_math.h"

/* Candidates: keys above the threshold, and the first `ties` ids at it. */
struct cut {
    uint32_t threshold;
    uint32_t ties;
};

struct draw {
    const float *logits;
    uint32_t count;
    float maximum;
    float temperature;
    struct cut top_k;
    struct cut top_p;
};

/* Larger float, larger key; both zeros are made one. */
static uint32_t key_of(float x)
{
    uint32_t bits = colibri_float_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* An infinite temperature makes 0 of every finite difference and would make NaN of -infinity. */
static float weight_of(const struct draw *d, uint32_t id)
{
    if (!colibri_finite_bits(colibri_float_bits(d->logits[id])))
        return 0.0f;
    return colibri_exp((d->logits[id] - d->maximum) / d->temperature);
}

/* Whether the next id in order passes; left counts the ties still allowed. */
static int passes(const struct cut *cut, uint32_t key, uint32_t *left)
{
    if (key != cut->threshold)
        return key > cut->threshold;
    if (*left == 0)
        return 0;
    --*left;
    return 1;
}

enum { DIGIT_BITS = 4, DIGITS = 1 << DIGIT_BITS };

/* The k-th largest key. */
static void cut_top_k(struct draw *d, uint32_t k)
{
    uint32_t low = 0, above = 0; /* the key's digits so far; how many keys are larger than any with these digits */
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        uint32_t counts[DIGITS] = {0}, digit = DIGITS - 1;
        for (uint32_t i = 0; i < d->count; i++) {
            uint32_t key = key_of(d->logits[i]);
            if (key >= low && (key - low) >> shift < DIGITS)
                counts[(key - low) >> shift]++;
        }
        for (; above + counts[digit] < k; digit--)
            above += counts[digit];
        low += digit << shift;
    }
    d->top_k.threshold = low;
    d->top_k.ties = k - above;
}

/* mass[n]: weight of the candidates of top_k with keys from low + (n << shift) on. */
static void masses(const struct draw *d, uint32_t low, int shift, float mass[DIGITS])
{
    uint32_t left = d->top_k.ties;
    for (uint32_t n = 0; n < DIGITS; n++)
        mass[n] = 0.0f;
    for (uint32_t i = 0; i < d->count; i++) {
        uint32_t key = key_of(d->logits[i]);
        if (key < low || !passes(&d->top_k, key, &left)) /* ties of top_k are all below low, or none is */
            continue;
        uint32_t digit = (key - low) >> shift;
        float weight = weight_of(d, i);
        for (uint32_t n = 0; n < DIGITS && n <= digit; n++)
            mass[n] = mass[n] + weight;
    }
}

/* The largest key from which on the mass is reached; then as many ties as it takes. A sum with more terms is never
 * smaller, because rounding keeps order, so there is one such key. */
static void cut_top_p(struct draw *d, float top_p)
{
    uint32_t low = 0, left = d->top_k.ties;
    float mass[DIGITS], need = 0.0f, above = 0.0f; /* above: of keys larger than any with low's digits */
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        uint32_t digit = DIGITS - 1;
        masses(d, low, shift, mass);
        if (shift == 32 - DIGIT_BITS)
            need = top_p * mass[0];
        for (; digit != 0 && !(mass[digit] >= need); digit--)
            above = mass[digit];
        low += digit << shift;
    }
    d->top_p.threshold = low;
    d->top_p.ties = 0;
    for (uint32_t i = 0; i < d->count; i++) {
        uint32_t key = key_of(d->logits[i]);
        if (!passes(&d->top_k, key, &left) || key != low)
            continue;
        d->top_p.ties++;
        above = above + weight_of(d, i);
        if (above >= need)
            return;
    }
}

static uint32_t next_random(uint64_t *state) /* PCG-XSH-RR 64/32 (O'Neill 2014) */
{
    uint64_t s = *state * 6364136223846793005u + 1442695040888963407u;
    *state = s;
    uint32_t x = (uint32_t)(((s >> 18) ^ s) >> 27), turn = (uint32_t)(s >> 59);
    return x >> turn | x << (-turn & 31u);
}

/* Walks the candidates in id order; the last one with weight is the answer when u is at the end.
 * target < 0: adds up only. */
static float walk(const struct draw *d, float target, uint32_t *token)
{
    float sum = 0.0f;
    uint32_t left_k = d->top_k.ties, left_p = d->top_p.ties;
    for (uint32_t i = 0; i < d->count; i++) {
        uint32_t key = key_of(d->logits[i]);
        if (!passes(&d->top_k, key, &left_k) || !passes(&d->top_p, key, &left_p))
            continue;
        float w = weight_of(d, i);
        if (!(w > 0.0f))
            continue;
        sum = sum + w;
        *token = i;
        if (target >= 0.0f && sum > target)
            break;
    }
    return sum;
}

/* Lowest id of the highest logit. False when a logit is NaN or +infinity, or all are -infinity. */
static int find_maximum(struct draw *d, uint32_t *best)
{
    *best = 0;
    for (uint32_t i = 0; i < d->count; i++) {
        if (!(d->logits[i] < __builtin_inff()))
            return 0;
        if (d->logits[i] > d->logits[*best])
            *best = i;
    }
    d->maximum = d->logits[*best];
    return colibri_finite_bits(colibri_float_bits(d->maximum));
}

colibri_status colibri_sample(const float *logits, uint32_t count, const colibri_sampling *s,
                              uint64_t *rng, uint32_t *token)
{
    if (logits == NULL || count == 0 || s == NULL || rng == NULL || token == NULL ||
        !(s->temperature >= 0.0f) || !(s->top_p >= 0.0f))
        return COLIBRI_ERR_ARGUMENT;
    struct draw d = {.logits = logits, .count = count, .temperature = s->temperature,
                     .top_k = {0, count}, .top_p = {0, count}};
    if (!find_maximum(&d, token))
        return COLIBRI_ERR_NONFINITE;
    if (s->temperature == 0.0f || s->top_k == 1 || s->top_p == 0.0f)
        return COLIBRI_OK;
    if (s->top_k != 0 && s->top_k < count)
        cut_top_k(&d, s->top_k);
    if (s->top_p < 1.0f)
        cut_top_p(&d, s->top_p);
    float total = walk(&d, -1.0f, token);
    (void)walk(&d, (float)(next_random(rng) >> 8) * 0x1p-24f * total, token);
    return COLIBRI_OK;
}
