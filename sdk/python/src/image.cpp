// SPDX-License-Identifier: Apache-2.0
// colibri_image_open and what can be asked of an open image.
#include "bind.h"

#include <cstring>

namespace {

constexpr uint32_t VERIFY_BLOCK = 1u << 16;

const void *memory_map(void *context, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const auto *self = static_cast<const Image *>(context);
    const uint64_t size = self->memory_storage.bytes;
    if (file != 0 || offset > size || bytes > size - offset) return nullptr;
    return static_cast<const uint8_t *>(self->memory.get()) + offset;
}

int memory_read(void *context, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    const void *source = memory_map(context, file, offset, bytes);
    if (source == nullptr) return -1;
    std::memcpy(destination, source, static_cast<size_t>(bytes));
    return 0;
}

[[noreturn]] void raise_open(const std::string &name, int error)
{
    nb::object exception =
        nb::module_::import_("colibri.status").attr("error_from_errno")(name, error);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(exception.ptr())), exception.ptr());
    throw nb::python_error();
}

nb::dict config_dict(const Image &self)
{
    const colibri_config &c = self.image.config;
    nb::dict d;
#define PUT(field) d[#field] = c.field
    PUT(vocabulary); PUT(hidden); PUT(layers); PUT(context); PUT(heads); PUT(kv_heads);
    PUT(head_size); PUT(rope_size); PUT(rope_style); PUT(activation); PUT(router);
    PUT(router_flags); PUT(experts); PUT(top_k); PUT(expert_size); PUT(shared_size);
    PUT(shared_flags); PUT(dense_size); PUT(tied); PUT(norm_epsilon); PUT(attention_scale);
    PUT(rope_scale); PUT(norm); PUT(value_size); PUT(latent_size); PUT(query_latent); PUT(identities);
    PUT(router_groups); PUT(router_groups_kept); PUT(router_scale); PUT(router_epsilon);
    PUT(embedding_scale); PUT(residual_scale); PUT(logits_scale); PUT(clip); PUT(activation_limit);
    PUT(activation_alpha); PUT(temperature_floor); PUT(temperature_scale);
    PUT(latent_epsilon); PUT(logits_cap); PUT(conv_size); PUT(rope_size_2);
    PUT(output_epsilon); PUT(linear_keys); PUT(linear_values); PUT(linear_key_size);
    PUT(linear_value_size); PUT(linear_rank);
#undef PUT
    return d;
}

// Rows as tuples in the order of the C struct; image.py gives them names.
nb::list sections(const Image &self)
{
    nb::list out;
    for (uint32_t i = 0; i < self.image.section_count; i++) {
        colibri_section s{};
        check(self.name, colibri_image_section(&self.image, i, &s), {});
        out.append(nb::make_tuple(s.kind, s.file, s.offset, s.bytes, s.crc32, s.count));
    }
    return out;
}

nb::list tensors(const Image &self)
{
    nb::list out;
    for (uint32_t i = 0; i < self.image.tensor_count; i++) {
        colibri_tensor t{};
        check(self.name, colibri_image_tensor(&self.image, i, &t), {});
        out.append(nb::make_tuple(t.layer, t.role, t.type, t.order, t.group, t.rows, t.columns,
                                  t.offset, t.bytes, t.crc32));
    }
    return out;
}

nb::list layers(const Image &self)
{
    nb::list out;
    for (uint32_t i = 0; i < self.image.config.layers; i++) {
        colibri_layer l{};
        colibri_image_layer(&self.image, i, &l);
        out.append(nb::make_tuple(l.mixer, l.ffn, l.rope, l.flags, l.window, l.chunk));
    }
    return out;
}

nb::list experts(const Image &self)
{
    nb::list out;
    for (uint32_t i = 0; i < self.image.expert_count; i++) {
        colibri_expert e{};
        check(self.name, colibri_image_expert(&self.image, i, &e), {});
        out.append(nb::make_tuple(e.offset, e.bytes, e.crc32, e.file));
    }
    return out;
}

std::vector<uint32_t> stop_ids(const Image &self)
{
    std::vector<uint32_t> ids(colibri_image_stop_ids(&self.image, nullptr, 0));
    if (!ids.empty()) colibri_image_stop_ids(&self.image, ids.data(), static_cast<uint32_t>(ids.size()));
    return ids;
}

nb::list files(const Image &self)
{
    nb::list out;
    for (uint32_t i = 0; i <= self.image.companions; i++) {
        colibri_file f{};
        check(self.name, colibri_image_file(&self.image, i, &f), {});
        out.append(nb::make_tuple(f.name, f.bytes));
    }
    return out;
}

