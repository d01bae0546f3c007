// SPDX-License-Identifier: Apache-2.0
// The fake accelerator of ports/fake_npu around an engine: its memory, its bindings, its thread.
#pragma once

#include "bind.h"
#include "colibri_fake_npu.h"

#include <stdexcept>

// ((layer, expert), ...) ascending, bytes of device memory, whether it works on a thread of its own
using NpuTuple = std::tuple<std::vector<std::tuple<uint16_t, uint16_t>>, uint64_t, bool>;

class Npu {
public:
    Npu(const NpuTuple &wanted, colibri_platform &platform)
        : memory(allocate(std::get<1>(wanted))), slots(std::get<0>(wanted).size())
    {
        const auto &[experts, bytes, threaded] = wanted;
        const auto count = static_cast<uint32_t>(slots.size());
        if (threaded) {
            thread.reset(colibri_fake_npu_thread_create(memory.get(), bytes, slots.data(), count));
            if (!thread) throw std::runtime_error("cannot start the accelerator's thread");
        } else {
            colibri_fake_npu_init(&own, memory.get(), bytes, slots.data(), count);
        }
        const colibri_backend *backend =
            threaded ? colibri_fake_npu_thread_backend(thread.get()) : &own.backend;
        for (const auto &[layer, expert] : experts) bindings.push_back({layer, expert, backend});
        platform.bindings = bindings.data();
        platform.binding_count = count;
    }
    Npu(const Npu &) = delete;
    Npu &operator=(const Npu &) = delete;

    colibri_fake_npu *device() { return thread ? colibri_fake_npu_thread_device(thread.get()) : &own; }
    uint64_t bytes_needed() { return colibri_fake_npu_bytes_needed(&counter); }

    // From now on bind refuses nothing and only counts.
    void only_count()
    {
        colibri_fake_npu_init(&counter, nullptr, 0, nullptr, 0);
        for (colibri_binding &binding : bindings) binding.backend = &counter.backend;
    }

private:
    struct Destroy {
        void operator()(colibri_fake_npu_thread *t) const { colibri_fake_npu_thread_destroy(t); }
    };
    Memory memory;
    std::vector<colibri_fake_npu_slot> slots;
    std::vector<colibri_binding> bindings;
    colibri_fake_npu own{}, counter{};
    std::unique_ptr<colibri_fake_npu_thread, Destroy> thread;
};
