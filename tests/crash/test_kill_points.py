"""A run may be killed after any of its changes of the disk: the next one gives the same bits and no litter.

Here a few kill points of each scenario are tried. All of them, in about two minutes on an idle machine:
``EVERY_KILL_POINT=1 pytest tests/crash``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import answer_of
from tests.crash.kill_points import KILLER
from tests.crash.scenarios import SCENARIOS

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SAMPLED = "4"

pytestmark = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="the killer is compiled, for Linux"
)


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shared object that counts changes of the disk and ends the process."""
    found = tmp_path_factory.mktemp("killer") / "killer.so"
    assert COMPILER is not None
    source = HERE / "killer.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", found, source, "-ldl"], check=True)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_killed_anywhere_is_done_again(name: str, killer: Path) -> None:
    for suffix, library in ((".zarr", "zarr"), (".h5", "h5py")):
        if SCENARIOS[name].out.endswith(suffix):
            pytest.importorskip(library)
    points = "all" if os.environ.get("EVERY_KILL_POINT") else SAMPLED
    preloaded = {KILLER: str(killer), "LD_PRELOAD": str(killer)}
    found = answer_of("-m", "tests.crash.kill_points", name, points, environment=preloaded)
    assert found["points"] > 20, "creating, writing, noting and publishing are counted"
    assert found["wrong"] == []
