# SPDX-License-Identifier: Apache-2.0
"""`colibri bench`: what a model takes on this machine, against what the machine can do at best.

synthetic  an image of random weights from a bare config.json
machine    read bandwidth and int8 peak, measured; pages and processor
trace      bytes, multiply-adds and routing of a token, from the runtime's own events
measure    the alternating rounds, and the numbers that come out
"""
