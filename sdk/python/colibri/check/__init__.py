# SPDX-License-Identifier: Apache-2.0
"""`colibri check`: one verdict over a project's boards.

``run`` takes each board through ``steps`` (pack → plan → build → size → emulate), which fill the
``rows`` of a result; ``ratchet`` holds them against those on record; ``table``, ``markdown``,
``junit`` and ``page`` show one result in four ways.
"""

from colibri.check.rows import CheckResult, Row
from colibri.check.run import check

__all__ = ["CheckResult", "Row", "check"]
