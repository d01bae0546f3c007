/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device on a thread of its own: it really works beside the CPU. The mutex stands for the doorbell
 * register, the condition `done` for the completion interrupt. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>

#include "colibri_fake_npu.h"

struct colibri_fake_npu_thread {
    colibri_fake_npu npu;
    colibri_backend backend;
    int (*bind)(void *context, const colibri_expert_ffn *expert);
    pthread_mutex_t mutex;
    pthread_cond_t doorbell;
    pthread_cond_t done;
    pthread_t thread;
    int stop;
};

/* The device: commands one after the other. */
static void *device_main(void *arg)
{
    colibri_fake_npu_thread *d = arg;
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        while (d->npu.queued == 0 && !d->stop) pthread_cond_wait(&d->doorbell, &d->mutex);
        if (d->stop) break;
        const colibri_expert_ffn command = d->npu.queue[d->npu.head];
        pthread_mutex_unlock(&d->mutex);
        const int result = colibri_fake_npu_compute(&d->npu, &command);
        pthread_mutex_lock(&d->mutex);
        colibri_fake_npu_retire(&d->npu, result);
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static int bind(void *context, const colibri_expert_ffn *expert)
{
    colibri_fake_npu_thread *d = context;
    pthread_mutex_lock(&d->mutex);
    const int result = d->bind(&d->npu, expert);
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static int start(void *context, const colibri_expert_ffn *call)
{
    colibri_fake_npu_thread *d = context;
    int result = 0;
    pthread_mutex_lock(&d->mutex);
    if (d->npu.fail_start != 0 && --d->npu.fail_start == 0)
        result = COLIBRI_BACKEND_FAULT;
    while (result == 0 && colibri_fake_npu_push(&d->npu, call) != 0)
        pthread_cond_wait(&d->done, &d->mutex);
    pthread_cond_signal(&d->doorbell);
    pthread_mutex_unlock(&d->mutex);
    return result;
}

static int wait(void *context, uint32_t layer, uint32_t expert)
{
    colibri_fake_npu_thread *d = context;
    pthread_mutex_lock(&d->mutex);
    while (colibri_fake_npu_pending(&d->npu, layer, expert)) pthread_cond_wait(&d->done, &d->mutex);
    const int result = colibri_fake_npu_result(&d->npu, layer, expert);
    pthread_mutex_unlock(&d->mutex);
    return result;
}

colibri_fake_npu_thread *colibri_fake_npu_thread_create(void *memory, uint64_t bytes,
                                                        colibri_fake_npu_slot *slots, uint32_t slot_count)
{
    colibri_fake_npu_thread *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    colibri_fake_npu_init(&d->npu, memory, bytes, slots, slot_count);
    d->bind = d->npu.backend.bind;
    d->backend = (colibri_backend){
        .struct_bytes = sizeof d->backend, .context = d, .bind = bind, .start = start, .wait = wait};
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->doorbell, NULL);
    pthread_cond_init(&d->done, NULL);
    if (pthread_create(&d->thread, NULL, device_main, d) != 0) {
        free(d);
        return NULL;
    }
    return d;
}

void colibri_fake_npu_thread_destroy(colibri_fake_npu_thread *d)
{
    if (d == NULL) return;
    pthread_mutex_lock(&d->mutex);
    d->stop = 1;
    pthread_cond_signal(&d->doorbell);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->done);
    pthread_cond_destroy(&d->doorbell);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

const colibri_backend *colibri_fake_npu_thread_backend(const colibri_fake_npu_thread *d)
{
    return &d->backend;
}

colibri_fake_npu *colibri_fake_npu_thread_device(colibri_fake_npu_thread *d)
{
    return &d->npu;
}
