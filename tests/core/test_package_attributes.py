"""Packages and functions as attributes of ``accelera``, as the documentation names them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import accelera

PACKAGE = Path(accelera.__file__).parent
NOT_FOR_USERS = {"cli", "matrix", "memory_efficient_engine", "memory_manager", "ui"}
"""Programs, and three import paths from the founding documents."""


def modules() -> list[str]:
    names = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("_"))


@pytest.mark.parametrize("name", sorted(set(modules()) - NOT_FOR_USERS - {"csrc"}))
def test_public_package_is_an_attribute_after_import(name: str) -> None:
    code = f"import accelera; assert {name!r} in dir(accelera); accelera.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_alone_loads_no_package() -> None:
    code = (
        "import sys, accelera; dir(accelera); print(*(n for n in sys.modules if n.startswith('accelera.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name == "accelera.errors" or name.startswith("accelera._") for name in done.stdout.split())


@pytest.mark.parametrize("name", ["offload", "capture", "estimate"])
def test_callable_package_has_the_signature_of_its_function(name: str) -> None:
    package = getattr(accelera, name)
    signature = inspect.signature(package)
    assert signature == inspect.signature(getattr(package, name))
    assert "model" in signature.parameters


def test_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tensors'"):
        _ = accelera.tensors  # type: ignore[attr-defined]
