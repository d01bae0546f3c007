/* SPDX-License-Identifier: Apache-2.0 */
/* The CPUs that this process may use. */
#ifndef COLIBRI_POSIX_CPUS_H
#define COLIBRI_POSIX_CPUS_H

#include <pthread.h>
#include <stdint.h>

/* How many there are, at least 1: those of the affinity mask where the system has one. */
uint32_t colibri_cpus(void);

/* Keeps a thread on the n-th of them, counted round and round. 0, or an errno. */
int colibri_cpus_pin(pthread_t thread, uint32_t n);

#endif
