"""Programs that tests run in processes of their own, and that print what they found as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def answer_of(*arguments: str, environment: Mapping[str, str] | None = None, told: str = "") -> Any:
    """Return what this interpreter prints in its last line when it is given ``arguments``, and ``told``."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        input=told,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])
