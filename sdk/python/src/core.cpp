// SPDX-License-Identifier: Apache-2.0
// The extension `colibri._core`: helpers, names, and the module itself.
#include "bind.h"
#include "faulty_storage.h"

#include <cstring>
#include <new>

#include <sys/mman.h>

void raise_status(const std::string &subject, colibri_status status, const colibri_error &error)
{
    nb::object exception = nb::module_::import_("colibri.status")
                               .attr("error_from")(subject, static_cast<int>(status), error.where,
                                                   error.have, error.need);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
    throw nb::python_error();
}

namespace {

Memory allocate_at(size_t alignment, uint64_t bytes)
{
    void *memory = nullptr;
    const auto size = static_cast<size_t>(bytes == 0 ? 1 : bytes);
    if (size < bytes || posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
    return Memory(memory);
}

} // namespace

Memory allocate(uint64_t bytes)
{
    return allocate_at(64, bytes);
}

Memory allocate_huge(uint64_t bytes)
{
#ifdef MADV_HUGEPAGE
    constexpr size_t page = size_t{1} << 21;
    Memory memory = allocate_at(bytes < page ? 64 : page, bytes);
    if (bytes >= page) (void)madvise(memory.get(), static_cast<size_t>(bytes / page * page), MADV_HUGEPAGE);
    return memory;
#else
    return allocate(bytes);
#endif
}

Memory copy_of(const void *data, uint64_t bytes)
{
    Memory memory = allocate(bytes);
    if (bytes > 0) std::memcpy(memory.get(), data, static_cast<size_t>(bytes));
    return memory;
}

namespace {

nb::dict numbers(std::initializer_list<std::pair<const char *, uint32_t>> entries)
{
    nb::dict out;
    for (const auto &[name, number] : entries) out[name] = number;
    return out;
}

void bind_names(nb::module_ &m)
{
    m.def("status_name", [](int status) { return colibri_status_name(static_cast<colibri_status>(status)); },
          nb::arg("status"));
    m.def("buffer_name", &colibri_buffer_name, nb::arg("kind"));
    m.def("buffer_purpose", &colibri_buffer_purpose, nb::arg("kind"));
    m.def("buffer_keeps", [](uint32_t kind) { return colibri_buffer_keeps(kind) != 0; }, nb::arg("kind"));
    m.attr("TYPES") = numbers({{"f32", COLIBRI_F32}, {"f16", COLIBRI_F16}, {"bf16", COLIBRI_BF16},
                               {"q8", COLIBRI_Q8}, {"q4", COLIBRI_Q4}});
    m.attr("PROFILES") = numbers({{"small", COLIBRI_PROFILE_SMALL}, {"wide", COLIBRI_PROFILE_WIDE}});
    m.attr("REGION_USES") = numbers({{"any", COLIBRI_REGION_ANY}, {"work", COLIBRI_REGION_WORK}});
    m.attr("WEIGHTS") = numbers({{"mapped", COLIBRI_WEIGHTS_MAPPED}, {"loaded", COLIBRI_WEIGHTS_LOADED},
                                 {"streamed", COLIBRI_WEIGHTS_STREAMED},
                                 {"streamed-mapped", COLIBRI_WEIGHTS_STREAMED_MAPPED}});
    m.attr("POLICIES") = numbers({{"lru", COLIBRI_POLICY_LRU}, {"frequency", COLIBRI_POLICY_FREQUENCY},
                                  {"least-stale", COLIBRI_POLICY_LEAST_STALE}});
    m.attr("SECTIONS") = numbers(
        {{"config", COLIBRI_SECTION_CONFIG}, {"layers", COLIBRI_SECTION_LAYERS},
         {"tensors", COLIBRI_SECTION_TENSORS}, {"experts", COLIBRI_SECTION_EXPERTS},
         {"stop", COLIBRI_SECTION_STOP}, {"selftest", COLIBRI_SECTION_SELFTEST},
         {"notes", COLIBRI_SECTION_NOTES}, {"files", COLIBRI_SECTION_FILES},
         {"tokenizer", COLIBRI_SECTION_TOKENIZER}, {"weights", COLIBRI_SECTION_WEIGHTS},
         {"expert_weights", COLIBRI_SECTION_EXPERT_WEIGHTS}});
    m.attr("ROLES") = numbers(
        {{"embedding", COLIBRI_ROLE_EMBEDDING}, {"output", COLIBRI_ROLE_OUTPUT},
         {"output_norm", COLIBRI_ROLE_OUTPUT_NORM}, {"rope", COLIBRI_ROLE_ROPE},
         {"rope_2", COLIBRI_ROLE_ROPE_2}, {"output_norm_bias", COLIBRI_ROLE_OUTPUT_NORM_BIAS},
         {"output_bias", COLIBRI_ROLE_OUTPUT_BIAS},
         {"attention_norm", COLIBRI_ROLE_ATTENTION_NORM}, {"query", COLIBRI_ROLE_QUERY},
         {"key", COLIBRI_ROLE_KEY}, {"value", COLIBRI_ROLE_VALUE},
         {"attention_out", COLIBRI_ROLE_ATTENTION_OUT}, {"query_bias", COLIBRI_ROLE_QUERY_BIAS},
         {"key_bias", COLIBRI_ROLE_KEY_BIAS}, {"value_bias", COLIBRI_ROLE_VALUE_BIAS},
         {"attention_out_bias", COLIBRI_ROLE_ATTENTION_OUT_BIAS},
         {"query_norm", COLIBRI_ROLE_QUERY_NORM}, {"key_norm", COLIBRI_ROLE_KEY_NORM},
         {"sinks", COLIBRI_ROLE_SINKS}, {"output_gate", COLIBRI_ROLE_OUTPUT_GATE},
         {"attention_norm_bias", COLIBRI_ROLE_ATTENTION_NORM_BIAS},
         {"attention_post_norm", COLIBRI_ROLE_ATTENTION_POST_NORM},
         {"attention_router", COLIBRI_ROLE_ATTENTION_ROUTER},
         {"ffn_norm", COLIBRI_ROLE_FFN_NORM}, {"dense_gate", COLIBRI_ROLE_DENSE_GATE},
         {"dense_up", COLIBRI_ROLE_DENSE_UP}, {"dense_down", COLIBRI_ROLE_DENSE_DOWN},
         {"ffn_norm_bias", COLIBRI_ROLE_FFN_NORM_BIAS},
         {"ffn_post_norm", COLIBRI_ROLE_FFN_POST_NORM}, {"conv_in", COLIBRI_ROLE_CONV_IN},
         {"conv", COLIBRI_ROLE_CONV}, {"latent_query", COLIBRI_ROLE_LATENT_QUERY},
         {"latent_query_norm", COLIBRI_ROLE_LATENT_QUERY_NORM}, {"latent", COLIBRI_ROLE_LATENT},
         {"latent_norm", COLIBRI_ROLE_LATENT_NORM}, {"latent_key", COLIBRI_ROLE_LATENT_KEY},
         {"latent_value", COLIBRI_ROLE_LATENT_VALUE}, {"conv_out", COLIBRI_ROLE_CONV_OUT},
         {"layer_scale", COLIBRI_ROLE_LAYER_SCALE}, {"router", COLIBRI_ROLE_ROUTER},
         {"router_bias", COLIBRI_ROLE_ROUTER_BIAS}, {"shared_gate", COLIBRI_ROLE_SHARED_GATE},
         {"shared_up", COLIBRI_ROLE_SHARED_UP}, {"shared_down", COLIBRI_ROLE_SHARED_DOWN},
         {"shared_router", COLIBRI_ROLE_SHARED_ROUTER},
         {"router_selection", COLIBRI_ROLE_ROUTER_SELECTION},
         {"router_norm", COLIBRI_ROLE_ROUTER_NORM},
         {"router_weight", COLIBRI_ROLE_ROUTER_WEIGHT},
         {"experts_norm", COLIBRI_ROLE_EXPERTS_NORM},
         {"experts_post_norm", COLIBRI_ROLE_EXPERTS_POST_NORM},
         {"dense_post_norm", COLIBRI_ROLE_DENSE_POST_NORM},
         {"experts_bias", COLIBRI_ROLE_EXPERTS_BIAS},
         {"expert_query", COLIBRI_ROLE_EXPERT_QUERY},
         {"expert_attention_out", COLIBRI_ROLE_EXPERT_ATTENTION_OUT},
         {"expert_gate", COLIBRI_ROLE_EXPERT_GATE}, {"expert_up", COLIBRI_ROLE_EXPERT_UP},
         {"expert_down", COLIBRI_ROLE_EXPERT_DOWN},
         {"expert_gate_bias", COLIBRI_ROLE_EXPERT_GATE_BIAS},
         {"expert_up_bias", COLIBRI_ROLE_EXPERT_UP_BIAS},
         {"expert_down_bias", COLIBRI_ROLE_EXPERT_DOWN_BIAS},
         {"linear_in", COLIBRI_ROLE_LINEAR_IN}, {"linear_gate", COLIBRI_ROLE_LINEAR_GATE},
         {"linear_step", COLIBRI_ROLE_LINEAR_STEP}, {"linear_beta", COLIBRI_ROLE_LINEAR_BETA},
         {"linear_conv", COLIBRI_ROLE_LINEAR_CONV},
         {"linear_conv_bias", COLIBRI_ROLE_LINEAR_CONV_BIAS},
         {"linear_step_bias", COLIBRI_ROLE_LINEAR_STEP_BIAS},
         {"linear_decay", COLIBRI_ROLE_LINEAR_DECAY}, {"linear_skip", COLIBRI_ROLE_LINEAR_SKIP},
         {"linear_norm", COLIBRI_ROLE_LINEAR_NORM}, {"linear_out", COLIBRI_ROLE_LINEAR_OUT},
         {"attention_residual", COLIBRI_ROLE_ATTENTION_RESIDUAL},
         {"ffn_residual", COLIBRI_ROLE_FFN_RESIDUAL},
         {"linear_select", COLIBRI_ROLE_LINEAR_SELECT},
         {"linear_step_norm", COLIBRI_ROLE_LINEAR_STEP_NORM},
         {"linear_key_norm", COLIBRI_ROLE_LINEAR_KEY_NORM},
         {"linear_query_norm", COLIBRI_ROLE_LINEAR_QUERY_NORM},
         {"linear_step_up", COLIBRI_ROLE_LINEAR_STEP_UP},
         {"linear_state_decay", COLIBRI_ROLE_LINEAR_STATE_DECAY}});
    m.attr("READ_FAULTS") = numbers({{"fail", static_cast<uint32_t>(ReadFault::Fail)},
                                     {"short", static_cast<uint32_t>(ReadFault::Short)},
                                     {"corrupt", static_cast<uint32_t>(ReadFault::Corrupt)}});
    m.attr("EVENTS") = numbers(
        {{"step", COLIBRI_EVENT_STEP}, {"layer", COLIBRI_EVENT_LAYER},
         {"matmul", COLIBRI_EVENT_MATMUL}, {"attend", COLIBRI_EVENT_ATTEND},
         {"expert", COLIBRI_EVENT_EXPERT}, {"route", COLIBRI_EVENT_ROUTE},
         {"vector", COLIBRI_EVENT_VECTOR}, {"read", COLIBRI_EVENT_READ},
         {"backend_copy", COLIBRI_EVENT_BACKEND_COPY}, {"backend_start", COLIBRI_EVENT_BACKEND_START},
         {"backend_wait", COLIBRI_EVENT_BACKEND_WAIT}, {"read_wait", COLIBRI_EVENT_READ_WAIT}});
    m.attr("GLOBAL_LAYER") = COLIBRI_GLOBAL_LAYER;
    m.attr("IMAGE_VERSION") = COLIBRI_IMAGE_VERSION;
    m.attr("MAX_REGIONS") = COLIBRI_MAX_REGIONS;
    m.attr("MAX_BUFFERS") = COLIBRI_MAX_BUFFERS;
    m.attr("MAX_WORKERS") = COLIBRI_MAX_WORKERS;
    m.attr("MAX_BATCH") = COLIBRI_MAX_BATCH;
}

std::vector<std::string> built_with()
{
    static const std::pair<uint32_t, const char *> parts[] = {
        {COLIBRI_HAS_F32, "f32"},       {COLIBRI_HAS_F16, "f16"}, {COLIBRI_HAS_BF16, "bf16"},
        {COLIBRI_HAS_Q8, "q8"},         {COLIBRI_HAS_Q4, "q4"},   {COLIBRI_HAS_KV_F16, "kv_f16"},
        {COLIBRI_HAS_KV_Q8, "kv_q8"}};
    std::vector<std::string> out;
    for (const auto &[bit, name] : parts)
        if (colibri_built_with() & bit) out.emplace_back(name);
    return out;
}

std::string version()
{
    const uint32_t v = colibri_version();
    return std::to_string(v >> 16) + "." + std::to_string(v >> 8 & 255) + "." + std::to_string(v & 255);
}

} // namespace

NB_MODULE(_core, m)
{
    m.doc() = "The C runtime, as it is. Use the classes of `colibri` instead.";
    m.def("version", &version);
    m.def("built_with", &built_with);
    m.def("crc32", [](nb::bytes data, uint32_t crc) { return colibri_crc32(crc, data.data(), data.size()); },
          nb::arg("data"), nb::arg("crc") = 0);
    bind_names(m);
    bind_image(m);
    bind_plan(m);
    bind_recorder(m);
    bind_expert_cache(m);
    bind_engine(m);
    bind_kernels(m);
    bind_probe(m);
    bind_matmul_probe(m);
}
