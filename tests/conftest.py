"""What every test shares: reproducible Hypothesis runs, Ctrl-C, a cache, and the `cuda` marker's skip."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "accelera",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],  # how fast examples are made is the machine's affair
)
settings.load_profile("accelera")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: what the tests start must hear Ctrl-C all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep measured rates in a folder of the tests' own, which processes that they start use as well."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERA_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_measured(cache_of_tests: Path) -> Iterator[None]:
    """Forget rates of functions and devices after each test: none must decide what another does."""
    yield
    book = sys.modules.get("accelera.execution.learning.book")
    if book is not None:
        book.shared_book.cache_clear()
    (cache_of_tests / "rates.json").unlink(missing_ok=True)


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
