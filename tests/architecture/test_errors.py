"""Every error raised on purpose is an AcceleraError, and also a built-in exception that users catch."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelera import errors
from tests.architecture.repository import PACKAGE, ROOT

BUILTINS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
}
PROTOCOLS = {
    "AttributeError": {"__get__", "__getattr__", "__getattribute__", "__setattr__", "load"},
    "StopIteration": {"__next__"},
}
"""Built-in exceptions that Python's own protocols require, and the functions that may raise them."""
PRIVATE = {
    "EOFError": ("data/workers.py", "processes/messages.py", "processes/pool.py"),
    "TimeoutError": ("streaming/queue.py",),
}
"""Built-in exceptions that these modules raise to themselves."""
IMITATIONS = PACKAGE / "testing"
"""Stand-ins for CUDA and PyTorch, which raise what the originals raise."""


def raised(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str, ast.Raise]]:
    """Yield the class, the enclosing function and the statement of every ``raise`` with a bare name."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from raised(node, inner)
        if isinstance(node, ast.Raise) and node.exc is not None:
            target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(target, ast.Name):
                yield target.id, inner, node


def is_allowed(path: Path, name: str, function: str, statement: ast.Raise) -> bool:
    if name not in BUILTINS or function in PROTOCOLS.get(name, ()):
        return True
    if name == "AssertionError":  # a defect of this package, not of its caller
        return True
    if name == "NotImplementedError":  # an abstract method
        return not isinstance(statement.exc, ast.Call)
    if name == "OSError":  # with the number of a failed system call
        return isinstance(statement.exc, ast.Call) and len(statement.exc.args) > 1
    return path.as_posix().endswith(PRIVATE.get(name, ("no such module",)))


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if IMITATIONS not in path.parents],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_raise_statements_name_classes_of_this_package(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [
        f"line {statement.lineno}: {name} in {function}"
        for name, function, statement in raised(tree)
        if not is_allowed(path, name, function, statement)
    ]
    assert not bare, f"raise a class of accelera.errors: {bare}"


def test_compiled_code_raises_classes_of_this_package():
    pattern = re.compile(r"nb::(type|value|index)_error|throw std::(invalid_argument|out_of_range|runtime)")
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".cpp", ".h", ".cu", ".cuh"}]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        if path.parent.name != "torch"  # reports to torch, which raises its own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert sources
    assert not found, f"throw an error of core/base.h or common/error.h: {found}"


@pytest.mark.parametrize(
    "error",
    [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)],
)
def test_errors_are_builtin_exceptions_too(error):
    if error is not errors.AcceleraError:
        ancestors = {each.__name__ for each in error.__mro__}
        assert ancestors & BUILTINS - {"Exception"}, f"{error.__name__} is no built-in exception"


def exception_classes() -> Iterator[type[Exception]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if IMITATIONS in path.parents:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                value = getattr(importlib.import_module(module.removesuffix(".__init__")), node.name)
                if issubclass(value, Exception):
                    yield value


@pytest.mark.parametrize("error", [*exception_classes()], ids=lambda error: error.__name__)
def test_exception_classes_derive_from_the_common_base(error):
    assert issubclass(error, errors.AcceleraError)


@pytest.mark.parametrize("path", sorted((PACKAGE / "tensora").rglob("*.py")), ids=lambda path: path.stem)
def test_messages_of_tensora_open_with_the_operation(path):
    wrong = []
    for name, _, statement in raised(ast.parse(path.read_text(encoding="utf-8"))):
        if name in BUILTINS or not isinstance(statement.exc, ast.Call) or not statement.exc.args:
            continue
        text = statement.exc.args[0]
        while isinstance(text, ast.BinOp):
            text = text.left
        if isinstance(text, ast.JoinedStr | ast.Constant) and not ast.unparse(text).lstrip("f'\"").startswith(
            "["
        ):
            wrong.append(f"line {statement.lineno}: {ast.unparse(text)[:60]}")
    assert not wrong, f"begin with [operation]: {wrong}"
