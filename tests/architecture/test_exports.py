"""Every public name is real, says what it is, and has its place in the reference."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe
import pytest

from tests.architecture.repository import ROOT, packages
from tools import reference_pages
from tools.docstrings import parsed
from tools.front_doors import constant_docs, doors, home_of, names_of, value_of

MAIN = [
    "accelera",
    "accelera.engine",
    "accelera.offload",
    "accelera.interceptor",
    "accelera.execution",
    "accelera.simulator",
    "accelera.trace",
]
"""Doors whose functions document every parameter."""
WORDED = {"frac", "bincount"}
"""Functions of Tensora whose line is the array API's own."""
NO_STATEMENT = ("What", "Who", "Whose", "How", "Which", "Where", "Whether")


@pytest.mark.parametrize("package", packages()[1:])
def test_a_front_door_names_what_it_offers(package: str) -> None:
    assert hasattr(importlib.import_module(package), "__all__"), f"{package} needs an __all__"


@pytest.mark.parametrize("door", doors())
def test_exports_say_in_a_line_what_they_are(door: str) -> None:
    assert importlib.import_module(door).__doc__, f"{door} has no docstring"
    lines = {name: first_line(door, name) for name in names_of(door) if is_documented(door, name)}
    bare = [name for name, line in lines.items() if not line]
    assert not bare, f"{door}: no docstring on {bare}"
    is_predicate = door.startswith("accelera.tensora")  # those of the array API: "Whether x1 > x2."
    refused = NO_STATEMENT[:-1] if is_predicate else NO_STATEMENT
    questions = [name for name, line in lines.items() if line.split()[0] in refused and name not in WORDED]
    assert not questions, f"{door}: no statement in the first line of {questions}"


def is_documented(door: str, name: str) -> bool:
    """Whether a name is ours to document: no constant such as pi, no function of the compiled core."""
    value = value_of(door, name)
    return home_of(value) is not None or name in constant_docs(door)


def first_line(door: str, name: str) -> str:
    value = value_of(door, name)
    text = constant_docs(door).get(name) if home_of(value) is None else inspect.getdoc(value)
    return (text or "").partition("\n")[0].strip()


@pytest.mark.parametrize("door", MAIN)
def test_functions_document_their_parameters(door: str) -> None:
    found = {name: undocumented(value_of(door, name)) for name in names_of(door)}
    missing = {name: parameters for name, parameters in found.items() if parameters}
    assert not missing, f"{door}: no entry under Parameters for {missing}"


def undocumented(value: Any) -> list[str]:
    if not inspect.isroutine(value):
        return []
    lines = parsed(inspect.getdoc(value) or "").sections.get("Parameters", [])
    documented = {
        name.strip().lstrip("*")
        for line in lines
        if line[:1].strip()
        for name in line.split(":")[0].split(",")
    }
    parameters = inspect.signature(value).parameters.values()
    stars = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    starred = stars if documented - {p.name for p in parameters} else set()
    return [each.name for each in parameters if each.name not in documented and each.kind not in starred]


@pytest.mark.parametrize("door", MAIN)
def test_functions_have_what_they_raise_as_a_section(door: str) -> None:
    texts = {name: inspect.getdoc(value_of(door, name)) or "" for name in names_of(door)}
    prose = [
        name
        for name, text in texts.items()
        if inspect.isroutine(value_of(door, name)) and re.search(r"^Raises [A-Z]\w*Error", text, re.MULTILINE)
    ]
    assert not prose, f"{door}: write what is raised as a section: {prose}"


@pytest.mark.parametrize("door", doors())
def test_a_page_of_the_reference_has_exactly_the_public_names(door: str) -> None:
    text = reference_pages.page(door)
    entries = re.findall(rf"^::: {re.escape(door)}\.(\w+)$", text, re.MULTILINE)
    entries += re.findall(r"^### `(\w+)`$", text, re.MULTILINE)
    assert len(entries) == len(set(entries))
    elsewhere = {name for name in names_of(door) if reference_pages._other_page(door, name)}
    assert set(entries) | elsewhere == set(names_of(door))
    assert all(f"`{name}`" in text for name in names_of(door))


@pytest.fixture(scope="module")
def sources() -> Any:
    """What the reference reads: the sources, through the front doors."""
    extensions = griffe.load_extensions(str(ROOT / "tools" / "front_doors.py"))
    return griffe.load("accelera", search_paths=[str(ROOT / "src")], extensions=extensions)


def test_the_reference_finds_a_source_for_every_entry(sources: Any) -> None:
    lost = []
    for door in doors():
        for name in re.findall(rf"^::: {re.escape(door)}\.(\w+)$", reference_pages.page(door), re.MULTILINE):
            found = sources[f"{door}.{name}".partition(".")[2]]
            if (found.final_target if found.is_alias else found).is_module:
                lost.append(f"{door}.{name}")
    assert lost == []


def test_fields_are_explained_in_the_reference(sources: Any) -> None:
    error = sources["execution.TaskFailure"].final_target["error"]
    assert error.docstring.value == "What the function raised, unchanged."


def test_the_package_that_can_be_called_shows_its_function(sources: Any) -> None:
    offload = sources["offload.offload"].final_target
    shown = {section.kind.value: section for section in offload.docstring.parse("numpy")}
    parameters = {each.name for each in shown["parameters"].value}
    assert parameters == {each.name for each in offload.parameters}
    raised = {str(each.annotation) for each in shown["raises"].value}
    assert raised >= {"BudgetExceededError", "DeviceError"}
