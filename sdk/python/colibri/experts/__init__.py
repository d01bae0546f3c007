# SPDX-License-Identifier: Apache-2.0
"""Which experts a model uses on a text, and what a cache of them would do.

trace       a run's choices, recorded and kept as JSON
trace_file  that JSON, written and read with checks
policies    who leaves a full cache; Belady's optimum
study       a trace replayed over policies and slot counts
plot        hit rates as SVG and HTML
"""
