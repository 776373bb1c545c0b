"""Every public name is real, has a docstring, and is in the reference."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.architecture.repository import DOCS, ROOT, packages, run_python


def exports(package: str) -> list[str]:
    return [n for n in getattr(importlib.import_module(package), "__all__", ()) if not n.startswith("__")]


@pytest.mark.parametrize("package", packages())
def test_exports_exist_with_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__, f"{package} has no docstring"
    values = {name: getattr(module, name) for name in exports(package)}
    bare = [n for n, v in values.items() if (inspect.isclass(v) or inspect.isroutine(v)) and not v.__doc__]
    assert not bare, f"{package}: no docstring on {bare}"


@pytest.mark.parametrize("package", packages()[1:])
def test_a_front_door_names_what_it_offers(package: str) -> None:
    assert hasattr(importlib.import_module(package), "__all__"), f"{package} needs an __all__"


def test_reference_is_up_to_date() -> None:
    fresh = run_python("tools/reference.py", "--check", cwd=ROOT)
    assert fresh.returncode == 0, fresh.stderr


def test_no_two_titles_of_the_reference_are_one_anchor() -> None:
    titles = [
        line for line in (DOCS / "reference.md").read_text(encoding="utf-8").splitlines() if line[:1] == "#"
    ]
    assert len(titles) == len(set(titles))


def test_fields_are_explained_in_the_reference() -> None:
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert '- `ended_by`: `"exhausted"`: every task was done; `"closed"`:' in reference


@pytest.mark.parametrize("package", packages())
def test_exports_are_in_the_reference(package: str) -> None:
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert f"`{package}`" in reference
    missing = [
        name
        for name in exports(package)
        if f"`{name}" not in reference and f"`{package}.{name}" not in reference
    ]
    assert not missing, f"{package}: {missing} not in docs/reference.md; run make reference"
