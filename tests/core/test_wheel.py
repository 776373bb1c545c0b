"""The wheel: what is in it, and that it works outside the checkout with the core dependencies alone."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from tests.core.environment import ROOT, closure, core_requirements, make_environment

CALLS = """
import torch, accelera
a = torch.randn(300, 200)
with accelera.intercepted(budget="64MiB", min_size=1, memory_threshold=0):
    assert torch.allclose(a @ a.T, a.mm(a.T)) and (a + a).shape == a.shape
assert accelera.stats().by_op
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `pip wheel .` does; what is compiled already is not compiled again."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ("wheel", ".", "--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", str(folder))
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (made,) = folder.glob("*.whl")
    return made


def installed(
    wheel: Path, folder: Path, distributions: dict[str, metadata.Distribution]
) -> Callable[..., Any]:
    """Install the wheel beside ``distributions``; return what runs a command of that environment."""
    python = make_environment(folder / "venv", distributions.values())
    words = ("install", "--no-deps", "--no-index", "-q", str(wheel))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, *words], check=True, capture_output=True)
    for shim in folder.glob("venv/lib/python*/site-packages/accelera/_shim-*"):
        shim.unlink()  # a build in isolation has none
    apart = folder / "apart"
    apart.mkdir()
    usual = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACCELERA_"))
    }

    def run(program: str, *words: str) -> str:
        ran = subprocess.run(
            [str(python.parent / program), *words],
            cwd=apart,
            env={**usual, "ACCELERA_CACHE": str(folder / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


def said(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield the fields of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        yield from email.message_from_bytes(archive.read(name)).items()


def test_one_wheel_serves_python_3_12_and_all_later_ones(wheel: Path) -> None:
    (tag,) = parse_wheel_filename(wheel.name)[3]
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    expected = ("cp312", "abi3") if sys.version_info >= (3, 12) else (own, own)
    assert (tag.interpreter, tag.abi) == expected


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"accelera", "accelera_engine"}
    assert {"accelera/py.typed", "accelera/_stable.so", "accelera/csrc/torch/shim.cpp"} <= set(names)
    assert any(name.startswith("accelera/_native.") and name.endswith(".so") for name in names)


def test_it_asks_for_the_core_and_says_where_the_project_is(wheel: Path) -> None:
    fields = list(said(wheel))
    asked = [Requirement(value) for name, value in fields if name == "Requires-Dist"]
    plain = {each.name for each in asked if each.marker is None or "extra" not in str(each.marker)}
    assert plain == {Requirement(each).name for each in core_requirements()}
    assert {value.partition(",")[0] for name, value in fields if name == "Project-URL"} >= {
        "Homepage",
        "Issues",
    }


def test_it_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    run = installed(wheel, tmp_path, closure(core_requirements()))
    a = np.random.default_rng(0).standard_normal((300, 200), np.float32)
    np.save(tmp_path / "apart" / "A.npy", a)
    np.save(tmp_path / "apart" / "B.npy", a.T)
    where = run(
        "python", "-c", "import accelera, accelera._native as n; print(accelera.__file__, n.__file__)"
    )
    assert str(ROOT) not in where
    found = json.loads(run("accelera", "info", "--json"))
    assert not any(found["extras"].values())
    run("accelera", "matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", "64MiB", "--quiet")
    np.testing.assert_allclose(np.load(tmp_path / "apart" / "C.npy"), a @ a.T, rtol=1e-4, atol=1e-3)
    run("python", "-W", "error", str(ROOT / "tests" / "core" / "programs" / "products.py"))


@pytest.mark.slow
def test_the_shim_is_built_after_the_installation(wheel: Path, tmp_path: Path) -> None:
    run = installed(wheel, tmp_path, closure([*core_requirements(), "torch"]))
    before = json.loads(run("accelera", "info", "--json"))["interception"]
    assert before["tier"] == "stable"
    assert "`accelera build-shim` builds it" in before["why"]
    run("python", "-c", CALLS)
    assert "shim" in run("accelera", "build-shim")
    assert json.loads(run("accelera", "info", "--json"))["interception"]["tier"] == "shim"
    run("python", "-c", CALLS)
    assert not list((tmp_path / "venv").rglob("_shim-*"))
