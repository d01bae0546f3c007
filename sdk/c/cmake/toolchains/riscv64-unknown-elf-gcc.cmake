# SPDX-License-Identifier: Apache-2.0
# RISC-V bare metal with GNU GCC. COLIBRI_ISA: rv64gc (default), rv32imafc, ...
include(${CMAKE_CURRENT_LIST_DIR}/bare.cmake)
set(CMAKE_SYSTEM_PROCESSOR riscv)
set(COLIBRI_ISA rv64gc CACHE STRING "GCC's -march")
set(COLIBRI_ABI lp64d CACHE STRING "GCC's -mabi")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES COLIBRI_ISA COLIBRI_ABI)
set(CMAKE_C_COMPILER riscv64-unknown-elf-gcc)
set(CMAKE_ASM_COMPILER riscv64-unknown-elf-gcc)
# 2.2: newer GCC split the CSR instructions from I, and then finds no multilib.
set(CMAKE_C_FLAGS_INIT "-march=${COLIBRI_ISA} -misa-spec=2.2 -mabi=${COLIBRI_ABI} -mcmodel=medany ${bare_flags}")
set(CMAKE_ASM_FLAGS_INIT "-march=${COLIBRI_ISA} -misa-spec=2.2 -mabi=${COLIBRI_ABI}")
