"""What every test shares: reproducible runs in any order, Ctrl-C, a cache, and the `cuda` marker's skip."""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Torch's threads sleep between its loops instead of spinning, here and in what tests start.

It is set before torch is loaded: where two test processes share two cores, threads that spin take them from
those that compute."""

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
"""The same for the threads of BLAS: they spin for 2⁴ ticks of the clock instead of 2²⁶.

Products of small tiles on two busy cores took ten times as long. Test processes inherit it from the one that
starts them: some plugin loads NumPy before this file is read.
"""

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


@pytest.fixture(scope="module", autouse=True)
def imports_set_aside() -> None:
    """Set what exists before a file's tests aside: ``gc.collect()`` then looks at what they make.

    All test files and what they import are a million objects and more, a second for each collection.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_measured(cache_of_tests: Path) -> Iterator[None]:
    """Forget rates of functions and devices after each test: none must decide what another does."""
    yield
    book = sys.modules.get("accelera.execution.strategy.history")
    if book is not None:
        book.shared_history.cache_clear()
    (cache_of_tests / "rates.json").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Let no test's numbers depend on which tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(
            0
        )  # torch.manual_seed notes the stack for devices that are not there
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture
def own_logger() -> Iterator[logging.Logger]:
    """Return this library's logger, whose level and handlers are put back."""
    logger = logging.getLogger("accelera")
    level, handlers = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the test that changes the process for those after it, not one of those that happens to notice."""
    before = _state()
    yield
    after = _state()
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    told = {name: (before.get(name), after.get(name)) for name in changed if not _is_new(name, before)}
    assert not told, f"left behind (was, is): {told}"


def _is_new(name: str, before: Mapping[str, Any]) -> bool:
    """Whether it is a variable that some library has set, as many do when they are imported."""
    return name[0] == "$" and name not in before and not name.startswith("$ACCELERA_")


def _state() -> dict[str, Any]:
    """Return what tests share with all others of their process, and differs from the usual."""
    state: dict[str, Any] = {f"${name}": value for name, value in os.environ.items()}
    state.pop("$PYTEST_CURRENT_TEST", None)
    state |= {"folder": os.getcwd(), "SIGINT": signal.getsignal(signal.SIGINT), "NumPy's errors": np.geterr()}
    state["__main__"] = getattr(sys.modules["__main__"], "__file__", None)  # what a spawned process imports
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "accelera" and isinstance(logger, logging.Logger):
            told = (logger.level, logger.propagate, logger.disabled, len(logger.handlers))
            state |= {f"logger {name}": told} if told != (logging.NOTSET, True, False, 0) else {}
    return state | _state_of_torch()


def _state_of_torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    usual = {
        "gradients": (torch.is_grad_enabled(), True),
        "inference mode": (torch.is_inference_mode_enabled(), False),
        "default dtype": (torch.get_default_dtype(), torch.float32),
        "default device": (str(torch.get_default_device()), "cpu"),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), False),
        "autocast": (torch.is_autocast_enabled("cpu"), False),
        "threads": (torch.get_num_threads(), _threads_of_torch()),
        "charged to a model": (_is_charged(), False),
        "intercepted": (_is_intercepted(), False),
    }
    return {f"torch: {name}": value for name, (value, expected) in usual.items() if value != expected}


def _is_charged() -> bool:
    """Whether new tensors still come from the memory of an offloaded model: its graph is alive."""
    scopes = sys.modules.get("accelera.offload.allocation_scope")
    if scopes is None or not scopes._THREAD.entries:
        return False
    gc.collect()  # a graph in a cycle, as an exception with its traceback makes
    return bool(scopes._THREAD.entries)


def _is_intercepted() -> bool:
    """Whether calls of torch still go to accelera: a test enabled it, and did not disable it."""
    config = sys.modules.get("accelera.interceptor.config")
    return config is not None and config.active_config() is not None


@functools.cache
def _threads_of_torch() -> int:
    """Return how many threads torch had when it was first seen."""
    return int(sys.modules["torch"].get_num_threads())


class FailuresAtOnce:
    """Names of failed tests as soon as they fail: a log that is cut off has no summary.

    Also of the test at which a worker process died, for which xdist makes a report as well.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = " ".join((crash.message if crash else str(report.longrepr)).split())
            why = why if len(why) <= 600 else f"{why[:300]} ... {why[-300:]}"
            part = f" ({report.when})" if report.when in ("setup", "teardown") else ""
            self._terminal.write(f"\nFAILED {report.nodeid}{part}: {why}\n", flush=True)


@pytest.hookimpl(trylast=True)  # the terminal is there by then
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


def has_driver() -> bool:
    """Whether a driver of NVIDIA's shows itself."""
    devices = (*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg"))
    return bool(devices) or shutil.which("nvidia-smi") is not None


@functools.cache
def has_cuda() -> bool:
    """Whether torch computes on an NVIDIA GPU here; it is loaded only where a driver is."""
    if not has_driver():
        return False
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.version.cuda is not None and torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not has_cuda():
        pytest.skip("needs a CUDA device that torch finds")
