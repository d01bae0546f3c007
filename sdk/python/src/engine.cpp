// SPDX-License-Identifier: Apache-2.0
// colibri_init, colibri_infer and the sampler. The GIL is released while the runtime works.
#include "bind.h"
#include "faulty_storage.h"
#include "npu.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>

namespace {

// Why calls without an error of their own fail.
constexpr colibri_error no_engine{COLIBRI_ERR_ARGUMENT, 1, 0, 0};

struct DestroyPool {
    void operator()(colibri_posix_pool *pool) const { colibri_posix_pool_destroy(pool); }
};

struct Engine {
    Engine(const Image &image, const colibri_limits &limits,
           const std::optional<RegionList> &regions, const std::string &kernels,
           uint32_t threads, bool trace, const std::optional<NpuTuple> &npu, Recorder *recorder,
           const std::vector<uint32_t> &pins, uint64_t memory_bytes, const Engine *beside,
           const std::vector<FaultTuple> &faults);
    Array<float> infer(Vector<uint32_t> tokens, std::optional<Vector<uint32_t>> sequences,
                       std::optional<Vector<uint8_t>> want);
    Array<double> time_infer(Vector<uint32_t> tokens, uint32_t step);
    void reset(uint32_t sequence);
    void close();
    void selftest();
    nb::bytes take_trace();
    uint32_t length(uint32_t sequence);
    uint64_t high_water(uint32_t region) const { return colibri_high_water(&engine, region); }
    std::vector<RegionTuple> region_list() const;
    const char *kernels_name() const { return platform.kernels->name; }
    nb::dict expert_stats();
    nb::object npu_state();
    void npu_fail(uint64_t command, uint64_t start);

    colibri_limits limits{};

private:
    // Runs a C call with the GIL released, one thread at a time, of all engines that share memory.
    template <typename Call> auto alone(Call &&call)
    {
        nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> lock(*mutex);
        const Recorder::Recording records(recorder);
        return call();
    }
    void own_memory(const colibri_image &image, uint64_t most);
    void make_pool(uint32_t threads);

