/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen tokens from an image, in memory that was never allocated.
 *   minimal IMAGE TOKEN... */
#include "colibri/colibri.h"
#include "colibri_posix.h"

#include <stdio.h>
#include <stdlib.h>

#define VOCABULARY 65536
static _Alignas(64) unsigned char arena[4 << 20];
static float logits[VOCABULARY];

int main(int argc, char **argv)
{
    static colibri_posix_file file;
    static colibri_image image;
    static colibri_engine engine;
    uint32_t prompt[64], count = 0;
    for (int i = 2; i < argc && count < 64; i++) prompt[count++] = (uint32_t)strtoul(argv[i], NULL, 10);
    if (count == 0 || colibri_posix_open(&file, argv[1], COLIBRI_POSIX_MAP) != 0) return 2;

    colibri_error error;
    const colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .context = 128};
    const colibri_region memory = {.name = "arena", .base = arena, .size = sizeof arena};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    colibri_status status = colibri_image_open(&image, &file.storage, NULL, 0, &error);
    if (status == COLIBRI_OK) status = colibri_plan(&image, &limits, &memory, 1, &plan, &error);
    if (status == COLIBRI_OK) status = colibri_init(&engine, &image, &limits, &memory, 1, NULL, &error);
    if (status == COLIBRI_OK && image.config.vocabulary > VOCABULARY) status = COLIBRI_ERR_LOGITS;

    const colibri_sampling greedy = {0};
    uint64_t rng = 0;
    for (int i = 0; status == COLIBRI_OK && i < 16; i++) {
        const colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = prompt,
                                     .logits = logits, .logits_floats = VOCABULARY};
        status = colibri_infer(&engine, &batch, &error);
        if (status == COLIBRI_OK)
            status = colibri_sample(logits, image.config.vocabulary, &greedy, &rng, &prompt[0]);
        if (status == COLIBRI_OK) printf("%s%u", i ? "," : "", (unsigned)prompt[0]);
        count = 1;
    }
    if (status != COLIBRI_OK) fprintf(stderr, "%s\n", colibri_status_name(status));
    else printf("\n%llu bytes of memory\n", (unsigned long long)plan.total_bytes);
    return status == COLIBRI_OK ? 0 : 2;
}
