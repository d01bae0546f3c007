// SPDX-License-Identifier: Apache-2.0
// The operations of one kernel table, for the tests that hold every table to the same bits.
#include "bind.h"

#include <cstring>

#include "conformance.h"

namespace {

std::vector<const colibri_kernels *> tables()
{
    std::vector<const colibri_kernels *> out{&colibri_kernels_ref};
#ifdef COLIBRI_KERNELS_X86
    if (const colibri_kernels *avx2 = colibri_kernels_avx2()) out.push_back(avx2);
    if (const colibri_kernels *avx512 = colibri_kernels_avx512()) out.push_back(avx512);
#endif
    return out;
}

// Copies of inputs end where the data ends, so that a checker sees a kernel that reads too far.
template <typename T> const T *exact(Memory &memory, const T *data, size_t count)
{
    memory = copy_of(data, count * sizeof(T));
    return static_cast<const T *>(memory.get());
}

struct Codes {
    uint32_t groups, code_stride;
    std::vector<int8_t> codes;
    std::vector<float> scales;
};

Codes quantize_rows(const colibri_kernels &kernels, const float *x, uint32_t rows, uint32_t n, uint32_t group)
{
    Codes out;
    out.groups = (n + group - 1) / group;
    out.code_stride = out.groups * group;
    out.codes.resize(size_t{rows} * out.code_stride);
    out.scales.resize(size_t{rows} * out.groups);
    for (uint32_t r = 0; r < rows; r++)
        kernels.quantize(x + size_t{r} * n, n, group, out.codes.data() + size_t{r} * out.code_stride,
                         out.scales.data() + size_t{r} * out.groups);
    return out;
}

struct Kernels {
    const colibri_kernels *table;
    explicit Kernels(const std::string &name) : table(find_kernels(name)) {}

    uint32_t crc32(uint32_t crc, const nb::bytes &data) const
    {
        const Memory memory = copy_of(data.data(), data.size());
        return (table->crc32 ? table->crc32 : colibri_crc32)(crc, memory.get(), data.size());
    }

    nb::tuple quantize(Vector<float> x, uint32_t group) const
    {
        if (group == 0) throw nb::value_error("group must not be 0");
        Memory memory;
        const auto n = static_cast<uint32_t>(x.size());
        const Codes q = quantize_rows(*table, exact(memory, x.data(), n), 1, n, group);
        int8_t *codes = nullptr;
        float *scales = nullptr;
        auto code_array = new_array<int8_t>({q.codes.size()}, codes);
        auto scale_array = new_array<float>({q.scales.size()}, scales);
        std::memcpy(codes, q.codes.data(), q.codes.size());
        std::memcpy(scales, q.scales.data(), q.scales.size() * sizeof(float));
        return nb::make_tuple(code_array, scale_array);
    }

    Array<float> matmul(nb::bytes data, uint32_t type, uint32_t group, uint32_t rows, Matrix<float> x,
                        std::optional<Vector<float>> bias, std::optional<Vector<uint16_t>> in_rows,
                        std::optional<Vector<uint16_t>> out_rows, uint32_t out_count, uint32_t row_begin,
                        uint32_t row_end, uint32_t order) const;

    Array<float> rms_norm(Vector<float> x, Vector<float> weight, float epsilon) const
    {
        if (weight.size() != x.size()) throw nb::value_error("x and weight differ in length");
        float *out = nullptr;
        auto array = new_array<float>({x.size()}, out);
        Memory a, b;
        table->rms_norm(exact(a, x.data(), x.size()), exact(b, weight.data(), weight.size()),
                        static_cast<uint32_t>(x.size()), epsilon, out);
        return array;
    }

    Array<float> silu_gate(Vector<float> gate, Vector<float> up) const
    {
        if (gate.size() != up.size()) throw nb::value_error("gate and up differ in length");
        float *out = nullptr;
        auto array = new_array<float>({gate.size()}, out);
        std::memcpy(out, gate.data(), gate.size() * sizeof(float));
        Memory memory;
        table->silu_gate(out, exact(memory, up.data(), up.size()), static_cast<uint32_t>(gate.size()));
        return array;
    }

