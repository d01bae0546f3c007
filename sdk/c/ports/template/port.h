/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PORT_H
#define PORT_H

#include "colibri/platform.h"

extern const colibri_storage port_storage;
extern const colibri_pool port_pool;
extern const colibri_platform port_platform;

#endif
