"""Types of Tensora: the stub names what the extension has, and few annotations are Any."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import accelera
import accelera.tensora as ts

PACKAGE = Path(accelera.__file__).parent
STUB = ast.parse((PACKAGE / "_tensora.pyi").read_text())


def members(name: str) -> set[str]:
    """Names that the stub's class of that name has."""
    (found,) = (node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name == name)
    targets: list[ast.expr]
    named = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    targets = [each.target for each in found.body if isinstance(each, ast.AnnAssign)]
    targets += [target for each in found.body if isinstance(each, ast.Assign) for target in each.targets]
    return named | {each.id for each in targets if isinstance(each, ast.Name)}


def test_the_stub_has_the_attributes_of_tensors() -> None:
    there = {name for name in dir(ts.Tensor) if not name.startswith("_")}
    stubbed = {name for name in members("Tensor") if not name.startswith("_")}
    assert stubbed == there
    special = {name for name in members("Tensor") if name.startswith("__")}
    assert special <= set(dir(ts.Tensor))


def test_the_stub_has_the_element_types() -> None:
    assert members("dtype") == {each.name for each in ts.dtype}
    assert members("MemoryStats") == {
        name for name in dir(type(ts.memory_stats())) if not name.startswith("_")
    }


def methods() -> Iterator[tuple[str, list[str]]]:
    """Methods of the stub that take names, with the names of their positional arguments."""
    (found,) = (node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, [each.arg for each in node.args.args[1:]]


@pytest.mark.parametrize(("name", "named"), [each for each in methods() if each[1]])
def test_methods_of_the_stub_take_the_names_they_have(name: str, named: list[str]) -> None:
    method = getattr(ts.Tensor, name)
    if hasattr(method, "__nb_signature__"):
        said = method.__nb_signature__[0][0]
        assert all(f"{each}:" in said for each in named)
        return
    given = list(inspect.signature(method).parameters)[1:]
    assert given[: len(named)] == named


def annotations() -> Iterator[str]:
    """Annotations of parameters and results of all public functions and methods."""
    for path in sorted((PACKAGE / "tensora").rglob("*.py")):
        if path.parent.name != "lowering":  # expressions of other libraries
            yield from _annotations(ast.parse(path.read_text()))


def _annotations(node: ast.AST) -> Iterator[str]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
            yield from _annotations(each)
        elif isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            given = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
            found = [each.returns, *(one.annotation for one in given if one.arg not in ("self", "cls"))]
            yield from ("Any" if one is None else ast.unparse(one) for one in found)


def test_few_annotations_say_nothing() -> None:
    found = list(annotations())
    assert len(found) > 2000
    assert found.count("Any") / len(found) < 0.05
