/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 as in zlib (ISO 3309, reflected polynomial 0xEDB88320): with AArch64's instructions for it where the
 * target has them, else four bits a step: 64 bytes of table. */
#include "colibri/image.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

#include "bytes.h"

uint32_t colibri_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (; bytes >= 8; p += 8, bytes -= 8)
        crc = __crc32d(crc, colibri_load_u64(p));
    for (; bytes != 0; bytes--)
        crc = __crc32b(crc, *p++);
    return ~crc;
}
#else
uint32_t colibri_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
    static const uint32_t table[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
        0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    const uint8_t *p = data;
    crc = ~crc;
    for (; bytes != 0; bytes--) {
        crc ^= *p++;
        crc = crc >> 4 ^ table[crc & 15u];
        crc = crc >> 4 ^ table[crc & 15u];
    }
    return ~crc;
}
#endif
