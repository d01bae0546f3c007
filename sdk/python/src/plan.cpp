// SPDX-License-Identifier: Apache-2.0
// colibri_plan: limits and regions in, sizes and placement out.
#include "bind.h"

Regions::Regions(const RegionList &tuples)
{
    names.reserve(tuples.size()); // the C structs point into it
    for (const auto &given : tuples) {
        const RegionTuple tuple = std::holds_alternative<RegionTuple>(given)
                                      ? std::get<0>(given) : std::tuple_cat(std::get<1>(given), std::tuple(0u));
        const auto &[name, address, size, rank, use] = tuple;
        names.push_back(name);
        colibri_region region{};
        region.name = names.back().c_str();
        region.base = reinterpret_cast<void *>(static_cast<uintptr_t>(address));
        region.size = size;
        region.rank = rank;
        region.use = use;
        list.push_back(region);
    }
}

namespace {

void set_limits(colibri_limits *self, uint32_t sequences, uint32_t context, uint32_t batch,
                uint32_t workers, uint32_t kv, uint32_t profile, uint32_t weights,
                uint32_t expert_slots, uint32_t policy, uint32_t prefetch, uint32_t balance,
                uint32_t prefer_cached)
{
    new (self) colibri_limits{sizeof(colibri_limits), sequences, context, batch,
                              workers, kv, profile, weights, expert_slots, policy,
                              prefetch, balance, prefer_cached};
}

nb::list buffers(const colibri_plan_result &plan)
{
    nb::list out;
    for (uint32_t i = 0; i < plan.buffer_count; i++) {
        const colibri_buffer &b = plan.buffers[i];
        out.append(nb::make_tuple(b.kind, b.region, b.offset, b.bytes, b.touched));
    }
    return out;
}

// "shortage" is None when everything fits, else (region index, bytes it has, bytes that work).
nb::dict plan(const Image &image, const colibri_limits &limits, const RegionList &tuples)
{
    const Regions regions(tuples);
    colibri_plan_result result{};
    result.struct_bytes = sizeof result;
    colibri_error error{};
    const colibri_status status = colibri_plan(&image.image, &limits, regions.list.data(),
                                               regions.count(), &result, &error);
    if (status != COLIBRI_ERR_MEMORY) check(image.name, status, error);
    nb::dict out;
    out["shortage"] = status == COLIBRI_OK ? nb::object(nb::none())
                                           : nb::object(nb::make_tuple(error.where, error.have, error.need));
    out["alignment"] = result.alignment;
    out["total_bytes"] = result.total_bytes;
    out["used"] = std::vector<uint64_t>(result.used, result.used + regions.count());
    out["buffers"] = buffers(result);
    out["limits"] = result.limits;
    out["slots_per_layer"] = result.slots_per_layer;
    out["slot_bytes"] = result.slot_bytes;
    return out;
}

// What the plan leaves to other images, as region tuples with their uses.
std::vector<RegionTuple> plan_beside(const Image &image, const colibri_limits &limits, const RegionList &tuples)
{
    const Regions regions(tuples);
    colibri_plan_result result{};
    result.struct_bytes = sizeof result;
    colibri_error error{};
    check(image.name, colibri_plan(&image.image, &limits, regions.list.data(), regions.count(), &result, &error),
          error);
    colibri_region left[COLIBRI_MAX_REGIONS];
    uint32_t count = 0;
    check(image.name, colibri_plan_beside(&result, regions.list.data(), left, &count, &error), error);
    std::vector<RegionTuple> out;
    for (uint32_t i = 0; i < count; i++)
        out.emplace_back(left[i].name, reinterpret_cast<uintptr_t>(left[i].base), left[i].size, left[i].rank,
                         left[i].use);
    return out;
}

uint32_t max_context(const Image &image, const colibri_limits &limits, const RegionList &tuples)
{
    const Regions regions(tuples);
    return colibri_plan_max_context(&image.image, &limits, regions.list.data(), regions.count());
}

} // namespace

void bind_plan(nb::module_ &m)
{
    nb::class_<colibri_limits>(m, "Limits")
        .def("__init__", &set_limits, nb::arg("sequences") = 1, nb::arg("context") = 0,
             nb::arg("batch") = 0, nb::arg("workers") = 0, nb::arg("kv") = 0,
             nb::arg("profile") = 0, nb::arg("weights") = 0, nb::arg("expert_slots") = 0,
             nb::arg("policy") = 0, nb::arg("prefetch") = 0, nb::arg("balance") = 0,
             nb::arg("prefer_cached") = 0)
        .def_ro("sequences", &colibri_limits::sequences)
        .def_ro("context", &colibri_limits::context)
        .def_ro("batch", &colibri_limits::batch)
        .def_ro("workers", &colibri_limits::workers)
        .def_ro("kv", &colibri_limits::kv)
        .def_ro("profile", &colibri_limits::profile)
        .def_ro("weights", &colibri_limits::weights)
        .def_ro("expert_slots", &colibri_limits::expert_slots)
        .def_ro("policy", &colibri_limits::policy)
        .def_ro("prefetch", &colibri_limits::prefetch)
        .def_ro("balance", &colibri_limits::balance)
        .def_ro("prefer_cached", &colibri_limits::prefer_cached);
    m.def("plan", &plan, nb::arg("image"), nb::arg("limits"), nb::arg("regions"));
    m.def("plan_beside", &plan_beside, nb::arg("image"), nb::arg("limits"), nb::arg("regions"));
    m.def("plan_max_context", &max_context, nb::arg("image"), nb::arg("limits"), nb::arg("regions"));
}
