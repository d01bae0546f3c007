# SPDX-License-Identifier: Apache-2.0
"""The desktop emulator: a native twin of a board, and machines with an emulated CPU.

Boards become machines here: `memory`, `storage` and `clock` for the twin; `layout`, `linker`,
`toolchain` and `build_firmware` for firmware; `machine` with its engines to run it.
"""