    std::string name;
    uint32_t vocabulary;
    Recorder *recorder; // or nullptr
    colibri_engine engine{};
    colibri_platform platform{};
    std::unique_ptr<colibri_posix_pool, DestroyPool> pool;
    std::unique_ptr<Npu> npu;
    std::unique_ptr<FaultyStorage> faulty; // or nullptr: the image's own
    Memory memory;
    std::optional<Regions> regions;
    std::vector<colibri_event> events;
    std::vector<uint32_t> pins;
    std::shared_ptr<std::mutex> mutex;
};

void record(void *context, const colibri_event *event)
{
    static_cast<std::vector<colibri_event> *>(context)->push_back(*event);
}

Engine::Engine(const Image &image, const colibri_limits &wanted,
               const std::optional<RegionList> &given, const std::string &kernels,
               uint32_t threads, bool trace, const std::optional<NpuTuple> &wanted_npu, Recorder *records,
               const std::vector<uint32_t> &wanted_pins, uint64_t memory_bytes, const Engine *beside,
               const std::vector<FaultTuple> &faults)
    : limits(wanted), name(image.name), vocabulary(image.image.config.vocabulary), recorder(records),
      pins(wanted_pins), mutex(beside != nullptr ? beside->mutex : std::make_shared<std::mutex>())
{
    if (recorder != nullptr && threads > 1) throw nb::value_error("a recorder needs threads = 1");
    platform.struct_bytes = sizeof platform;
    platform.kernels = recorder != nullptr ? &recorder->table : find_kernels(kernels);
    if (trace) {
        platform.trace = record;
        platform.trace_context = &events;
    }
    make_pool(threads);
    if (given) regions.emplace(*given);
    else own_memory(image.image, memory_bytes);
    platform.pins = pins.data();
    platform.pin_count = static_cast<uint32_t>(pins.size());
    if (wanted_npu) npu = std::make_unique<Npu>(*wanted_npu, platform);
    if (!faults.empty()) faulty = std::make_unique<FaultyStorage>(image.image, faults);
    const colibri_image &seen = faulty ? faulty->image() : image.image;
    colibri_error error{};
    const auto init = [&] {
        return colibri_init(&engine, &seen, &limits, regions->list.data(), regions->count(),
                            &platform, &error);
    };
    const colibri_status status = alone(init);
    if (status == COLIBRI_ERR_BACKEND && error.have == COLIBRI_BACKEND_MEMORY) {
        const colibri_error refused = error;
        npu->only_count();
        alone(init);
        error = refused;
        error.need = npu->bytes_needed();
    }
    check(name, status, error);
}

void Engine::make_pool(uint32_t threads)
{
    if (threads <= 1) return;
    if (threads > COLIBRI_MAX_WORKERS)
        raise_status(name, COLIBRI_ERR_LIMIT, {COLIBRI_ERR_LIMIT, 4, threads, COLIBRI_MAX_WORKERS});
    pool.reset(colibri_posix_pool_create(threads));
    if (!pool) throw std::runtime_error("cannot start " + std::to_string(threads) + " threads");
    platform.pool = colibri_posix_pool_interface(pool.get());
}

// One region of exactly the planned size; `most` is for it and, where only parts of the image are in memory, for the
// image's tables, which always are. The plan may take what there is.
void Engine::own_memory(const colibri_image &image, uint64_t most)
{
    colibri_region region{};
    region.name = "memory";
    const uint64_t tables = limits.weights >= COLIBRI_WEIGHTS_STREAMED ? image.meta_bytes : 0;
    region.size = most > tables ? most - tables : 0;
    colibri_plan_result plan{};
    plan.struct_bytes = sizeof plan;
    colibri_error error{};
    const colibri_status status = colibri_plan(&image, &limits, &region, 1, &plan, &error);
    if (status == COLIBRI_ERR_MEMORY) {
        error.have = most;
        error.need += tables;
    }
    check(name, status, error);
    limits = plan.limits; // with the slots that were chosen
    const bool streams = limits.weights >= COLIBRI_WEIGHTS_STREAMED;
    memory = streams ? allocate_huge(plan.used[0]) : allocate(plan.used[0]);
    const auto address = reinterpret_cast<uintptr_t>(memory.get());
    regions.emplace(RegionList{RegionTuple{region.name, address, plan.used[0], 0, 0}});
}

size_t rows_wanted(const std::optional<Vector<uint8_t>> &want, size_t count)
{
    if (!want) return count == 0 ? 0 : 1;
    size_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += (*want)(i) != 0;
    return rows;
}

Array<float> Engine::infer(Vector<uint32_t> tokens, std::optional<Vector<uint32_t>> sequences,
                           std::optional<Vector<uint8_t>> want)
{
    const size_t count = tokens.size();
    if ((sequences && sequences->size() != count) || (want && want->size() != count))
        throw nb::value_error("tokens, sequences and want must have the same length");
    float *logits = nullptr;
    const size_t rows = rows_wanted(want, count);
    Array<float> out = new_array<float>({rows, vocabulary}, logits);
    colibri_batch batch{};
    batch.struct_bytes = sizeof batch;
    batch.count = static_cast<uint32_t>(count);
    batch.tokens = tokens.data();
    batch.sequences = sequences ? sequences->data() : nullptr;
    batch.want_logits = want ? want->data() : nullptr;
    batch.logits = logits;
    batch.logits_floats = uint64_t{rows} * vocabulary;
    colibri_error error{};
    check(name, alone([&] { return colibri_infer(&engine, &batch, &error); }), error);
    return out;
}

// Continues sequence 0 in calls of `step` tokens; seconds of each call. Nothing of Python is in them.
Array<double> Engine::time_infer(Vector<uint32_t> tokens, uint32_t step)
{
    if (step == 0 || tokens.size() == 0 || tokens.size() % step != 0)
        throw nb::value_error("tokens must be a multiple of step, and both 1 or more");
    const size_t calls = tokens.size() / step;
    double *seconds = nullptr;
    Array<double> out = new_array<double>({calls}, seconds);
    std::vector<float> logits(vocabulary);
    colibri_batch batch{};
    batch.struct_bytes = sizeof batch;
    batch.count = step;
    batch.logits = logits.data();
    batch.logits_floats = vocabulary;
    colibri_error error{};
    check(name, alone([&] {
              colibri_status status = COLIBRI_OK;
              for (size_t i = 0; i < calls && status == COLIBRI_OK; i++) {
                  batch.tokens = tokens.data() + i * step;
                  const auto begin = std::chrono::steady_clock::now();
                  status = colibri_infer(&engine, &batch, &error);
                  seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
              }
              return status;
          }), error);
    return out;
}

void Engine::reset(uint32_t sequence)
{
    check(name, alone([&] { return colibri_reset(&engine, sequence); }), no_engine);
}

uint32_t Engine::length(uint32_t sequence)
{
    return alone([&] { return colibri_length(&engine, sequence); });
}

// The memory is no longer its own: every later call is refused.
void Engine::close()
{
    alone([&] { engine = {}; });
}

void Engine::selftest()
{
    std::vector<float> logits(vocabulary);
    colibri_error error{};
    check(name, alone([&] { return colibri_selftest(&engine, logits.data(), &error); }), error);
}

nb::bytes Engine::take_trace()
{
    std::vector<colibri_event> taken;
    alone([&] { taken.swap(events); });
    return nb::bytes(taken.data(), taken.size() * sizeof(colibri_event));
}

nb::dict Engine::expert_stats()
{
    colibri_expert_stats s{};
    s.struct_bytes = sizeof s;
    check(name, alone([&] { return colibri_expert_statistics(&engine, &s); }), no_engine);
    nb::dict out;
    out["slots"] = s.slots;
    out["slots_per_layer"] = s.slots_per_layer;
    out["policy"] = s.policy;
    out["hits"] = s.hits;
    out["misses"] = s.misses;
    out["bytes_read"] = s.bytes_read;
    out["retries"] = s.retries;
    out["pinned"] = s.pinned;
    out["prefetched"] = s.prefetched;
    out["prefetched_used"] = s.prefetched_used;
    out["prefetched_wasted_bytes"] = s.prefetched_wasted_bytes;
    return out;
}

nb::object Engine::npu_state()
{
    if (!npu) return nb::none();
    const colibri_fake_npu device = alone([&] { return *npu->device(); });
    nb::dict out;
    out["bytes"] = device.bytes;
    out["needed"] = colibri_fake_npu_bytes_needed(&device);
    out["commands"] = device.commands;
    out["copied"] = device.copied;
    return out;
}

void Engine::npu_fail(uint64_t command, uint64_t start)
{
    if (!npu) throw nb::value_error("no accelerator is bound");
    alone([&] {
        npu->device()->fail_command = command;
        npu->device()->fail_start = start;
    });
}

std::vector<RegionTuple> Engine::region_list() const
{
    std::vector<RegionTuple> out;
    for (const colibri_region &r : regions->list)
        out.emplace_back(r.name, reinterpret_cast<uintptr_t>(r.base), r.size, r.rank, r.use);
    return out;
}

nb::tuple sample(Vector<float> logits, float temperature, uint32_t top_k, float top_p, uint64_t state)
{
    const colibri_sampling sampling{temperature, top_k, top_p};
    uint32_t token = 0;
    const colibri_status status = colibri_sample(
        logits.data(), static_cast<uint32_t>(logits.size()), &sampling, &state, &token);
    check("sample", status, {});
    return nb::make_tuple(token, state);
}

nb::tuple route_topk(Vector<float> scores, uint32_t top_k, uint32_t router, uint32_t flags,
                     std::optional<Vector<float>> selection, uint32_t groups, uint32_t groups_kept,
                     float scale, float epsilon)
{
    colibri_config config{};
    config.router = router;
    config.router_flags = flags;
    config.router_groups = groups;
    config.router_groups_kept = groups_kept;
    config.router_scale = scale;
    config.router_epsilon = epsilon;
    config.experts = static_cast<uint32_t>(scores.size());
    config.top_k = top_k;
    if (top_k < 1 || top_k > scores.size()) throw nb::value_error("top_k must be 1 .. number of scores");
    if (selection && selection->size() != scores.size())
        throw nb::value_error("selection must have as many elements as scores");
    if (groups > 64 || (groups != 0 && (scores.size() % groups != 0 || groups_kept < 1 || groups_kept > groups ||
                                        scores.size() / groups * groups_kept < top_k)))
        throw nb::value_error("groups must be at most 64, divide the scores and keep top_k of them");
    if (router == COLIBRI_ROUTER_SPARSEMIXER && top_k != 2) throw nb::value_error("sparsemixer chooses two");
    std::vector<float> work(scores.data(), scores.data() + scores.size());
    uint16_t *ids = nullptr;
    float *weights = nullptr;
    Array<uint16_t> id_array = new_array<uint16_t>({top_k}, ids);
    Array<float> weight_array = new_array<float>({top_k}, weights);
    check("route_topk", colibri_route_topk(&config, selection ? selection->data() : nullptr, work.data(), ids,
                                            weights), {});
    return nb::make_tuple(id_array, weight_array);
}

} // namespace

