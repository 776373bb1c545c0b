"""Syntax trees of every module of the package, for the guards that read the source."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.architecture.repository import PACKAGE

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    path: Path
    tree: ast.Module
    lines: int

    @property
    def place(self) -> str:
        return str(self.path.relative_to(PACKAGE))

    @property
    def package(self) -> str:
        """Name of the direct subpackage of ``accelera``; a module beside them is its own."""
        return self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def dotted(self) -> str:
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> tuple[Module, ...]:
    return tuple(_module(path) for path in sorted(PACKAGE.rglob("*.py")))


def _module(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, ast.parse(text), text.count("\n"))


def classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def functions(module: Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Functions of a module with the class that they are methods of."""
    yield from _functions(module.tree, None)


def _functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield owner, child
        yield from _functions(child, child if isinstance(child, ast.ClassDef) else None)


@functools.cache
def exported() -> frozenset[str]:
    """Names that a package offers in its ``__all__``, and the bases of ours that exported classes have."""
    packages = [m.dotted for m in modules() if m.path.name == "__init__.py" and m.package != "capturing"]
    fronts = [importlib.import_module(package) for package in packages]
    offered = {name: getattr(front, name) for front in fronts for name in getattr(front, "__all__", ())}
    bases = {base.__name__ for value in offered.values() if inspect.isclass(value) for base in value.__mro__}
    return frozenset(offered) | bases
