/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over registers: they must unroll, or what they index would live in memory. */
#ifndef COLIBRI_NEON_UNROLL_H
#define COLIBRI_NEON_UNROLL_H

#define COLIBRI_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define COLIBRI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define COLIBRI_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
