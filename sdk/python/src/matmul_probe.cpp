// SPDX-License-Identifier: Apache-2.0
// One product of a kernel table alone, for bench/kernels.py: random weights in memory of their own, timed calls.
#include "bind.h"
#include "probe_memory.h"

#include <chrono>

namespace {

class MatmulProbe {
public:
    MatmulProbe(const std::string &kernels, uint32_t type, uint32_t group, uint32_t rows, uint32_t columns,
                uint32_t tokens, uint32_t order, bool huge)
        : table(find_kernels(kernels)), bytes(bytes_of(type, group, rows, columns, tokens, order)),
          memory(bytes, huge), x(size_t{tokens} * columns), scales(size_t{tokens} * columns / group),
          out(size_t{tokens} * rows)
    {
        colibri_tensor tensor{};
        tensor.type = type, tensor.group = group, tensor.rows = rows, tensor.columns = columns, tensor.order = order;
        colibri_matrix_init(&weight, &tensor, memory.data);
        fill_weights();
        for (int8_t &code : x) code = static_cast<int8_t>(random() % 255 - 127);
        for (float &scale : scales) scale = static_cast<float>(random() % 1000 + 1) * 0x1p-10f;
        product.weight = &weight;
        product.codes = x.data(), product.scales = scales.data(), product.out = out.data();
        product.code_stride = columns, product.scale_stride = weight.groups, product.out_stride = rows;
        product.tokens = tokens;
    }
    MatmulProbe(const MatmulProbe &) = delete;
    MatmulProbe &operator=(const MatmulProbe &) = delete;

    // Seconds of so many calls, one after the other.
    double run(uint32_t calls)
    {
        nb::gil_scoped_release release;
        const auto begin = std::chrono::steady_clock::now();
        for (uint32_t i = 0; i < calls; i++) table->matmul(&product, 0, weight.rows);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    uint64_t address() const { return memory.address(); }

    const colibri_kernels *table;
    const uint64_t bytes; // of the weights

private:
    static uint64_t bytes_of(uint32_t type, uint32_t group, uint32_t rows, uint32_t columns, uint32_t tokens,
                             uint32_t order)
    {
        if (type != COLIBRI_Q8 && type != COLIBRI_Q4) throw nb::value_error("type must be q8 or q4");
        if (order > COLIBRI_ORDER_TILES) throw nb::value_error("order must be 0 (rows) or 1 (tiles)");
        if (group != 32 && group != 64 && group != 128) throw nb::value_error("group must be 32, 64 or 128");
        if (rows == 0 || rows % 16 != 0 || columns == 0 || columns % group != 0 || tokens == 0)
            throw nb::value_error("rows must be a multiple of 16, columns of group, tokens 1 or more");
        return uint64_t{rows} * columns / (type == COLIBRI_Q4 ? 2 : 1) + uint64_t{rows} * columns / group * 2;
    }

    uint32_t random()
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 33);
    }

    // q8 has no code -128; every byte is two of q4.
    void fill_weights()
    {
        const uint64_t codes = uint64_t{weight.rows} * weight.stride;
        for (uint64_t i = 0; i < codes; i++)
            memory.data[i] = static_cast<uint8_t>(weight.type == COLIBRI_Q4 ? random() : random() % 255 + 129);
        auto *scale = reinterpret_cast<uint16_t *>(memory.data + codes);
        for (uint64_t i = 0; i < uint64_t{weight.rows} * weight.groups; i++)
            scale[i] = static_cast<uint16_t>(0x2000 + random() % 0x400);
    }

    ProbeMemory memory;
    std::vector<int8_t> x;
    std::vector<float> scales, out;
    colibri_matrix weight{};
    colibri_matmul product{};
    uint64_t state = 1;
};

} // namespace

void bind_matmul_probe(nb::module_ &m)
{
    nb::class_<MatmulProbe>(m, "MatmulProbe")
        .def(nb::init<const std::string &, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, bool>(),
             nb::arg("kernels"), nb::arg("type"), nb::arg("group"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("tokens"), nb::arg("order"), nb::arg("huge"))
        .def("run", &MatmulProbe::run, nb::arg("calls"))
        .def_prop_ro("address", &MatmulProbe::address)
        .def_prop_ro("kernels", [](const MatmulProbe &p) { return p.table->name; })
        .def_ro("bytes", &MatmulProbe::bytes);
}
