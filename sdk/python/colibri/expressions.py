# SPDX-License-Identifier: Apache-2.0
"""The small language in which family descriptors compute with config values.

Python's syntax for names, numbers, strings, lists, arithmetic, comparisons, ``in``, ``and``,
``or``, ``not``, ``a if c else b``, indices and slices, and the functions ``min``, ``max``, ``len``,
``int``, ``log``, ``find`` (a value in nested tables, or a default), ``count`` (a vector 1 .. n),
and for tensors ``reshape``, ``transpose``, ``concat`` and ``halves``; nothing else.
An expression can neither loop nor reach anything but the values it is given.

>>> evaluate("(layer + 1) % step == 0", {"layer": 3, "step": 2})
True
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

Value = Any  # what JSON can hold


def _plain(name: str) -> str:
    return str(int(name)) if name.isdecimal() else name


def _find(table: Value, path: list[Value], default: Value) -> Value:
    """What lies at a path of keys; JSON's keys are strings, where numbers may begin with zeros."""
    for key in path:
        names = {_plain(name): name for name in table} if isinstance(table, dict) else {}
        if str(key) not in names:
            return default
        table = table[names[str(key)]]
    return table


def _halves(x: Value, heads: int) -> Value:
    """Rows of each head reordered: those that stood at even places first, then the others."""
    rows = np.reshape(x, (heads, x.shape[0] // heads // 2, 2, *x.shape[1:]))
    return np.reshape(np.swapaxes(rows, 1, 2), x.shape)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "min": min, "max": max, "len": len, "int": int, "log": math.log, "find": _find,
    "concat": np.concatenate, "reshape": np.reshape, "transpose": np.transpose,
    "halves": _halves, "count": lambda n: np.arange(1.0, n + 1.0),
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: lambda a, b: float(a) ** b,  # of floats: an integer power could grow without end
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Value], Value]] = {
    ast.Not: operator.not_, ast.USub: operator.neg,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def evaluate(text: str, names: Mapping[str, Value]) -> Value:
    """Value of an expression.

    Raises
    ------
    ValueError
        For an unknown name or anything outside the language; the message has the expression.
    """
    try:
        return _evaluate(_parse(text), names)
    except (SyntaxError, TypeError, ArithmeticError, LookupError, ValueError) as error:
        raise ValueError(f"expression '{text}': {type(error).__name__}: {error}") from error


@cache
def _parse(text: str) -> ast.expr:
    """Descriptors have few expressions, models evaluate them for every tensor."""
    return ast.parse(text, mode="eval").body


def _evaluate(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names[name]
        case ast.List(items):
            return [_evaluate(item, names) for item in items]
        case ast.Subscript(value, index):
            return _evaluate(value, names)[_index(index, names)]
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_evaluate(operand, names))
        case ast.BoolOp(op, values):
            return _boolean(isinstance(op, ast.And), values, names)
        case ast.IfExp(test, yes, no):
            return _evaluate(yes if _evaluate(test, names) else no, names)
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(argument, names) for argument in arguments))
    raise SyntaxError(f"{type(node).__name__} is not part of the language")


def _index(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Tuple(items):
            return tuple(_index(item, names) for item in items)
        case ast.Slice(start, stop, step):
            return slice(*(part and _evaluate(part, names) for part in (start, stop, step)))
    return _evaluate(node, names)


def _boolean(conjunction: bool, values: list[ast.expr], names: Mapping[str, Value]) -> Value:
    result: Value = conjunction
    for value in values:
        result = _evaluate(value, names)
        if bool(result) is not conjunction:
            break
    return result
