# SPDX-License-Identifier: Apache-2.0
"""Which experts a model uses on a text, and what a cache of them would do.

trace       a run's choices, recorded and kept as JSON
trace_file  that JSON, written and read with checks
policies    Belady's optimum; what is worth pinning
study       a trace replayed over policies and slot counts, in the runtime's cache
pins        experts that shall stay, from a trace or from the image
plot        hit rates as SVG and HTML
"""
