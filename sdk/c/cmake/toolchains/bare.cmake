# SPDX-License-Identifier: Apache-2.0
# Shared by the toolchain files beside it: no operating system, nothing can be linked or run.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(bare_flags "-idirafter ${CMAKE_CURRENT_LIST_DIR}/include -ffunction-sections -fdata-sections -fno-unwind-tables -fno-asynchronous-unwind-tables")
