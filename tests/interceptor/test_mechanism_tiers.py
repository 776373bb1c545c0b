"""Which way to catch calls is used, and what is said of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accelera.devices import torch_shim
from accelera.errors import BackendMissingError, SettingError
from accelera.interceptor import hooks
from accelera.interceptor.hooks import OPERATORS, registration, shim, stable
from tests.architecture.repository import run_python

SOURCES = Path(__file__).parents[2] / "csrc" / "torch"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have the tiers looked for anew, and again afterwards."""
    monkeypatch.delenv("ACCELERA_INTERCEPTION", raising=False)
    hooks.disarm()
    registration.look_again()
    yield monkeypatch
    hooks.disarm()
    registration.look_again()


def absent(path_of: Callable[[], Path]) -> Callable[[], Path]:
    """Return a function that names a file which is not there, beside the one that is."""
    missing = path_of().with_name(f"no{path_of().name}")
    return lambda: missing


def test_the_fastest_that_works_is_used(fresh: pytest.MonkeyPatch) -> None:
    if shim.fault() is None:
        assert (hooks.tier(), hooks.why()) == ("shim", registration.BACKENDS[0].means)
    fresh.setattr(shim, "shim_path", absent(shim.shim_path))
    registration.look_again()
    if stable.fault() is None:
        assert hooks.tier() == "stable"
    fresh.setattr(stable, "stable_path", absent(stable.stable_path))
    registration.look_again()
    assert hooks.tier() == "python"
    assert "were not built" in hooks.why()