    // keys, values: positions x stride bytes, as the cache stores them.
    Array<float> attend(Vector<float> query, Matrix<uint8_t> keys, Matrix<uint8_t> values, uint32_t kv,
                        float scale) const
    {
        if (keys.shape(0) == 0 || keys.shape(0) != values.shape(0) || keys.shape(1) != values.shape(1))
            throw nb::value_error("keys and values must have the same shape and at least one row");
        Memory q, k, v;
        float *out = nullptr;
        auto array = new_array<float>({query.size()}, out);
        std::vector<float> scores(keys.shape(0));
        colibri_attend a{};
        a.query = exact(q, query.data(), query.size());
        a.keys = exact(k, keys.data(), keys.size());
        a.values = exact(v, values.data(), values.size());
        a.stride = static_cast<uint32_t>(keys.shape(1));
        a.kv = kv;
        a.head_size = static_cast<uint32_t>(query.size());
        a.value_size = a.head_size;
        a.positions = static_cast<uint32_t>(keys.shape(0));
        a.scale = scale;
        a.scores = scores.data();
        a.out = out;
        table->attend(&a);
        return array;
    }
};

// A result of the conformance test as its words, which colibri/conformance.py names.
std::vector<uint32_t> words_of(const colibri_conformance_result &result)
{
    std::vector<uint32_t> words(sizeof result / sizeof(uint32_t));
    std::memcpy(words.data(), &result, sizeof result);
    return words;
}

nb::tuple run_conformance(const Kernels &kernels, uint32_t level)
{
    using Words = std::vector<uint32_t>;
    if (level > COLIBRI_CONFORMANCE_FULL) throw nb::value_error("level must be 0 (quick) or 1 (full)");
    const Memory memory = allocate(COLIBRI_CONFORMANCE_FULL_BYTES);
    std::vector<Words> parts;
    colibri_conformance setup{};
    setup.level = level;
    setup.memory = memory.get();
    setup.bytes = COLIBRI_CONFORMANCE_FULL_BYTES;
    setup.context = &parts;
    setup.report = [](void *context, const colibri_conformance_result *part) {
        static_cast<std::vector<Words> *>(context)->push_back(words_of(*part));
    };
    colibri_conformance_result result{};
    {
        nb::gil_scoped_release unlocked;
        colibri_conformance_run(kernels.table, &setup, &result); // refuses only what was checked above
    }
    return nb::make_tuple(words_of(result), parts);
}

// Every index that the kernel will use lies inside what the caller gave.
void check_rows(const std::optional<Vector<uint16_t>> &rows, size_t limit, const char *name)
{
    for (size_t i = 0; rows && i < rows->size(); i++)
        if ((*rows)(i) >= limit) throw nb::value_error(name);
}

Array<float> Kernels::matmul(nb::bytes data, uint32_t type, uint32_t group, uint32_t rows, Matrix<float> x,
                             std::optional<Vector<float>> bias, std::optional<Vector<uint16_t>> in_rows,
                             std::optional<Vector<uint16_t>> out_rows, uint32_t out_count,
                             uint32_t row_begin, uint32_t row_end, uint32_t order) const
{
    const auto columns = static_cast<uint32_t>(x.shape(1));
    const size_t tokens = in_rows ? in_rows->size() : x.shape(0);
    check_rows(in_rows, x.shape(0), "in_rows holds a row that x does not have");
    check_rows(out_rows, out_count, "out_rows holds a row that the output does not have");
    if (out_rows ? out_rows->size() != tokens : out_count < tokens)
        throw nb::value_error("out_rows must name one output row for each token");
    if ((bias && bias->size() != rows) || row_begin > row_end || row_end > rows)
        throw nb::value_error("bias must have `rows` elements; row_begin <= row_end <= rows");

    colibri_tensor tensor{};
    tensor.type = static_cast<uint8_t>(type);
    tensor.group = static_cast<uint16_t>(group);
    tensor.order = static_cast<uint8_t>(order);
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.bytes = data.size();
    Memory weight_memory, x_memory;
    colibri_matrix matrix{};
    colibri_matrix_init(&matrix, &tensor, exact(weight_memory, static_cast<const uint8_t *>(data.data()), data.size()));
    const size_t scale_bytes = group != 0 ? size_t{rows} * matrix.groups * sizeof(uint16_t) : 0;
    const size_t scale_start = group != 0 ? reinterpret_cast<const uint8_t *>(matrix.scales) - matrix.codes : 0;
    if (size_t{rows} * matrix.stride > data.size() || scale_start + scale_bytes > data.size())
        throw nb::value_error("data is shorter than the matrix (docs/spec.md, section 4)");
    const float *values = exact(x_memory, x.data(), x.size());

    float *out = nullptr;
    auto array = new_array<float>({out_count, rows}, out);
    std::memset(out, 0, size_t{out_count} * rows * sizeof(float));
    colibri_matmul m{};
    m.weight = &matrix;
    m.bias = bias ? bias->data() : nullptr;
    m.values = values;
    m.value_stride = columns;
    Codes codes;
    if (group != 0) {
        codes = quantize_rows(*table, values, static_cast<uint32_t>(x.shape(0)), columns, group);
        m.codes = codes.codes.data();
        m.scales = codes.scales.data();
        m.code_stride = codes.code_stride;
        m.scale_stride = codes.groups;
    }
    m.in_rows = in_rows ? in_rows->data() : nullptr;
    m.out_rows = out_rows ? out_rows->data() : nullptr;
    m.out = out;
    m.out_stride = rows;
    m.tokens = static_cast<uint32_t>(tokens);
    table->matmul(&m, row_begin, row_end);
    return array;
}

} // namespace

const colibri_kernels *find_kernels(const std::string &name)
{
    const auto all = tables();
    if (name == "auto") return all.back();
    std::string names;
    for (const colibri_kernels *table : all) {
        if (name == table->name) return table;
        names += (names.empty() ? "" : ", ") + std::string(table->name);
    }
    throw nb::value_error(("kernels '" + name + "' are not available on this machine; it has auto, " + names).c_str());
}

void bind_kernels(nb::module_ &m)
{
    m.def("kernels", [] {
        std::vector<std::string> names;
        for (const colibri_kernels *table : tables()) names.emplace_back(table->name);
        return names;
    });
    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string &>(), nb::arg("name"))
        .def("conformance", &run_conformance, nb::arg("level"))
        .def_prop_ro("name", [](const Kernels &self) { return self.table->name; })
        .def("crc32", &Kernels::crc32, nb::arg("crc"), nb::arg("data"))
        .def("quantize", &Kernels::quantize, nb::arg("x"), nb::arg("group"))
        .def("matmul", &Kernels::matmul, nb::arg("data"), nb::arg("type"), nb::arg("group"), nb::arg("rows"),
             nb::arg("x"), nb::arg("bias").none(), nb::arg("in_rows").none(), nb::arg("out_rows").none(),
             nb::arg("out_count"), nb::arg("row_begin"), nb::arg("row_end"),
             nb::arg("order") = 0)
        .def("rms_norm", &Kernels::rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("epsilon"))
        .def("silu_gate", &Kernels::silu_gate, nb::arg("gate"), nb::arg("up"))
        .def("attend", &Kernels::attend, nb::arg("query"), nb::arg("keys"), nb::arg("values"), nb::arg("kv"),
             nb::arg("scale"));
}
