/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* affinity, number of CPUs */

#include "cpus.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

static uint32_t online(void)
{
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}

#if defined(__linux__)
uint32_t colibri_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return online(); /* more than the set can hold */
    const int count = CPU_COUNT(&set);
    return count > 0 ? (uint32_t)count : 1;
}

int colibri_cpus_pin(pthread_t thread, uint32_t n)
{
    cpu_set_t set, one;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return errno;
    CPU_ZERO(&one);
    n %= colibri_cpus();
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set) || n-- > 0) continue;
        CPU_SET(cpu, &one);
        break;
    }
    return pthread_setaffinity_np(thread, sizeof one, &one);
}
#else
uint32_t colibri_cpus(void)
{
    return online();
}

int colibri_cpus_pin(pthread_t thread, uint32_t n)
{
    (void)thread, (void)n;
    return ENOTSUP;
}
#endif
