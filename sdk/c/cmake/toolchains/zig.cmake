# SPDX-License-Identifier: Apache-2.0
# Any bare-metal core with the pip package ziglang (clang), no root needed:
#   pip install ziglang
#   cmake -S sdk/c -B build -DCMAKE_TOOLCHAIN_FILE=sdk/c/cmake/toolchains/zig.cmake \
#         -DZIG_TARGET=thumb-freestanding-eabihf -DZIG_CPU=cortex_m33+fp_armv8d16sp
# zig spells a core with an underscore and leaves out its FPU, DSP and MVE: add them to ZIG_CPU.
#   Cortex-M4  thumb-freestanding-eabihf  cortex_m4+vfp4d16sp
#   Cortex-M7  thumb-freestanding-eabihf  cortex_m7+fp_armv8d16sp
#   Cortex-M33 thumb-freestanding-eabihf  cortex_m33+dsp+fp_armv8d16sp
#   Cortex-M55 thumb-freestanding-eabihf  cortex_m55+mve+fp_armv8d16sp (not mve_fp: docs/numerics.md section 4)
#   Cortex-A53 aarch64-freestanding-none  cortex_a53
#   RV64GC     riscv64-freestanding-none  generic_rv64+m+a+f+d+c
include(${CMAKE_CURRENT_LIST_DIR}/bare.cmake)
set(CMAKE_SYSTEM_PROCESSOR any)
set(ZIG_TARGET thumb-freestanding-eabihf CACHE STRING "zig's -target")
set(ZIG_CPU cortex_m33+fp_armv8d16sp CACHE STRING "zig's -mcpu")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_TARGET ZIG_CPU ZIG_PYTHON)
find_program(ZIG_PYTHON NAMES python3 python REQUIRED)
set(CMAKE_C_COMPILER ${ZIG_PYTHON} -m ziglang cc)
set(CMAKE_ASM_COMPILER ${ZIG_PYTHON} -m ziglang cc)
set(zig_flags "-target ${ZIG_TARGET} -mcpu=${ZIG_CPU}")
if(ZIG_TARGET MATCHES "^riscv64")
  string(APPEND zig_flags " -mcmodel=medany")
endif()
# -fno-unroll-loops: clang's unrolling triples the code of the plain kernels for a few percent.
set(CMAKE_C_FLAGS_INIT "${zig_flags} -fno-sanitize=all -fno-unroll-loops ${bare_flags}")
set(CMAKE_ASM_FLAGS_INIT "${zig_flags}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static -nostdlib -rtlib=compiler-rt -Wl,--gc-sections")
# CMAKE_AR can only be one program, so the whole commands are replaced.
set(CMAKE_C_ARCHIVE_CREATE "\"${ZIG_PYTHON}\" -m ziglang ar qc <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_APPEND "\"${ZIG_PYTHON}\" -m ziglang ar q <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "\"${ZIG_PYTHON}\" -m ziglang ranlib <TARGET>")