void bind_engine(nb::module_ &m)
{
    nb::class_<Engine>(m, "Engine", nb::is_weak_referenceable())
        .def(nb::init<const Image &, const colibri_limits &,
                      const std::optional<RegionList> &, const std::string &, uint32_t, bool,
                      const std::optional<NpuTuple> &, Recorder *, const std::vector<uint32_t> &, uint64_t,
                      const Engine *, const std::vector<FaultTuple> &>(),
             nb::arg("image"), nb::arg("limits"), nb::arg("regions").none(), nb::arg("kernels"),
             nb::arg("threads"), nb::arg("trace"), nb::arg("npu").none() = nb::none(),
             nb::arg("recorder").none() = nb::none(), nb::arg("pins") = std::vector<uint32_t>{},
             nb::arg("memory_bytes") = std::numeric_limits<int64_t>::max(),
             nb::arg("beside").none() = nb::none(), nb::arg("faults") = std::vector<FaultTuple>{},
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 9>())
        .def("infer", &Engine::infer, nb::arg("tokens"), nb::arg("sequences").none() = nb::none(),
             nb::arg("want").none() = nb::none())
        .def("time_infer", &Engine::time_infer, nb::arg("tokens"), nb::arg("step"))
        .def("reset", &Engine::reset, nb::arg("sequence"))
        .def("length", &Engine::length, nb::arg("sequence"))
        .def("high_water", &Engine::high_water, nb::arg("region"))
        .def("close", &Engine::close)
        .def("selftest", &Engine::selftest)
        .def("take_trace", &Engine::take_trace)
        .def("expert_stats", &Engine::expert_stats)
        .def("npu_state", &Engine::npu_state)
        .def("npu_fail", &Engine::npu_fail, nb::arg("command"), nb::arg("start"))
        .def_prop_ro("regions", &Engine::region_list)
        .def_prop_ro("kernels", &Engine::kernels_name)
        .def_ro("limits", &Engine::limits);
    m.def("sample", &sample, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"),
          nb::arg("top_p"), nb::arg("state"));
    m.def("route_topk", &route_topk, nb::arg("scores"), nb::arg("top_k"), nb::arg("router") = 1,
          nb::arg("flags") = 0, nb::arg("selection").none() = nb::none(), nb::arg("groups") = 0,
          nb::arg("groups_kept") = 0, nb::arg("scale") = 1.0f, nb::arg("epsilon") = 0.0f);
}
