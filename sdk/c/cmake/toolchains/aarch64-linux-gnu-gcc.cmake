# SPDX-License-Identifier: Apache-2.0
# AArch64 Linux, or bare metal when only the static library is taken. COLIBRI_CPU: cortex-a53 (default), ...
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(COLIBRI_CPU cortex-a53 CACHE STRING "the core, as GCC's -mcpu spells it")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES COLIBRI_CPU)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_FLAGS_INIT "-mcpu=${COLIBRI_CPU}")
set(CMAKE_CXX_FLAGS_INIT "-mcpu=${COLIBRI_CPU}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
