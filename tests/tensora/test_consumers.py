"""SciPy, scikit-learn and einops take Tensora's arrays where they take any of the array API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("consumers.py")


@pytest.mark.parametrize("library", ["scipy", "sklearn", "einops"])
def test_functions_agree_with_numpy(library: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), library],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(ran.stdout.split()) >= 3
