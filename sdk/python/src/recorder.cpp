// SPDX-License-Identifier: Apache-2.0
// A kernel table that stands before another one, changes nothing of what it computes, and sums up
// the activations that meet each weight matrix (calibrate.py). A matrix is known by where its
// weights lie; parts of a tensor with inputs of their own (heads, experts) have entries of their own.
#include "bind.h"

#include <algorithm>

namespace {

constexpr uint32_t TOGETHER = 4; // tokens added in one pass over the sums

// The kernel interface has no context: one recorder per thread, set while an engine infers.
thread_local Recorder *recording = nullptr;

void record_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    recording->base->matmul(m, row_begin, row_end);
    if (row_begin == 0) recording->add(*m);
}

// Products of two floats are exact in double, so that a fused multiply-add gives the same sums.
void add_squares(double *sums, const double *x, size_t n)
{
    for (size_t t = 0; t < TOGETHER; t++, x += n)
        for (size_t i = 0; i < n; i++) sums[i] += x[i] * x[i];
}

// The upper triangle of the sum of the outer products.
void add_products(double *sums, const double *x, size_t n)
{
    const double *a = x, *b = x + n, *c = x + 2 * n, *d = x + 3 * n;
    for (size_t i = 0; i < n; i++) {
        double *row = sums + i * n;
        for (size_t j = i; j < n; j++)
            row[j] += (a[i] * a[j] + b[i] * b[j]) + (c[i] * c[j] + d[i] * d[j]);
    }
}

} // namespace

Recorder::Recorder(const std::string &kernels, const std::vector<Span> &tensors)
    : base(find_kernels(kernels)), table(*base), spans(tensors)
{
    table.matmul = record_matmul;
    std::sort(spans.begin(), spans.end());
}

Recorder::Recording::Recording(Recorder *recorder) { recording = recorder; }
Recorder::Recording::~Recording() { recording = nullptr; }

// Called from C: what fails is kept for the caller of infer.
void Recorder::add(const colibri_matmul &m) noexcept
{
    if (failed) return;
    try {
        if (Sums *sums = sums_of(*m.weight)) add_tokens(*sums, m);
    } catch (const std::bad_alloc &) {
        failed = true;
    }
}

// The entry of a matrix, made when it is met first; none for a tensor that nobody asked for.
Recorder::Sums *Recorder::sums_of(const colibri_matrix &weight)
{
    const auto address = reinterpret_cast<uintptr_t>(weight.codes);
    const auto after = std::upper_bound(spans.begin(), spans.end(), Span{address, UINT64_MAX, true});
    if (after == spans.begin()) return nullptr;
    const auto &[begin, bytes, products] = *std::prev(after);
    if (address - begin >= bytes) return nullptr;
    Sums &sums = found[address];
    if (sums.values.empty()) {
        const size_t n = weight.columns;
        sums.values.resize(products ? n * n : n);
        sums.rows = weight.rows;
        sums.columns = weight.columns;
        sums.products = products;
    }
    return &sums;
}

void Recorder::add_tokens(Sums &sums, const colibri_matmul &m)
{
    const size_t n = sums.columns;
    for (uint32_t first = 0; first < m.tokens; first += TOGETHER) {
        inputs.assign(TOGETHER * n, 0.0); // a missing token adds zeros
        for (uint32_t t = first; t < m.tokens && t < first + TOGETHER; t++) {
            const size_t row = m.in_rows != nullptr ? m.in_rows[t] : t;
            std::copy_n(m.values + row * m.value_stride, n, inputs.data() + (t - first) * n);
        }
        (sums.products ? add_products : add_squares)(sums.values.data(), inputs.data(), n);
    }
    sums.tokens += m.tokens;
}

// Entries go one by one, so that the sums are never there twice.
nb::list Recorder::take()
{
    if (failed) throw std::bad_alloc();
    nb::list out;
    while (!found.empty()) {
        const auto entry = found.begin();
        const Sums &sums = entry->second;
        double *values = nullptr;
        Array<double> array = sums.products ? new_array<double>({sums.columns, sums.columns}, values)
                                            : new_array<double>({sums.columns}, values);
        std::copy(sums.values.begin(), sums.values.end(), values);
        out.append(nb::make_tuple(entry->first, sums.rows, sums.tokens, array));
        found.erase(entry);
    }
    return out;
}

void bind_recorder(nb::module_ &m)
{
    nb::class_<Recorder>(m, "Recorder")
        .def(nb::init<const std::string &, const std::vector<Recorder::Span> &>(), nb::arg("kernels"),
             nb::arg("tensors"))
        .def("take", &Recorder::take);
}
