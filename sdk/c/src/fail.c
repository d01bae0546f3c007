/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

colibri_status colibri_fail(colibri_error *error, colibri_status status, uint32_t where,
                            uint64_t have, uint64_t need)
{
    if (error != NULL) {
        error->status = status;
        error->where = where;
        error->have = have;
        error->need = need;
    }
    return status;
}
