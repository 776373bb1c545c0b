"""House rules of the source: plain docstrings, a class name once, few parameters, no hidden import."""

from __future__ import annotations

import ast
import functools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.architecture.modules import Function, Module, classes, exported, functions, modules
from tests.architecture.repository import DOCS

RIDDLE = re.compile(r"(What|Who|Whose|How|Which|Where|Whether)\b")
MOST_PARAMETERS = 8
USUAL_LINES = 120
"""Least lines of the median file of a package."""
SMALL_PACKAGE = 4
"""Packages of fewer files have no median worth a rule."""
SHELVES = frozenset({"cli"})
"""Packages whose files are alike and stand by themselves: one verb, one file."""


def test_a_module_says_what_it_is() -> None:
    riddles = [m.place for m in modules() if RIDDLE.match(ast.get_docstring(m.tree) or "")]
    assert not riddles, f"the first line of a docstring names the thing, with a noun: {riddles}"


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for module, node in classes():
        places[node.name.lstrip("_")].append(module.place)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"one name, one meaning: {twice}"


def test_functions_behind_the_doors_have_few_parameters() -> None:
    crowded = [
        f"{module.place}:{node.lineno} {node.name} has {parameters(node, owner)}"
        for module in modules()
        for owner, node in functions(module)
        if parameters(node, owner) > MOST_PARAMETERS and not is_public(module, owner, node)
    ]
    assert not crowded, f"over {MOST_PARAMETERS}; options that travel together are one record: {crowded}"


def parameters(node: Function, owner: ast.ClassDef | None) -> int:
    arguments = node.args
    bound = owner is not None and not any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - bound


def is_public(module: Module, owner: ast.ClassDef | None, node: Function) -> bool:
    """Whether users call it: exported, a method of an exported class, or a verb of the command line."""
    if module.package == "cli":
        return True
    name = owner.name if owner is not None else node.name
    hidden = owner is not None and node.name.startswith("_") and not node.name.startswith("__")
    return name in exported() and not hidden


def test_no_import_is_hidden_in_a_string() -> None:
    hidden = [
        f"{module.place}:{call.lineno} {call.args[0].value!r}"
        for module in modules()
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and _is_import_of_ours(call) and isinstance(call.args[0], ast.Constant)
    ]
    assert not hidden, f"register instead of importing by name: {hidden}"


def _is_import_of_ours(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if (
        name not in ("import_module", "__import__")
        or not call.args
        or not isinstance(call.args[0], ast.Constant)
    ):
        return False
    return str(call.args[0].value).startswith(("accelera", "."))


def test_no_cycle_of_files() -> None:
    circles = list(cycles({m.dotted: set(imports(m)) for m in modules() if m.dotted != "accelera"}))
    assert not circles, circles


def imports(module: Module) -> Iterator[str]:
    """Modules of ours that a module imports, wherever in it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("accelera."):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (inner & _dotted()) or {str(node.module)}
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & _dotted()


@functools.cache
def _dotted() -> frozenset[str]:
    return frozenset(m.dotted for m in modules() if m.dotted != "accelera")


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node] & graph.keys()):
            if other not in number:
                yield from visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                yield component

    for node in sorted(graph):
        if node not in number:
            yield from visit(node)


def test_files_are_no_splinters() -> None:
    lines = defaultdict(list)
    for module in modules():
        if module.path.name not in ("__init__.py", "_internal.py") and module.package not in SHELVES:
            lines[module.package].append(module.lines)
    medians = {name: statistics.median(found) for name, found in lines.items() if len(found) >= SMALL_PACKAGE}
    splintered = {package: median for package, median in medians.items() if median < USUAL_LINES}
    assert not splintered, f"one idea is one file, of usually {USUAL_LINES} to 450 lines: {splintered}"


def test_a_word_of_the_glossary_stands_once() -> None:
    rows = re.findall(r"^\| ([^|]+?) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for word in rows if word not in ("word", "---")]
    assert words == sorted(set(words), key=str.casefold), "each word once, in the order of the alphabet"


@pytest.mark.parametrize(("graph", "found"), [({"a": {"b"}, "b": {"a"}}, 1), ({"a": {"b"}, "b": set()}, 0)])
def test_a_cycle_is_found(graph: dict[str, set[str]], found: int) -> None:
    assert len(list(cycles(graph))) == found
