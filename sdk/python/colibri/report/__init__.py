# SPDX-License-Identifier: Apache-2.0
"""Pictures of memory, the same for every command, in file order:

``palette`` (what a byte is for, and how that looks) → ``bars`` (one region: pieces, free, overflow;
drawn in a terminal) → ``treemap`` (who owns the bytes) → ``page`` (what a report is made of)
→ ``html`` (one file that needs nothing else).

Converters are beside what they convert: ``fit/pictures.py`` (a verdict), ``plan_pictures.py`` (a
plan), ``colibri_emulator/pictures.py`` (an emulation).
"""
