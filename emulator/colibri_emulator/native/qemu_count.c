/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU plugin that counts executed instructions, added inline once per translated block. Exact with
 * one virtual CPU. Arguments from=ADDRESS, to=ADDRESS: only blocks that start in [from, to) are counted,
 * not the machine's boot ROM; until=ADDRESS: nor the block there, the endless loop of the end.
 *
 * Distributions ship QEMU without its plugin header, so the entry points used are declared here
 * (plugin API 1, QEMU 4.2 to 8.2). */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_info_t;
enum { QEMU_PLUGIN_INLINE_ADD_U64 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(
    qemu_plugin_id_t id, void (*callback)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation,
                                                     void *counter, uint64_t step);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id,
                                           void (*callback)(qemu_plugin_id_t, void *), void *user);
extern void qemu_plugin_outs(const char *text);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info, int argc, char **argv);

static uint64_t instructions;
static uint64_t from;
static uint64_t to = UINT64_MAX;
static uint64_t until = UINT64_MAX;

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    uint64_t address = qemu_plugin_tb_vaddr(block);
    if (address >= from && address < to && address != until) {
        qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &instructions,
                                                 qemu_plugin_tb_n_insns(block));
    }
}

static void on_exit_(qemu_plugin_id_t id, void *user)
{
    (void)id;
    (void)user;
    char text[64];
    snprintf(text, sizeof text, "instructions: %" PRIu64 "\n", instructions);
    qemu_plugin_outs(text);
}

static void take(const char *argument, const char *name, uint64_t *value)
{
    if (strncmp(argument, name, strlen(name)) == 0) {
        *value = strtoull(argument + strlen(name), NULL, 0);
    }
}

__attribute__((visibility("default"))) int
qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        take(argv[i], "from=", &from);
        take(argv[i], "to=", &to);
        take(argv[i], "until=", &until);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_atexit_cb(id, on_exit_, NULL);
    return 0;
}
