"""Functions stay short: the body without its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tests.architecture.repository import PACKAGE

LONGEST = 60
USUAL = 25
USUAL_SHARE = 0.9


class Function(NamedTuple):
    lines: int
    name: str


def functions() -> Iterator[Function]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Function(body_lines(node), f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}")


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_long_and_most_are_short() -> None:
    found = sorted(functions(), reverse=True)
    too_long = [f for f in found if f.lines > LONGEST]
    assert not too_long, f"over {LONGEST} lines: {too_long}"
    share = sum(f.lines <= USUAL for f in found) / len(found)
    longer = [f for f in found if f.lines > USUAL]
    assert share >= USUAL_SHARE, f"only {share:.0%} have at most {USUAL} lines; shorten {longer}"
