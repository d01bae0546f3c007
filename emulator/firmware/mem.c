/* SPDX-License-Identifier: Apache-2.0 */
/* The four functions that the runtime needs and that firmware without a C library must bring along.
 * Word by word where both sides allow it. */
#include <stdint.h>
#include <string.h>

typedef uintptr_t __attribute__((may_alias)) word;
#define WORD sizeof(word)

static int aligned(uintptr_t bits)
{
    return (bits & (WORD - 1u)) == 0;
}

static void copy_up(unsigned char *to, const unsigned char *from, size_t n)
{
    if (aligned((uintptr_t)to ^ (uintptr_t)from)) {
        for (; n > 0 && !aligned((uintptr_t)to); n--) {
            *to++ = *from++;
        }
        for (; n >= WORD; n -= WORD, to += WORD, from += WORD) {
            *(word *)(void *)to = *(const word *)(const void *)from;
        }
    }
    for (; n > 0; n--) {
        *to++ = *from++;
    }
}

static void copy_down(unsigned char *to, const unsigned char *from, size_t n)
{
    to += n;
    from += n;
    if (aligned((uintptr_t)to ^ (uintptr_t)from)) {
        for (; n > 0 && !aligned((uintptr_t)to); n--) {
            *--to = *--from;
        }
        for (; n >= WORD; n -= WORD) {
            to -= WORD;
            from -= WORD;
            *(word *)(void *)to = *(const word *)(const void *)from;
        }
    }
    for (; n > 0; n--) {
        *--to = *--from;
    }
}

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    copy_up(to, from, n);
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    if ((uintptr_t)to - (uintptr_t)from >= n) {
        copy_up(to, from, n);
    } else {
        copy_down(to, from, n);
    }
    return to;
}

void *memset(void *to, int value, size_t n)
{
    unsigned char *byte = to;
    unsigned char v = (unsigned char)value;
    for (; n > 0 && !aligned((uintptr_t)byte); n--) {
        *byte++ = v;
    }
    word pattern = (word)-1 / 255u * v;
    for (; n >= WORD; n -= WORD, byte += WORD) {
        *(word *)(void *)byte = pattern;
    }
    for (; n > 0; n--) {
        *byte++ = v;
    }
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a;
    const unsigned char *y = b;
    for (; n > 0; n--, x++, y++) {
        if (*x != *y) {
            return *x < *y ? -1 : 1;
        }
    }
    return 0;
}
