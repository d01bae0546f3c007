# SPDX-License-Identifier: Apache-2.0
"""From a layout to the two generated files of a firmware: ``board.ld`` and ``board.c``."""

from __future__ import annotations

from string import Template

from colibri._data import data_path
from colibri.board_memory import Weights
from colibri.boards import Board
from colibri_emulator.image_needs import ImageNeeds
from colibri_emulator.layout import Layout

_PSCI = {None: 0, "hvc": 1, "smc": 2}  # sdk/c/ports/baremetal/psci_aarch64.h
_PROFILES = {"small": "COLIBRI_PROFILE_SMALL", "wide": "COLIBRI_PROFILE_WIDE"}


def linker_script(board: Board, layout: Layout) -> str:
    """The linker script of a board, from ``emulator/firmware/linker.ld.in``."""
    fw = board.firmware
    template = Template(data_path("emulator", "firmware", "linker.ld.in").read_text("utf-8"))
    memory = "\n".join(
        f"  {region.name} ({region.access}) : ORIGIN = {region.base:#x}, LENGTH = {region.size:#x}"
        for region in board.regions
    )
    return template.substitute(
        board=board.id,
        memory=memory,
        code=fw.code_region,
        data=fw.data_region,
        # Code in RAM is loaded where it runs; code in flash carries the initial data with it.
        data_load="" if fw.code_region == fw.data_region else f" AT> {fw.code_region}",
        code_start=f"{layout.code_start:#x}",
        code_limit=f"{layout.code_limit:#x}",
        stack_bytes=f"{layout.stack_bytes:#x}",
        core_stacks_bytes=f"{layout.core_stacks_bytes:#x}",
        firmware_limit=f"{layout.data_limit:#x}",
        model_base=f"{layout.model_base:#x}",
        model_bytes=f"{layout.model_bytes:#x}",
        logits=_region_at(board, layout.logits_base),
        logits_base=f"{layout.logits_base:#x}",
        tables=_tables_section(board, layout),
    )


def _tables_section(board: Board, layout: Layout) -> str:
    """Memory for the tables of an image that stays in a storage."""
    if not layout.tables_bytes:
        return ""
    place = f"{layout.tables_base:#x} (NOLOAD) : {{ KEEP(*(.image_tables)) }}"
    return f"  .image_tables {place} > {_region_at(board, layout.tables_base)} :NONE\n"


def _region_at(board: Board, address: int) -> str:
    return next(r.name for r in board.regions if r.base <= address < r.end)


def board_source(board: Board, layout: Layout, image: ImageNeeds, weights: Weights) -> str:
    """``board.c``: the same addresses for the program."""
    regions = "\n".join(
        f'    {{ "{r.name}", (void *){r.base:#x}u, {r.size:#x}u, {r.rank}, 0 }},'
        for r in layout.regions
    )
    memory = "\n".join(
        f"    {{ {region.base:#x}u, {region.size:#x}u }}," for region in board.regions
    )
    return f"""\
/* Generated from board '{board.id}' by emulator/colibri_emulator/linker.py. Do not edit. */
#include "board.h"

const colibri_region colibri_board_regions[] = {{
{regions}
}};
const uint32_t colibri_board_region_count = {len(layout.regions)};
const uint32_t colibri_board_profile = {_PROFILES[board.firmware.profile]};
const void *const colibri_board_model = (const void *){layout.model_base:#x}u;
const uint64_t colibri_board_model_bytes = {image.bytes:#x}u;
float *const colibri_board_logits = (float *){layout.logits_base:#x}u;
const uint32_t colibri_board_logits_floats = {image.vocabulary}u;
const uint32_t colibri_board_cores = {board.firmware_cores}u;
const int colibri_board_psci = {_PSCI[board.firmware.psci]};

const colibri_board_ram colibri_board_memory[] = {{
{memory}
}};
const uint32_t colibri_board_memory_count = {len(board.regions)};
{_streaming(layout, weights)}{_rooms(layout)}"""


def _rooms(layout: Layout) -> str:
    """Memory that is used by its address alone: arrays give it a name in symbol table and map."""
    rooms = {
        "core_stacks": layout.core_stacks_bytes,
        "stack": layout.stack_bytes,
        "logits": layout.logits_bytes,
        "image_tables": layout.tables_bytes,
    }
    arrays = "\n".join(
        f'__attribute__((used, section(".{name}"))) static uint8_t {name}[{size:#x}];'
        for name, size in rooms.items()
        if size
    )
    return f"\n/* Rooms that the linker script places. */\n{arrays}\n"


def _streaming(layout: Layout, weights: Weights) -> str:
    """What only firmware with streamed experts has."""
    if weights == "mapped":
        return ""
    return f"""
const uint32_t colibri_board_weights = COLIBRI_WEIGHTS_{weights.upper().replace("-", "_")};
void *const colibri_board_tables = (void *){layout.tables_base:#x}u;
const uint32_t colibri_board_tables_bytes = {layout.tables_bytes:#x}u;
void *const colibri_board_device = (void *){layout.device_base:#x}u;
"""
