// SPDX-License-Identifier: Apache-2.0
// What the files of the extension share. Thin on purpose: no logic that the C library has.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "colibri/colibri.h"
#include "colibri_posix.h"

namespace nb = nanobind;

template <typename T> using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T> using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T> using Array = nb::ndarray<T, nb::numpy>;

// Raises the colibri exception that fits the status, with a full sentence (colibri/status.py).
[[noreturn]] void raise_status(const std::string &subject, colibri_status status,
                               const colibri_error &error);

inline void check(const std::string &subject, colibri_status status, const colibri_error &error)
{
    if (status != COLIBRI_OK) raise_status(subject, status, error);
}

// Memory on a 64-byte boundary with nothing behind it, so that a checker sees an overrun.
struct Free {
    void operator()(void *memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;
Memory allocate(uint64_t bytes);
// The same, in pages of 2 MiB where the system has them: what storage writes and kernels read a megabyte at a time.
Memory allocate_huge(uint64_t bytes);
Memory copy_of(const void *data, uint64_t bytes);

// A new NumPy array that owns its elements.
template <typename T> Array<T> new_array(std::initializer_list<size_t> shape, T *&data)
{
    size_t count = 1;
    for (const size_t n : shape) count *= n;
    data = new T[count == 0 ? 1 : count];
    nb::capsule owner(data, [](void *memory) noexcept { delete[] static_cast<T *>(memory); });
    return Array<T>(data, shape, owner);
}

struct Image {
    std::string name;      // for messages
    colibri_image image{};
    colibri_posix_file file{};
    colibri_storage memory_storage{};
    Memory memory; // an image given as bytes
    Memory meta;   // tables, when the storage does not map

    Image(nb::object source, bool map, std::string name, bool huge);
    ~Image() { colibri_posix_close(&file); }
    Image(const Image &) = delete;
    Image &operator=(const Image &) = delete;

private:
    void open(const colibri_storage *storage);
};

// (name, address, size, rank), or with the use behind it; the address matters to Engine only.
using RegionTuple = std::tuple<std::string, uint64_t, uint64_t, uint32_t, uint32_t>;
using RegionList = std::vector<std::variant<RegionTuple, std::tuple<std::string, uint64_t, uint64_t, uint32_t>>>;
struct Regions {
    std::vector<std::string> names;
    std::vector<colibri_region> list;
    explicit Regions(const RegionList &tuples);
    uint32_t count() const { return static_cast<uint32_t>(list.size()); }
};

// "auto", "ref", "avx2"; a name that this machine lacks is an error that lists those it has.
const colibri_kernels *find_kernels(const std::string &name);

// Sums over the activations that meet the weight matrices of an engine (recorder.cpp).
struct Recorder {
    using Span = std::tuple<uint64_t, uint64_t, bool>; // address, bytes, products or squares only
    struct Sums {
        uint32_t rows = 0, columns = 0;
        bool products = false;
        uint64_t tokens = 0;
        std::vector<double> values; // columns x columns, upper triangle; or columns squares
    };
    // The calling thread records while this lives; nullptr records nothing.
    struct Recording {
        explicit Recording(Recorder *recorder);
        ~Recording();
        Recording(const Recording &) = delete;
        Recording &operator=(const Recording &) = delete;
    };

    Recorder(const std::string &kernels, const std::vector<Span> &tensors);
    void add(const colibri_matmul &m) noexcept;
    nb::list take(); // (address, rows, tokens, sums) by address; starts anew

    const colibri_kernels *base;
    colibri_kernels table;

private:
    Sums *sums_of(const colibri_matrix &weight);
    void add_tokens(Sums &sums, const colibri_matmul &m);

    std::vector<Span> spans;
    std::map<uint64_t, Sums> found;
    std::vector<double> inputs;
    bool failed = false;
};

void bind_image(nb::module_ &m);
void bind_plan(nb::module_ &m);
void bind_engine(nb::module_ &m);
void bind_kernels(nb::module_ &m);
void bind_recorder(nb::module_ &m);
void bind_expert_cache(nb::module_ &m);
void bind_probe(nb::module_ &m);
void bind_matmul_probe(nb::module_ &m);
