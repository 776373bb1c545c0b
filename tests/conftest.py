"""What every test shares: reproducible Hypothesis runs, Ctrl-C, and the `cuda` marker's skip."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess

import pytest
from hypothesis import settings

settings.register_profile("accelera", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("accelera")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: what the tests start must hear Ctrl-C all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def has_cuda() -> bool:
    """Whether an NVIDIA GPU answers, asked without loading torch."""
    if shutil.which("nvidia-smi") is None:
        return False
    answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and "GPU" in answer.stdout


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not has_cuda():
        pytest.skip("needs a CUDA device; nvidia-smi finds none")