def test_make_builds_the_shim(fresh: pytest.MonkeyPatch) -> None:
    """With the torch that `make` installs, it compiles; a test that skips without it would not notice."""
    pinned = (SOURCES.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    if f"torch=={torch.__version__.partition('+')[0]}\n" in pinned:
        assert shim.fault() is None


def test_a_shim_for_another_torch_is_refused_unopened(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_shim-0.1.so").write_bytes(b"never opened")
    fresh.setattr(shim, "shim_path", lambda: tmp_path / f"_shim-{torch.__version__}.so")
    told = f"the shim was built for torch 0.1, this is torch {torch.__version__}"
    assert shim.fault() == f"{told}; `accelera build-shim` builds it"
    registration.look_again()
    assert hooks.tier() in ("stable", "python")
    assert "built for torch 0.1" in hooks.why()


@pytest.mark.parametrize("way", [shim, stable])
def test_a_broken_library_is_refused(way: Any, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    fresh.setattr(way, f"{way.__name__.rpartition('.')[2]}_path", lambda: broken)
    assert "cannot be loaded" in way.fault()


def test_a_way_that_does_not_work_can_be_asked_for_in_vain(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(shim, "shim_path", absent(shim.shim_path))
    fresh.setenv("ACCELERA_INTERCEPTION", "shim")
    registration.look_again()
    assert hooks.tier() == "none"
    with pytest.raises(BackendMissingError, match="ACCELERA_INTERCEPTION=shim and no such way works here"):
        hooks.arm({"mm": torch.mm}, 0, 0)
    fresh.setenv("ACCELERA_INTERCEPTION", "magic")
    with pytest.raises(SettingError, match="auto, shim, stable or python"):
        hooks.tier()


def test_a_torch_that_hands_out_no_kernels_is_told(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("ACCELERA_INTERCEPTION", "python")
    fresh.delattr(torch.library, "get_kernel")
    registration.look_again()
    with pytest.raises(BackendMissingError, match="get_kernel"):
        hooks.arm({"mm": torch.mm}, 0, 0)


def test_python_and_cpp_have_the_same_operators(fresh: pytest.MonkeyPatch) -> None:
    lines = (SOURCES / "operators.def").read_text(encoding="utf-8").splitlines()
    named = [line.rstrip(")").rpartition(", ")[2] for line in lines if line.startswith("OPERATOR(")]
    assert named == [name.replace(".", "_") for name in OPERATORS]
    rules = [line.split(", ")[1].lower() for line in lines if line.startswith("OPERATOR(")]
    assert rules == list(OPERATORS.values())
    if shim.fault() is None:
        assert shim.make().operators == set(OPERATORS)


@pytest.mark.parametrize("way", ["shim", "stable", "python"])
def test_arming_is_quiet_and_ends_with_the_process(
    way: str, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh.setenv("ACCELERA_INTERCEPTION", way)
    if hooks.tier() == "none":
        pytest.skip(f"this way to catch calls was not built here: {hooks.why()}")
    code = (
        "import torch\n"
        "from accelera.interceptor import hooks\n"
        "hooks.arm(dict.fromkeys(hooks.OPERATORS, torch.mm), 1 << 40, 1 << 20)\n"
        "torch.ones(3, 3) @ torch.ones(3, 3) + 1"
    )
    ran = run_python("-W", "error", "-c", code, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_documentation_lists_the_operators(tmp_path: Path) -> None:
    ran = run_python(str(SOURCES.parents[1] / "tools" / "operator_table.py"), "--check", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_info_says_how(tmp_path: Path) -> None:
    shown = run_python("-m", "accelera", "info", cwd=tmp_path).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("interception")]
    assert line.split()[1].rstrip(":") in ("shim", "stable", "python")


def test_info_lists_what_a_wheel_answers_in_cpp(tmp_path: Path) -> None:
    if stable.fault() is not None:
        pytest.skip("the kernels over torch's C functions were not built")
    wished = {"ACCELERA_INTERCEPTION": "stable"}
    shown = run_python("-m", "accelera", "info", cwd=tmp_path, environment=wished).stdout
    assert f"in C++: {', '.join(sorted(stable.operators()))}; every other operator in Python" in shown


def test_a_shim_is_found_without_loading_torch(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not shim.shim_path().exists():
        pytest.skip("no shim was built for this torch")
    code = (
        "import sys\n"
        "from accelera._inventory import facts\n"
        "told = facts()['interception']\n"
        "assert 'torch' not in sys.modules\n"
        "from accelera.interceptor import hooks\n"
        "assert told == {'tier': hooks.tier(), 'why': hooks.why(), 'compiled': 'all'}"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF files")
def test_the_libraries_keep_no_path(fresh: pytest.MonkeyPatch) -> None:
    for path in (shim.shim_path(), stable.stable_path()):
        if path.exists():
            kept = str(Path(torch.__file__).parent).encode() in path.read_bytes()
            assert not kept, path


def test_a_shim_that_was_built_later_is_used_unless_its_sources_changed(
    fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder of what `accelera build-shim` made goes by the contents of the sources."""
    compiled = tmp_path / "accelera"
    shutil.copytree(SOURCES, compiled / "csrc" / "torch")
    fresh.setattr(torch_shim, "compiled_folder", lambda: compiled)
    fresh.setenv("ACCELERA_CACHE", str(tmp_path / "cache"))
    later = torch_shim.shim_for("9.9")
    assert later.is_relative_to(tmp_path / "cache")
    later.parent.mkdir(parents=True)
    later.write_bytes(b"compiled")
    assert torch_shim.shim_for("9.9").exists()
    with (compiled / "csrc" / "torch" / "shim.cpp").open("a") as source:
        source.write("// changed\n")
    assert not torch_shim.shim_for("9.9").exists()
    (compiled / "_shim-9.9.so").write_bytes(b"compiled with the package")
    assert torch_shim.shim_for("9.9") == compiled / "_shim-9.9.so"


def test_a_shim_that_cannot_be_built_says_why(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setenv("ACCELERA_CACHE", str(tmp_path))
    with pytest.raises(BackendMissingError, match=r"no C[+][+] compiler no-such-compiler"):
        hooks.build_shim("no-such-compiler")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho this is no torch that I know; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BackendMissingError, match="this is no torch that I know"):
        hooks.build_shim(str(broken))
    assert not list(tmp_path.rglob("_shim-*"))
