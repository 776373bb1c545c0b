"""Python objects named on the command line: ``file.py:name`` and ``package.module:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import typer


def is_python_name(text: str) -> bool:
    """Whether ``text`` names something in Python rather than a file."""
    place, colon, name = text.rpartition(":")
    return bool(colon and place) and name.replace(".", "").isidentifier()


def python_object(text: str) -> Any:
    """Return what ``text`` names; its module is run.

    Raises
    ------
    BadParameter
        There is no such file, module or name, or ``text`` names none.
    """
    if not is_python_name(text):
        wanted = f"{text}:name" if text.endswith(".py") else "file.py:name or package.module:name"
        raise typer.BadParameter(f"{text!r} names nothing in a file or module; write {wanted}")
    place, _, name = text.rpartition(":")
    found: Any = _file(Path(place)) if place.endswith(".py") else _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise typer.BadParameter(f"{place} has no {name}; write file.py:name or package.module:name")
        found = getattr(found, part)
    return found


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    _search_first(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise typer.BadParameter(f"there is no module {name} to import from {Path.cwd()}") from error


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
