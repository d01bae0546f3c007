// SPDX-License-Identifier: Apache-2.0
// Anonymous memory for probes, on 2 MiB boundaries so that it can have huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <sys/mman.h>

class ProbeMemory {
public:
    static constexpr size_t HUGE_PAGE = size_t{2} << 20;

    ProbeMemory(uint64_t wanted, bool huge) : bytes((wanted + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE)
    {
        if (wanted == 0 || bytes < wanted) throw std::invalid_argument("bytes must be 1 or more");
        mapped = mmap(nullptr, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        const auto at = reinterpret_cast<uintptr_t>(mapped);
        data = reinterpret_cast<uint8_t *>((at + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#if defined(MADV_HUGEPAGE)
        madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); // a wish; /proc/self/smaps tells what came
#else
        (void)huge;
#endif
    }
    ~ProbeMemory() { munmap(mapped, bytes + HUGE_PAGE); }
    ProbeMemory(const ProbeMemory &) = delete;
    ProbeMemory &operator=(const ProbeMemory &) = delete;
    uint64_t address() const { return reinterpret_cast<uintptr_t>(data); }

    const uint64_t bytes;
    uint8_t *data = nullptr;

private:
    void *mapped = nullptr;
};
