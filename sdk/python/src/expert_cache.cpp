// SPDX-License-Identifier: Apache-2.0
// The runtime's expert cache alone, for replays of a trace: which expert gets which slot, without weights.
#include "bind.h"

#include <stdexcept>

extern "C" {
#include "expert_cache.h"
}

namespace {

struct ExpertCache {
    ExpertCache(uint32_t layers, uint32_t each, uint32_t slots, uint32_t policy, bool shared, uint32_t least,
                const std::vector<uint32_t> &pins);
    void begin_token() { cache.state->step++; }
    std::vector<uint32_t> touch(const std::vector<uint32_t> &experts);

    uint32_t pinned() const { return cache.state->pinned; }
    uint64_t bytes() const { return colibri_cache_bytes(&cache); }
    uint64_t hits() const { return cache.state->hits; }
    uint64_t misses() const { return cache.state->misses; }

private:
    void check(uint32_t expert) const
    {
        if (expert >= cache.layers * cache.each) throw nb::value_error("no such expert");
    }
    colibri_expert_cache cache{};
    Memory memory;
};

ExpertCache::ExpertCache(uint32_t layers, uint32_t each, uint32_t slots, uint32_t policy, bool shared,
                         uint32_t least, const std::vector<uint32_t> &pins)
{
    if (layers < 1 || layers > 1024 || each < 1 || each > 65535 || slots > COLIBRI_MAX_SLOTS ||
        slots < (shared ? 1 : layers) || policy < COLIBRI_POLICY_LRU || policy > COLIBRI_POLICY_LEAST_STALE)
        throw nb::value_error("not the shape of a cache");
    cache.layers = layers;
    cache.each = each;
    cache.slot_count = slots;
    cache.policy = policy;
    cache.shared = shared;
    memory = allocate(bytes());
    colibri_cache_init(&cache, memory.get());
    for (const uint32_t expert : pins) {
        check(expert);
        colibri_cache_pin(&cache, expert, least);
    }
}

// One layer of one token, as stream.c goes through it; returns those that had to be read, in order.
std::vector<uint32_t> ExpertCache::touch(const std::vector<uint32_t> &experts)
{
    std::vector<uint32_t> missing, done; // done: in use, to be released
    for (const uint32_t expert : experts) {
        check(expert);
        (colibri_cache_hold(&cache, expert) ? done : missing).push_back(expert);
    }
    cache.state->hits += done.size();
    cache.state->misses += missing.size();
    size_t begun = 0, arrived = 0;
    const auto fill = [&] {
        while (begun < missing.size() && begun - arrived < COLIBRI_READS_UNDER_WAY &&
               colibri_cache_take(&cache, missing[begun]) != COLIBRI_NO_SLOT)
            begun++;
    };
    fill();
    while (true) {
        for (const uint32_t expert : done) colibri_cache_release(&cache, expert);
        done.clear();
        fill();
        if (arrived == missing.size()) return missing;
        if (arrived == begun) throw nb::value_error("an expert twice, or more pinned than there is room for");
        colibri_cache_arrive(&cache, cache.places[missing[arrived]]);
        done.push_back(missing[arrived++]);
    }
}

} // namespace

void bind_expert_cache(nb::module_ &m)
{
    m.attr("MAX_SLOTS") = COLIBRI_MAX_SLOTS;
    nb::class_<ExpertCache>(m, "ExpertCache")
        .def(nb::init<uint32_t, uint32_t, uint32_t, uint32_t, bool, uint32_t, const std::vector<uint32_t> &>(),
             nb::arg("layers"), nb::arg("each"), nb::arg("slots"), nb::arg("policy"), nb::arg("shared"),
             nb::arg("least") = 1, nb::arg("pins") = std::vector<uint32_t>{})
        .def("begin_token", &ExpertCache::begin_token)
        .def("touch", &ExpertCache::touch, nb::arg("experts"))
        .def_prop_ro("pinned", &ExpertCache::pinned)
        .def_prop_ro("bytes", &ExpertCache::bytes)
        .def_prop_ro("hits", &ExpertCache::hits)
        .def_prop_ro("misses", &ExpertCache::misses);
}
