// SPDX-License-Identifier: Apache-2.0
// An image's storage with chosen reads gone wrong. Reads are done when they are begun, so that what happens
// depends on nothing but their numbers; how long they would have taken is the emulator's to say.
#pragma once

#include "bind.h"

#include <map>

enum class ReadFault : uint32_t { Fail = 1, Short = 2, Corrupt = 3 };
// (number of the read, from 1 and from when the engine is made; what becomes of it)
using FaultTuple = std::tuple<uint64_t, uint32_t>;

class FaultyStorage {
public:
    FaultyStorage(const colibri_image &image, const std::vector<FaultTuple> &wanted)
        : base(image.storage), faults(as_map(wanted)), view(image)
    {
        storage.struct_bytes = sizeof storage;
        storage.context = this;
        storage.bytes = base->bytes;
        if (base->map != nullptr) storage.map = map;
        storage.read = read;
        storage.start = start;
        storage.wait = wait;
        view.storage = &storage;
    }
    FaultyStorage(const FaultyStorage &) = delete;
    FaultyStorage &operator=(const FaultyStorage &) = delete;

    const colibri_image &image() const { return view; }

private:
    static std::map<uint64_t, ReadFault> as_map(const std::vector<FaultTuple> &wanted)
    {
        std::map<uint64_t, ReadFault> out;
        for (const auto &[number, kind] : wanted) {
            if (number == 0 || kind < 1 || kind > 3) throw nb::value_error("a fault has a number from 1 and a kind");
            out[number] = static_cast<ReadFault>(kind);
        }
        return out;
    }
    static FaultyStorage &self(void *context) { return *static_cast<FaultyStorage *>(context); }
    static const void *map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
    {
        const colibri_storage *s = self(context).base;
        return s->map(s->context, file, offset, bytes);
    }
    static int read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
    {
        FaultyStorage &me = self(context);
        const colibri_storage *s = me.base;
        const auto found = me.faults.find(++me.reads);
        const auto read = [&](uint64_t n) { return s->read(s->context, file, offset, destination, n); };
        if (found == me.faults.end()) return read(bytes);
        switch (found->second) {
        case ReadFault::Short: (void)read(bytes / 2); return -1;
        case ReadFault::Corrupt:
            if (read(bytes) != 0) return -1;
            static_cast<uint8_t *>(destination)[bytes / 2] ^= 1;
            return 0;
        default: return -1;
        }
    }
    static int start(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes,
                     uint32_t *ticket)
    {
        FaultyStorage &me = self(context);
        *ticket = me.next++;
        me.results[*ticket] = read(context, file, offset, destination, bytes);
        return 0;
    }
    static int wait(void *context, uint32_t ticket)
    {
        const auto found = self(context).results.find(ticket);
        if (found == self(context).results.end()) return -1;
        const int result = found->second;
        self(context).results.erase(found);
        return result;
    }

    const colibri_storage *base;
    std::map<uint64_t, ReadFault> faults;
    colibri_image view;
    colibri_storage storage{};
    std::map<uint32_t, int> results; // of reads that were not waited for
    uint64_t reads = 0;
    uint32_t next = 0;
};
