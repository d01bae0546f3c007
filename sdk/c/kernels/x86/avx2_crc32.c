/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 with carry-less multiplication (PCLMULQDQ), for records that come faster than bytes can be looked up.
 *
 * The message is a polynomial over GF(2), and 128 bits of it that lie n bits before other 128 may be moved onto
 * these when multiplied by x^n mod P. In the reflected order of this CRC, the first half of the 128 is
 * multiplied by x^(n + 32) mod P and the second by x^(n - 32) mod P, both reflected and shifted by one. Four
 * lanes move by 512 bits, then onto each other by 128; what is left are 16 bytes with the same remainder. */
#include <immintrin.h>
#include <stddef.h>

#include "avx2.h"
#include "colibri/image.h"

enum { AHEAD = 8192 }; /* a record has just come from storage: the caches do not have it */

static __m128i move(__m128i lane, __m128i by, __m128i onto)
{
    __m128i first = _mm_clmulepi64_si128(lane, by, 0x00), second = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), onto);
}

static __m128i load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

uint32_t colibri_avx2_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
    const __m128i by_512 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i by_128 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const uint8_t *p = data;
    if (bytes < 128)
        return colibri_crc32(crc, data, bytes);
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128((int)~crc)), b = load(p + 16), c = load(p + 32),
            d = load(p + 48);
    for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
        _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0); /* past the end it is no access */
        a = move(a, by_512, load(p));
        b = move(b, by_512, load(p + 16));
        c = move(c, by_512, load(p + 32));
        d = move(d, by_512, load(p + 48));
    }
    a = move(move(move(a, by_128, b), by_128, c), by_128, d);
    for (; bytes >= 16; p += 16, bytes -= 16)
        a = move(a, by_128, load(p));
    uint8_t left[16];
    _mm_storeu_si128((__m128i *)(void *)left, a);
    crc = colibri_crc32(UINT32_MAX, left, sizeof left); /* from an empty register: ~crc is 0 */
    return colibri_crc32(crc, p, bytes);
}
