// SPDX-License-Identifier: Apache-2.0
// The same sixteen tokens from C++17, with memory of exactly the planned size and two workers.
//   cpp17 IMAGE TOKEN...
#include "colibri/colibri.h"
#include "colibri_posix.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(colibri_status status)
{
    if (status != COLIBRI_OK) throw std::runtime_error(colibri_status_name(status));
}

struct Aligned {
    std::vector<unsigned char> bytes;
    void *base;
    explicit Aligned(std::size_t size) : bytes(size + 63)
    {
        std::size_t room = bytes.size();
        base = bytes.data();
        std::align(64, size, base, room);
    }
};

int generate(const char *path, std::vector<uint32_t> tokens)
{
    colibri_posix_file file;
    if (colibri_posix_open(&file, path, COLIBRI_POSIX_MAP) != 0)
        throw std::runtime_error(std::string("cannot open ") + path);
    const std::unique_ptr<colibri_posix_file, decltype(&colibri_posix_close)> close(
        &file, colibri_posix_close);
    const std::unique_ptr<colibri_posix_pool, decltype(&colibri_posix_pool_destroy)> pool(
        colibri_posix_pool_create(2), colibri_posix_pool_destroy);

    colibri_image image{};
    check(colibri_image_open(&image, &file.storage, nullptr, 0, nullptr));

    colibri_limits limits{};
    limits.struct_bytes = sizeof limits;
    limits.sequences = 1;
    limits.context = 128;
    limits.workers = 2;
    colibri_region region{};
    region.size = uint64_t{1} << 40; // planning needs no memory
    colibri_plan_result plan{};
    plan.struct_bytes = sizeof plan;
    check(colibri_plan(&image, &limits, &region, 1, &plan, nullptr));

    Aligned memory(static_cast<std::size_t>(plan.used[0]));
    region.base = memory.base;
    region.size = plan.used[0];
    colibri_platform platform{};
    platform.struct_bytes = sizeof platform;
    platform.pool = pool ? colibri_posix_pool_interface(pool.get()) : nullptr;
    colibri_engine engine{};
    check(colibri_init(&engine, &image, &limits, &region, 1, &platform, nullptr));

    std::vector<float> logits(image.config.vocabulary);
    const colibri_sampling greedy{};
    uint64_t rng = 0;
    for (int i = 0; i < 16; i++) {
        colibri_batch batch{};
        batch.struct_bytes = sizeof batch;
        batch.count = static_cast<uint32_t>(tokens.size());
        batch.tokens = tokens.data();
        batch.logits = logits.data();
        batch.logits_floats = logits.size();
        check(colibri_infer(&engine, &batch, nullptr));
        uint32_t next = 0;
        check(colibri_sample(logits.data(), image.config.vocabulary, &greedy, &rng, &next));
        std::printf("%s%u", i ? "," : "", static_cast<unsigned>(next));
        tokens.assign(1, next);
    }
    std::printf("\n%llu bytes of memory\n", static_cast<unsigned long long>(plan.total_bytes));
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    std::vector<uint32_t> tokens;
    for (int i = 2; i < argc; i++)
        tokens.push_back(static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)));
    if (tokens.empty()) return 2;
    try {
        return generate(argv[1], tokens);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
}
