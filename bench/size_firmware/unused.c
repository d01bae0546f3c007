/* SPDX-License-Identifier: Apache-2.0 */
/* libhal.a(unused.o): a member that no link takes; 4,096 bytes for who adds up an archive. */
#include <stdint.h>

const uint8_t picture[4096] = {1};
