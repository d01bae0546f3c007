/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_NEON_AHEAD_H
#define COLIBRI_NEON_AHEAD_H

/* A line of the weight stream this far ahead: decode waits for memory, and a tile's lines are read once.
 * Past the end it asks for a line that nobody reads; a prefetch never faults. */
#define COLIBRI_AHEAD_BYTES 2048
#define COLIBRI_AHEAD(line) __builtin_prefetch((line) + COLIBRI_AHEAD_BYTES);

#endif
