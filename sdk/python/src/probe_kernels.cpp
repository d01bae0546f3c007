// SPDX-License-Identifier: Apache-2.0
// The loops of the probes. An empty asm statement that claims to change a register keeps the compiler
// from computing once what the loop shall do every time.
#include "probe_kernels.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace {

constexpr size_t BLOCK = 512; // bytes of a turn of the reading loops

inline void prefetch(const uint8_t *block, size_t ahead)
{
    for (size_t line = 0; line < BLOCK; line += 64) __builtin_prefetch(block + line + ahead, 0, 3);
}

uint64_t read_plain(const uint8_t *data, size_t bytes, size_t ahead)
{
    uint64_t sum[8] = {0};
    for (size_t at = 0; at < bytes; at += BLOCK) {
        if (ahead != 0) prefetch(data + at, ahead);
        for (size_t i = 0; i < BLOCK; i += sizeof sum) {
            uint64_t words[8];
            std::memcpy(words, data + at + i, sizeof words);
            for (int k = 0; k < 8; k++) sum[k] ^= words[k];
        }
    }
    uint64_t all = 0;
    for (const uint64_t word : sum) all ^= word;
    return all;
}

constexpr int LANES = 64;

int32_t int8_plain(uint64_t rounds)
{
    int8_t a[LANES], b[LANES];
    int32_t sum[LANES] = {0};
    for (int i = 0; i < LANES; i++) a[i] = static_cast<int8_t>(i - 31), b[i] = static_cast<int8_t>(29 - i);
    for (uint64_t r = 0; r < rounds; r++) {
        asm volatile("" : : "r"(a), "r"(b) : "memory");
        for (int i = 0; i < LANES; i++) sum[i] += a[i] * b[i];
    }
    int32_t all = 0;
    for (const int32_t one : sum) all ^= one;
    return all;
}

#if defined(__x86_64__)
#define TARGET(isa) __attribute__((target(isa)))

TARGET("avx2") uint64_t read_avx2(const uint8_t *data, size_t bytes, size_t ahead)
{
    __m256i sum[8] = {};
    for (size_t at = 0; at < bytes; at += BLOCK) {
        if (ahead != 0) prefetch(data + at, ahead);
        const auto *block = reinterpret_cast<const __m256i *>(data + at);
        for (int k = 0; k < 16; k++) sum[k % 8] = _mm256_xor_si256(sum[k % 8], _mm256_load_si256(block + k));
    }
    for (int k = 1; k < 8; k++) sum[0] = _mm256_xor_si256(sum[0], sum[k]);
    return static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 0) ^ _mm256_extract_epi64(sum[0], 3));
}

TARGET("avx512f") uint64_t read_avx512(const uint8_t *data, size_t bytes, size_t ahead)
{
    __m512i sum[8] = {};
    for (size_t at = 0; at < bytes; at += BLOCK) {
        if (ahead != 0) prefetch(data + at, ahead);
        const auto *block = reinterpret_cast<const __m512i *>(data + at);
        for (int k = 0; k < 8; k++) sum[k] = _mm512_xor_si512(sum[k], _mm512_load_si512(block + k));
    }
    for (int k = 1; k < 8; k++) sum[0] = _mm512_xor_si512(sum[0], sum[k]);
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum[0]));
}

// Two instructions a cycle with a latency of 5 need 10 sums under way; 12 leave room for two operands.
constexpr int SUMS = 12;

TARGET("avx2") int32_t fold(const __m256i *sum)
{
    __m256i all = sum[0];
    for (int k = 1; k < SUMS; k++) all = _mm256_xor_si256(all, sum[k]);
    return _mm256_extract_epi32(all, 0) ^ _mm256_extract_epi32(all, 7);
}

TARGET("avx2") int32_t int8_avx2(uint64_t rounds)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), sum[SUMS];
    for (int k = 0; k < SUMS; k++) sum[k] = _mm256_set1_epi32(k); // all different, or one would do for all
    const __m256i ones = _mm256_set1_epi16(1);
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int k = 0; k < SUMS; k++) {
            asm volatile("" : "+x"(a), "+x"(b));
            sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    return fold(sum);
}

TARGET("avx512f,avx512bw,avx512vnni") int32_t int8_avx512(uint64_t rounds)
{
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5), sum[SUMS];
    for (int k = 0; k < SUMS; k++) sum[k] = _mm512_set1_epi32(k); // all different, or one would do for all
    for (uint64_t r = 0; r < rounds; r++) {
        asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int k = 0; k < SUMS; k++) sum[k] = _mm512_dpbusd_epi32(sum[k], a, b);
    }
    for (int k = 1; k < SUMS; k++) sum[0] = _mm512_xor_si512(sum[0], sum[k]);
    return _mm512_reduce_add_epi32(sum[0]);
}

#if __GNUC__ >= 11 || __clang_major__ >= 12
#define HAS_AVX_VNNI 1
TARGET("avx2,avxvnni") int32_t int8_avx_vnni(uint64_t rounds)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), sum[SUMS];
    for (int k = 0; k < SUMS; k++) sum[k] = _mm256_set1_epi32(k); // all different, or one would do for all
    for (uint64_t r = 0; r < rounds; r++) {
        asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 16
        for (int k = 0; k < SUMS; k++) sum[k] = _mm256_dpbusd_avx_epi32(sum[k], a, b);
    }
    return fold(sum);
}
#endif

bool has_avx_vnni()
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
}

#elif defined(__aarch64__)
constexpr int SUMS = 16;

__attribute__((target("dotprod"))) int32_t int8_sdot(uint64_t rounds)
{
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    int32x4_t sum[SUMS];
    for (int k = 0; k < SUMS; k++) sum[k] = vdupq_n_s32(k); // all different, or one would do for all
    for (uint64_t r = 0; r < rounds; r++) {
        asm volatile("" : "+w"(a), "+w"(b));
#pragma GCC unroll 16
        for (int k = 0; k < SUMS; k++) sum[k] = vdotq_s32(sum[k], a, b);
    }
    for (int k = 1; k < SUMS; k++) sum[0] = veorq_s32(sum[0], sum[k]);
    return vaddvq_s32(sum[0]);
}

bool has_dotprod()
{
#if defined(__ARM_FEATURE_DOTPROD) || defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0; // HWCAP_ASIMDDP
#else
    return false;
#endif
}
#endif

} // namespace

const ReadKernel &best_read_kernel()
{
    static const ReadKernel plain{"plain", read_plain};
#if defined(__x86_64__)
    static const ReadKernel avx512{"avx512", read_avx512}, avx2{"avx2", read_avx2};
    if (__builtin_cpu_supports("avx512f")) return avx512;
    if (__builtin_cpu_supports("avx2")) return avx2;
#endif
    return plain;
}

const Int8Kernel &best_int8_kernel()
{
    static const Int8Kernel plain{"plain C", int8_plain, LANES};
#if defined(__x86_64__)
    static const Int8Kernel avx512{"vpdpbusd zmm", int8_avx512, SUMS * 64};
    static const Int8Kernel avx2{"vpmaddubsw + vpmaddwd ymm", int8_avx2, SUMS * 32};
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) return avx512;
#if defined(HAS_AVX_VNNI)
    static const Int8Kernel avx_vnni{"vpdpbusd ymm", int8_avx_vnni, SUMS * 32};
    if (has_avx_vnni()) return avx_vnni;
#endif
    if (__builtin_cpu_supports("avx2")) return avx2;
#elif defined(__aarch64__)
    static const Int8Kernel sdot{"sdot", int8_sdot, SUMS * 16};
    if (has_dotprod()) return sdot;
#endif
    return plain;
}
