"""Layers of csrc: the folders that each folder may include."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT

CSRC = ROOT / "csrc"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Of Tensora: base < {kernels, device} < core < {cuda, jit} < functions < ops < bindings.
BASE = {"common", "tensora/base"}
CORE = BASE | {"tensora/kernels", "tensora/device", "tensora/core"}
FUNCTIONS = CORE | {"tensora/cuda", "tensora/jit", "tensora"}
ENGINE = {"common", "cpu", "cuda", "memory", "planner", "policy", "trace", "simulator", "simulator/hierarchy"}

ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "cpu": {"common"},
    "cuda": {"common"},
    "no_cuda": {"common", "cuda"},
    "memory": {"common"},
    "planner": {"common"},
    "policy": {"common"},
    "trace": {"common", "policy"},
    "simulator": {"common", "policy", "trace"},
    "simulator/hierarchy": {"common", "policy", "trace", "simulator"},
    "torch": {"common"},
    "bindings": ENGINE,
    "tensora/base": {"common"},
    "tensora/kernels": BASE,
    "tensora/device": BASE,
    "tensora/core": CORE,
    "tensora/cuda": CORE,
    "tensora/jit": CORE | {"tensora/cuda"},
    "tensora": FUNCTIONS,
    "tensora/ops": FUNCTIONS,
    "tensora/bindings": FUNCTIONS | {"tensora/ops"},
}
"""Folders from which a file of a folder may include headers, in addition to the same folder."""


def sources() -> Iterator[Path]:
    """Yield the C++ and CUDA files of csrc."""
    yield from (path for path in sorted(CSRC.rglob("*")) if path.suffix in {".h", ".cpp", ".cu", ".cuh"})


def included(path: Path) -> Iterator[Path]:
    """Yield the files of csrc that a file includes."""
    for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        header = next((base / name for base in (CSRC, path.parent) if (base / name).is_file()), None)
        if header is not None:
            yield header


def folder(path: Path) -> str:
    """Return the folder of a file, relative to csrc."""
    return path.parent.relative_to(CSRC).as_posix()


def violations() -> list[str]:
    """Return the includes that the table does not allow, as ``file includes header``."""
    return [
        f"{path.relative_to(CSRC)} includes {header.relative_to(CSRC)}"
        for path in sources()
        for header in included(path)
        if folder(header) != folder(path) and folder(header) not in ALLOWED[folder(path)]
    ]


def test_includes_follow_the_layers() -> None:
    assert violations() == []


def test_layers_have_no_cycle() -> None:
    graph = {name: allowed - {name} for name, allowed in ALLOWED.items()}
    assert set(TopologicalSorter(graph).static_order()) == set(ALLOWED)


def test_every_folder_has_a_layer() -> None:
    assert {folder(path) for path in sources()} == set(ALLOWED)


def test_upward_include_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensora/core/tensor.h", "tensora/jit/capture.h"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("#pragma once\n")
    (tmp_path / "tensora/core/op.cpp").write_text('#include "tensora/jit/capture.h"\n')
    monkeypatch.setattr(f"{__name__}.CSRC", tmp_path)
    assert violations() == ["tensora/core/op.cpp includes tensora/jit/capture.h"]
