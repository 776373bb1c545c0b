"""Parts of ``make test-install`` that need no environment: pins, interpreters, tags of wheels, lists."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT
from tests.core.environment import core_requirements, optional_requirements
from tools.install_check import (
    LOWEST_EXTRAS,
    CheckError,
    interpreters,
    listed_tests,
    lowest_pins,
    supports,
)

REQUIREMENTS = [
    "numpy>=2.0",
    "exceptiongroup>=1.2; python_version < '3.11'",
    "zarr>=3.1; python_version >= '3.11' and extra == 'zarr'",
    "zarr>=2.18.3; python_version < '3.11' and extra == 'zarr'",
    "h5py>=3.11,<5; extra == 'hdf5'",
    "accelera-engine[zarr]; extra == 'service'",
]


@pytest.mark.parametrize(
    ("version", "extras", "pins"),
    [
        ((3, 11), (), ["numpy==2.0"]),
        ((3, 10), (), ["exceptiongroup==1.2", "numpy==2.0"]),
        ((3, 10), ("zarr",), ["exceptiongroup==1.2", "numpy==2.0", "zarr==2.18.3"]),
        ((3, 12), ("hdf5", "service", "zarr"), ["h5py==3.11", "numpy==2.0", "zarr==3.1"]),
    ],
)
def test_lowest_pins_follow_markers_and_extras(
    version: tuple[int, int], extras: tuple[str, ...], pins: list[str]
) -> None:
    assert lowest_pins(REQUIREMENTS, version, extras) == pins


def test_lowest_pins_need_a_lower_bound() -> None:
    with pytest.raises(CheckError, match="'rich<15' found"):
        lowest_pins(["rich<15"], (3, 11))


def test_requirements_that_are_checked_have_lower_bounds() -> None:
    requirements = core_requirements()
    for extra in LOWEST_EXTRAS:
        requirements += optional_requirements()[extra]
    assert len(lowest_pins(requirements, (3, 11))) >= len(core_requirements()) - 1


def _executable(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_interpreters_are_those_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim that fails is left out, and of two with one version the first counts."""
    major, minor = sys.version_info[:2]
    other = (3, 10) if minor != 10 else (3, 12)
    failing = (3, 14) if minor != 14 else (3, 13)
    _executable(tmp_path / "first", f"python{other[0]}.{other[1]}", f"echo {other[0]} {other[1]}")
    _executable(tmp_path / "first", f"python{failing[0]}.{failing[1]}", "exit 127")
    _executable(tmp_path / "second", f"python{other[0]}.{other[1]}", "exit 1")
    _executable(tmp_path / "second", f"python{major}.{minor}", f"echo {major} {minor}")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    assert [(python.path, python.version) for python in interpreters()] == [
        (sys.executable, (major, minor)),
        (str(tmp_path / "first" / f"python{other[0]}.{other[1]}"), other),
    ]


@pytest.mark.parametrize(
    ("tags", "versions"),
    [
        ("cp311-cp311-linux_x86_64", {(3, 11)}),
        ("cp312-abi3-manylinux_2_28_x86_64", {(3, 12), (3, 13), (3, 14)}),
    ],
)
def test_wheel_supports_the_versions_of_its_tag(tags: str, versions: set[tuple[int, int]]) -> None:
    wheel = Path(f"accelera_engine-0.1.0-{tags}.whl")
    assert {version for version in ((3, n) for n in range(10, 15)) if supports(wheel, version)} == versions


def test_listed_tests_exist() -> None:
    names = [*listed_tests(False), *listed_tests(True)]
    assert len(names) > 30
    assert [name for name in names if not (ROOT / name).is_file()] == []
