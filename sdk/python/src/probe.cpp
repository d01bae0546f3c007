// SPDX-License-Identifier: Apache-2.0
// Read bandwidth and int8 peak of this machine, by threads. The GIL is released while they run.
#include "bind.h"
#include "probe_kernels.h"
#include "probe_memory.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace {

constexpr uint32_t MOST_THREADS = 1024;
std::atomic<uint64_t> sink{0}; // results go here, so that no loop can be left out

// Seconds of work(thread) on all threads at once, from the moment when every one of them is ready.
double timed(uint32_t threads, const std::function<void(uint32_t)> &work)
{
    std::atomic<uint32_t> ready{1};
    std::atomic<int> go{0}; // 1: start, -1: a thread is missing, all go home
    std::vector<std::thread> others;
    const auto join = [&] { for (std::thread &one : others) one.join(); };
    try {
        for (uint32_t t = 1; t < threads; t++)
            others.emplace_back([&, t] {
                ready++;
                int start = 0;
                while ((start = go) == 0) std::this_thread::yield();
                if (start > 0) work(t);
            });
    } catch (const std::system_error &) {
        go = -1;
        join();
        throw std::runtime_error("cannot start " + std::to_string(threads) + " threads");
    }
    while (ready < threads) std::this_thread::yield();
    const auto begin = std::chrono::steady_clock::now();
    go = 1;
    work(0);
    join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void check_threads(uint32_t threads)
{
    if (threads < 1 || threads > MOST_THREADS) throw nb::value_error("threads must be 1 to 1024");
}

class ReadProbe {
public:
    ReadProbe(uint64_t wanted, bool huge) : memory(wanted, huge)
    {
        for (uint64_t i = 0; i < memory.bytes; i += 4096) memory.data[i] = static_cast<uint8_t>(i >> 12);
    }

    // Seconds in which `threads` threads read all of it once, each its own stretch from begin to end.
    double run(uint32_t threads, size_t ahead) const
    {
        check_threads(threads);
        nb::gil_scoped_release release;
        return timed(threads, [&](uint32_t t) {
            const uint64_t begin = first(t, threads), end = first(t + 1, threads);
            sink += best_read_kernel().read(memory.data + begin, end - begin, ahead);
        });
    }
    uint64_t address() const { return memory.address(); }
    uint64_t bytes() const { return memory.bytes; }

private:
    uint64_t first(uint32_t thread, uint32_t threads) const { return bytes() / 4096 * thread / threads * 4096; }
    ProbeMemory memory;
};

// Seconds, and multiply-adds of all threads together.
nb::tuple int8_run(uint32_t threads, uint64_t rounds)
{
    check_threads(threads);
    const Int8Kernel &kernel = best_int8_kernel();
    double seconds = 0;
    {
        nb::gil_scoped_release release;
        seconds = timed(threads, [&](uint32_t) { sink += static_cast<uint32_t>(kernel.run(rounds)); });
    }
    return nb::make_tuple(seconds, kernel.macs * rounds * threads);
}

} // namespace

void bind_probe(nb::module_ &m)
{
    nb::class_<ReadProbe>(m, "ReadProbe")
        .def(nb::init<uint64_t, bool>(), nb::arg("bytes"), nb::arg("huge"))
        .def("run", &ReadProbe::run, nb::arg("threads"), nb::arg("ahead"))
        .def_prop_ro("address", &ReadProbe::address)
        .def_prop_ro("bytes", &ReadProbe::bytes);
    m.def("int8_run", &int8_run, nb::arg("threads"), nb::arg("rounds"));
    m.def("read_kernel", [] { return best_read_kernel().name; });
    m.def("int8_kernel", [] { return best_int8_kernel().name; });
}