nb::bytes read_bytes(const Image &self, uint64_t offset, uint64_t bytes, uint32_t file)
{
    const colibri_storage *storage = self.image.storage;
    colibri_file opened{};
    colibri_error error{};
    error.where = uint32_t{COLIBRI_GLOBAL_LAYER} << 16 | file;
    error.have = offset;
    error.need = bytes;
    if (colibri_image_file(&self.image, file, &opened) != COLIBRI_OK || offset > opened.bytes ||
        bytes > opened.bytes - offset)
        raise_status(self.name, COLIBRI_ERR_STORAGE, error);
    std::vector<uint8_t> out(static_cast<size_t>(bytes));
    if (bytes > 0 && storage->read(storage->context, file, offset, out.data(), bytes) != 0)
        raise_status(self.name, COLIBRI_ERR_STORAGE, error);
    return nb::bytes(out.data(), out.size());
}

nb::tuple pages(const Image &self)
{
    colibri_posix_pages p{};
    colibri_posix_file_pages(&self.file, &p);
    return nb::make_tuple(p.bytes, p.huge_bytes, p.reason);
}

// 0 or an errno; an image in memory is as fast without.
int read_ahead(Image &self, uint32_t threads, bool direct, uint32_t time_limit_ms)
{
    if (self.image.storage != &self.file.storage || self.file.reader != nullptr) return 0;
    const colibri_posix_reader_options options{sizeof options, threads, 0, direct, time_limit_ms};
    return colibri_posix_read_ahead(&self.file, &options);
}

void verify(const Image &self)
{
    const bool maps = self.image.storage->map != nullptr;
    Memory block = maps ? Memory() : allocate(VERIFY_BLOCK);
    colibri_error error{};
    colibri_status status;
    {
        nb::gil_scoped_release release;
        status = colibri_verify(&self.image, block.get(), maps ? 0 : VERIFY_BLOCK, &error);
    }
    check(self.name, status, error);
}

} // namespace

Image::Image(nb::object source, bool map, std::string label, bool huge) : name(std::move(label))
{
    file.descriptor = file.direct = -1;
    if (nb::isinstance<nb::str>(source)) {
        const auto path = nb::cast<std::string>(source);
        const int mode = huge ? COLIBRI_POSIX_HUGE : map ? COLIBRI_POSIX_MAP : COLIBRI_POSIX_READ;
        int failed;
        {
            nb::gil_scoped_release release;
            failed = colibri_posix_open(&file, path.c_str(), mode);
        }
        if (failed != 0) raise_open(path, file.error);
        open(&file.storage);
        return;
    }
    const auto bytes = nb::cast<nb::bytes>(source);
    memory = copy_of(bytes.data(), bytes.size());
    memory_storage.struct_bytes = sizeof memory_storage;
    memory_storage.context = this;
    memory_storage.bytes = bytes.size();
    memory_storage.read = memory_read;
    if (map) memory_storage.map = memory_map;
    open(&memory_storage);
}

void Image::open(const colibri_storage *storage)
{
    colibri_error error{};
    colibri_status status = colibri_image_open(&image, storage, nullptr, 0, &error);
    if (status == COLIBRI_ERR_MEMORY && storage->map == nullptr && error.need <= UINT32_MAX) {
        const auto need = static_cast<uint32_t>(error.need);
        meta = allocate(need);
        error = {};
        status = colibri_image_open(&image, storage, meta.get(), need, &error);
    }
    std::string subject = name;
    colibri_file companion{};
    if (status == COLIBRI_ERR_COMPANION && colibri_image_file(&image, error.where, &companion) == COLIBRI_OK)
        subject = name.substr(0, name.rfind('/') + 1) + companion.name; // it was looked for beside the image
    if (status != COLIBRI_OK) colibri_posix_close(&file);
    check(subject, status, error);
}

void bind_image(nb::module_ &m)
{
    nb::class_<Image>(m, "Image")
        .def(nb::init<nb::object, bool, std::string, bool>(), nb::arg("source"), nb::arg("map"),
             nb::arg("name"), nb::arg("huge") = false)
        .def("pages", &pages)
        .def_prop_ro("bytes", [](const Image &self) { return self.image.bytes; })
        .def_prop_ro("total_bytes", [](const Image &self) { return self.image.total_bytes; })
        .def_prop_ro("meta_bytes", [](const Image &self) { return self.image.meta_bytes; })
        .def_prop_ro("address", [](const Image &self) {
            const colibri_storage *s = self.image.storage;
            return s->map ? reinterpret_cast<uintptr_t>(s->map(s->context, 0, 0, s->bytes)) : 0;
        })
        .def("config", &config_dict)
        .def("sections", &sections)
        .def("tensors", &tensors)
        .def("experts", &experts)
        .def("files", &files)
        .def("stop_ids", &stop_ids)
        .def("layers", &layers)
        .def("read", &read_bytes, nb::arg("offset"), nb::arg("bytes"), nb::arg("file") = 0)
        .def("read_ahead", &read_ahead, nb::arg("threads"), nb::arg("direct"),
             nb::arg("time_limit_ms") = 0)
        .def("verify", &verify);
}
