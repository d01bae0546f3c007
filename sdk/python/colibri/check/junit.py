# SPDX-License-Identifier: Apache-2.0
"""A check as JUnit XML: a suite for each board, a case for each row.

``over`` is a failure, ``unknown`` an error, ``skipped`` skipped; a warning is the case's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree

from colibri.check.rows import CheckResult, Row
from colibri.cli.common import printable

_KINDS = {"over": "failure", "unknown": "error", "skipped": "skipped"}


def junit(result: CheckResult) -> str:
    """The document as text."""
    root = ElementTree.Element("testsuites", name=_text(f"colibri check {result.project}"))
    for name in dict.fromkeys(row.board for row in result.rows):
        _suite(root, name or result.project, result.of_board(name))
    _count(root, result.rows)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, rows: list[Row]) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_text(name))
    _count(suite, rows)
    used: Counter[str] = Counter()
    for row in rows:
        used[row.name] += 1
        again = f" ({used[row.name]})" if used[row.name] > 1 else ""
        case = ElementTree.SubElement(
            suite, "testcase", classname=_text(f"{name}.{row.step}"), name=_text(row.name + again)
        )
        said = _text(f"{row.what}: {row.detail}" if row.detail else row.what)
        if row.status in _KINDS:
            problem = ElementTree.SubElement(case, _KINDS[row.status], message=said)
            problem.text = _text(f"{row.shown(row.value)} {row.bound}".strip())
        else:
            output = ElementTree.SubElement(case, "system-out")
            output.text = f"{row.status}: {said} {row.shown(row.value)} {row.bound}".strip()


def _count(element: ElementTree.Element, rows: Iterable[Row]) -> None:
    found = Counter(row.status for row in rows)
    element.set("tests", str(found.total()))
    for status, attribute in (("over", "failures"), ("unknown", "errors"), ("skipped", "skipped")):
        element.set(attribute, str(found[status]))


def _text(text: str) -> str:
    """Without characters that XML 1.0 cannot carry."""
    return "".join(c if c not in "￾￿" else "�" for c in printable(text))
