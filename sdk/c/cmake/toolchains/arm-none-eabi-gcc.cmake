# SPDX-License-Identifier: Apache-2.0
# Cortex-M with GNU GCC. COLIBRI_CPU: cortex-m4, cortex-m7, cortex-m33 (default), cortex-m55.
include(${CMAKE_CURRENT_LIST_DIR}/bare.cmake)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(COLIBRI_CPU cortex-m33 CACHE STRING "the core, as GCC's -mcpu spells it")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES COLIBRI_CPU)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_ASM_COMPILER arm-none-eabi-gcc)
# A vectoriser must not use Helium's float lanes, which flush subnormals.
set(cpu ${COLIBRI_CPU})
if(cpu STREQUAL "cortex-m55")
  set(cpu "cortex-m55+nomve.fp")
endif()
set(CMAKE_C_FLAGS_INIT "-mcpu=${cpu} -mthumb -mfloat-abi=hard -mfpu=auto ${bare_flags}")
set(CMAKE_ASM_FLAGS_INIT "-mcpu=${cpu} -mthumb -mfloat-abi=hard -mfpu=auto")
