"""The compiled half keeps its table of contents, its stub and its null twin in step."""

from __future__ import annotations

import re

from accelera import _native
from tests.architecture.repository import PACKAGE, ROOT

CSRC = ROOT / "csrc"


def stems(folder: str, suffix: str) -> set[str]:
    return {path.stem for path in (CSRC / folder).glob(f"*{suffix}")}


def test_every_binding_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"\bX\((\w+)\)", (CSRC / "bindings" / "native.cpp").read_text(encoding="utf-8"))
    assert set(listed) - {"X"} == stems("bindings", ".cpp") - {"native"}


def test_every_cuda_file_has_a_null_twin() -> None:
    assert stems("cuda", ".cu") == stems("no_cuda", ".cpp")


def test_the_stub_names_what_the_extension_has() -> None:
    stub = (PACKAGE / "_native.pyi").read_text(encoding="utf-8")
    declared = set(re.findall(r"^(?:def|class) (\w+)|^([A-Za-z]\w*):", stub, re.MULTILINE))
    names = {name for pair in declared for name in pair if name}
    assert names == {name for name in dir(_native) if not name.startswith("_")}
