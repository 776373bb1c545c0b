"""Public names of Accelera: what each package offers at its front door, and where the source of it lies.

Also an extension of griffe, which reads the sources for the reference: it makes every front door offer
exactly its ``__all__``, also where a file beside it has the name of a function.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.docstrings import parsed, written

PACKAGE = Path(__file__).parents[1] / "src" / "accelera"
MODULES = ("errors", "units")
"""Modules without a package of their own whose names users import."""
TENSORA = (
    "data",
    "distributed",
    "fft",
    "functional",
    "linalg",
    "models",
    "nn",
    "optim",
    "random",
    "serialization",
    "special",
)
"""Namespaces of Tensora that are front doors, too."""


@functools.cache
def doors() -> list[str]:
    """Return the dotted names of all front doors: packages, and the modules that users import."""
    packages = sorted(path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py"))
    inner = [f"tensora.{name}" for name in TENSORA]
    found = ["accelera", *(f"accelera.{name}" for name in [*packages, *inner, *MODULES])]
    return [name for name in found if names_of(name)]


@functools.cache
def names_of(door: str) -> list[str]:
    """Return the public names of a front door in alphabetical order, modules left out."""
    module = importlib.import_module(door)
    listed = getattr(module, "__all__", None)
    if listed is None and door.rpartition(".")[2] in MODULES:
        listed = [name for name, value in vars(module).items() if _defined_in(value, door, name)]
    public = [name for name in listed or () if not name.startswith("__")]
    found = [name for name in public if not _is_plain_module(module, name)]
    return sorted(found, key=lambda name: (name.lower(), name))


def value_of(door: str, name: str) -> Any:
    """Return what a front door has under a name; a package that can be called stands for its function."""
    value = getattr(importlib.import_module(door), name)
    if isinstance(value, ModuleType) and callable(value):
        return getattr(value, name)
    return value


def home_of(value: Any) -> str | None:
    """Return the dotted path of the source of a class or function; None of a constant."""
    if inspect.isclass(value) or inspect.isroutine(value):
        module = getattr(value, "__module__", None) or ""
        return f"{module}.{value.__qualname__}" if module.startswith("accelera") else None
    return None


@functools.cache
def constant_docs(door: str) -> dict[str, str]:
    """Return the docstrings that stand under assignments in a package's files, by name."""
    path = Path(str(importlib.import_module(door).__file__))
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return {name: text for file in files for name, text in _assigned(file)}


def _assigned(file: Path) -> Iterator[tuple[str, str]]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for node, after in itertools.pairwise(body):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(after, ast.Expr):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
            yield target.id, inspect.cleandoc(str(after.value.value))


def _defined_in(value: Any, door: str, name: str) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == door


def _is_plain_module(module: ModuleType, name: str) -> bool:
    value = getattr(module, name, None)
    return isinstance(value, ModuleType) and not callable(value)


class FrontDoors(griffe.Extension):
    """Makes each front door offer its names as they are when the program runs."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Replace what was read from the front doors by the sources of their names."""
        if pkg.path != "accelera":
            return
        targets = {door: self._targets(pkg, door) for door in doors()}
        for door, found in targets.items():
            module = _module(pkg, door)
            for name, target in found.items():
                module.set_member(name, griffe.Alias(name, target, parent=module))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put a docstring into the order of NumPy's sections."""
        if obj.docstring is not None:
            obj.docstring.value = written(parsed(inspect.cleandoc(obj.docstring.value)))

    @staticmethod
    def _targets(pkg: griffe.Module, door: str) -> dict[str, griffe.Object | griffe.Alias]:
        """Return the sources of a door's names, before any door is changed."""
        found: dict[str, griffe.Object | griffe.Alias] = {}
        for name in names_of(door):
            home = home_of(value_of(door, name))
            if home is None or isinstance(getattr(importlib.import_module(door), name), ModuleType):
                continue
            try:
                target = pkg[home.partition(".")[2]]
            except KeyError:
                continue
            if target.path != f"{door}.{name}":
                found[name] = target
        return found


def _module(pkg: griffe.Module, door: str) -> griffe.Module:
    found: Any = pkg
    for name in door.split(".")[1:]:
        found = found.modules[name] if name in found.modules else found.members[name]
    assert isinstance(found, griffe.Module), f"{door} is {found.kind}"
    return found
