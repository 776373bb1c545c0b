"""History-based performance model: measured rates by function, kept in one small file from run to run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from accelera._atomic import atomic_write
from accelera._distribution import DISTRIBUTION
from accelera._fork_locks import ForkSafeLock
from accelera._json_values import parse_json
from accelera.errors import ArgumentError
from accelera.execution.arguments import WorkloadProfile
from accelera.execution.hardware.capabilities import HardwareCapabilities, model_name
from accelera.execution.kernel import key_of
from accelera.execution.strategy.rates import DeviceRates, RateEstimate, RateModel
from accelera.execution.strategy.strategy import Decision
from accelera.settings import cache_folder

_LIBRARIES = (DISTRIBUTION.replace("-", "_"), "numpy", "scipy", "torch")


@functools.cache
def machine_fingerprint() -> dict[str, Any]:
    """Return processor, cores, accelerators and versions; another of them, and nothing measured holds."""
    hardware = HardwareCapabilities.detect()
    return {
        "processor": model_name(),
        "cores": hardware.cpu_cores,
        "simd": list(hardware.cpu_simd_support),
        "accelerators": [list(each) for each in hardware.accelerators],
        "python": platform.python_version(),
        "libraries": _versions(),
    }


def _versions() -> dict[str, str | None]:
    """Return the versions that are installed, from the names of their folders.

    Loading ``importlib.metadata`` takes longer than many a batch, and loading the libraries much longer.
    """
    found: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                name, _, version = entry.name.removesuffix(".dist-info").partition("-")
                if version and entry.name.endswith(".dist-info") and found.get(name, "") is None:
                    found[name] = version
    return found


class CachedDecision(NamedTuple):
    """Last decision with its inputs; valid while the inputs and the estimates stay the same."""

    now: object
    """Everything that mattered beside the estimates."""
    estimates: Mapping[str, RateEstimate]
    decision: Decision
    pace: DeviceRates


@final
class FunctionHistory:
    """Rates by device, and how much has been run. Not thread-safe."""

    __slots__ = ("_rates", "batches", "choice", "estimates", "seconds", "since")

    def __init__(self) -> None:
        self.batches = 0
        """Batches that were recorded."""
        self.seconds = 0.0
        """Seconds that they took."""
        self.since: dict[str, float] = {}
        """Seconds of batches since a device was last sampled, by device."""
        self.estimates: dict[str, RateEstimate] = {}
        """What is known, by device."""
        self.choice: CachedDecision | None = None
        """The last decision; forgotten when an estimate has moved since."""
        self._rates: dict[str, RateModel] = {}

    def record(self, device: str, task_count: int, seconds: float, *, launches: bool) -> None:
        """Learn from a piece that ``device`` ran."""
        if device not in self._rates:
            self._rates[device] = RateModel(launches=launches)
        self._rates[device].record(task_count, seconds)
        self.since[device] = 0.0

    def batch(self, seconds: float) -> None:
        """Note that a batch is over, whose pieces have been recorded."""
        self.batches += 1
        self.seconds += seconds
        for device in self._rates:
            self.since[device] = self.since.get(device, 0.0) + seconds
        self._update_estimates()

    def samples(self, device: str) -> int:
        """Return how many samples of ``device`` there are."""
        rates = self._rates.get(device)
        return 0 if rates is None else rates.samples

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, for a file."""
        rates = {device: [rates.launches, *rates.state()] for device, rates in self._rates.items()}
        return {"batches": self.batches, "seconds": self.seconds, "since": self.since, "rates": rates}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> FunctionHistory:
        """Return the entry that ``state`` describes; raises where it cannot be one."""
        entry = FunctionHistory()
        entry.batches, entry.seconds = int(state["batches"]), float(state["seconds"])
        entry.since = {str(device): float(seconds) for device, seconds in state["since"].items()}
        for device, (launches, *rates) in state["rates"].items():
            entry._rates[device] = RateModel.of_state(rates, launches=bool(launches))
        entry._update_estimates()
        return entry

    def _update_estimates(self) -> None:
        found = ((device, rates.estimate()) for device, rates in self._rates.items())
        self.estimates = {device: estimate for device, estimate in found if estimate is not None}
        choice = self.choice
        if choice is not None and not self._still_holds(choice):
            self.choice = None

    def _still_holds(self, choice: CachedDecision) -> bool:
        return all(
            device in self.estimates and estimate.is_near(self.estimates[device])
            for device, estimate in choice.estimates.items()
        )


_LOGGER = logging.getLogger("accelera.execution")

FORMAT = 1
MOST_ENTRIES = 2000
"""Of more functions the ones that were used longest ago are left out of the file."""
SAVE_EVERY_S = 60.0
"""Changes go to the file when it is older, and at the end of the process."""


@final
class PerformanceHistory:
    """Entries by function and size, and how long devices take to begin.

    Parameters
    ----------
    path
        Where it is kept; None: in memory only. A file that cannot be read is left alone, and replaced by the
        next save.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = ForkSafeLock()
        """Held while something is changed."""
        self.begun: set[tuple[str, str]] = set()
        """Keys of functions and models of the GPUs on which they have run in this process."""
        self.begun_devices: set[str] = set()
        """Devices that have run something in this process."""
        self._path = path
        self._clock = clock
        self._changed = False
        self._saved_s = clock()
        self._begin_s: dict[str, float] = {}
        self._entries: dict[str, FunctionHistory] = {}
        if path is not None:
            self._load(path)

    def entry(self, key: str) -> FunctionHistory | None:
        """Return what is known of a function's tasks of one size; None when it never ran."""
        return self._entries.get(key)

    def begin_s(self, device: str) -> float:
        """Return the seconds that ``device`` would take now, before its first piece, to become usable."""
        return 0.0 if device in self.begun_devices else self._begin_s.get(device, 0.0)

    def changing(self, key: str) -> FunctionHistory:
        """Return the entry to be changed; the lock is held."""
        entry = self._entries.pop(key, None) or FunctionHistory()
        self._entries[key] = entry
        self._changed = True
        return entry

    def began(self, device: str, seconds: float) -> None:
        """Note how long ``device`` took to become usable, on top of its first piece; the lock is held."""
        before = self._begin_s.get(device)
        self._begin_s[device] = seconds if before is None else (before + seconds) / 2

    def save_if_old(self) -> None:
        """Save what has changed, unless that was done a short while ago."""
        if self._changed and self._clock() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Put what has changed into the file, as a whole or not at all; where that fails, go on without."""
        if self._path is None or not self._changed:
            return
        with self.lock:
            self._changed, self._saved_s = False, self._clock()
            entries = list(self._entries.items())[-MOST_ENTRIES:]
            functions = {key: entry.state() for key, entry in entries}
            state = {
                "format": FORMAT,
                "machine": machine_fingerprint(),
                "begin_s": self._begin_s,
                "functions": functions,
            }
            text = json.dumps(state)
        try:
            _replace(self._path, text)
        except OSError as error:
            _LOGGER.debug("measured rates cannot be kept in %s: %s", self._path, error)

    def _load(self, path: Path) -> None:
        try:
            state = parse_json(path.read_bytes())
            if state["format"] != FORMAT or state["machine"] != machine_fingerprint():
                raise ArgumentError("it is of another machine, or of other libraries")
            self._begin_s, self._entries = _begin_seconds(state), _entries(state)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            _LOGGER.debug("the measured rates in %s are not used: %r", path, error)


@functools.cache
def shared_history() -> PerformanceHistory:
    """Return the history of this process, kept in the user's cache folder."""
    history = PerformanceHistory(cache_folder() / "rates.json")
    atexit.register(history.save)
    return history


def _begin_seconds(state: Mapping[str, Any]) -> dict[str, float]:
    begins = {str(device): float(seconds) for device, seconds in state["begin_s"].items()}
    if not all(0 <= seconds < math.inf for seconds in begins.values()):
        raise ArgumentError(f"{begins} are no seconds")
    return begins


def _entries(state: Mapping[str, Any]) -> dict[str, FunctionHistory]:
    return {str(key): FunctionHistory.of_state(entry) for key, entry in state["functions"].items()}


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


Sample = tuple[str, int, float]
"""Device, tasks of a piece, seconds it took."""


class DevicePair(NamedTuple):
    """The two devices of a manager."""

    cpu: str
    """As results call it."""
    cpu_model: str
    """Under which its measurements are kept."""
    workers: int
    """How many pieces it runs at once."""
    gpu: str = ""
    """As results call it; empty: there is none."""
    gpu_model: str = ""
    """Under which its measurements are kept."""
    also_cpu: str = ""
    """Under what other name results call pieces of the CPU, such as those that went to worker processes."""

    @staticmethod
    def of(cpu: object, cpu_name: str, gpu: object | None, gpu_name: str) -> DevicePair:
        """Return what two executors are called; one that does not tell its workers counts as one."""
        given = getattr(cpu, "workers", 1)
        workers = given if isinstance(given, int) and given > 0 else 1
        sides = DevicePair(
            cpu_name,
            f"{cpu_name} {_type_of(cpu)} {workers}",
            workers,
            also_cpu=getattr(cpu, "name_of_processes", ""),
        )
        if gpu is None:
            return sides
        return sides._replace(gpu=gpu_name, gpu_model=f"{gpu_name} {_type_of(gpu)}")


@final
class PerformanceModel:
    """Reads and writes the history of one pair of devices.

    Parameters
    ----------
    history
        Returns where everything is kept; called when something is first looked up.
    sides
        The devices.
    """

    def __init__(self, history: Callable[[], PerformanceHistory], sides: DevicePair) -> None:
        self._history = history
        self.sides = sides

    def known(self, function: Callable[..., Any], profile: WorkloadProfile | None) -> FunctionHistory | None:
        """Return what is known of such a batch; None when none ever ran."""
        return self._history().entry(key_of(function, profile))

    def beginning(self) -> tuple[float, bool]:
        """Return the seconds the GPU would take now to become usable, and whether it has run before."""
        history, model = self._history(), self.sides.gpu_model
        begun = model in history.begun_devices
        return (0.0 if begun else history.begin_s(model)), begun

    def record(
        self,
        function: Callable[..., Any],
        profile: WorkloadProfile | None,
        samples: Sequence[Sample],
        seconds: float,
        speeds: tuple[float, float],
    ) -> None:
        """Learn from a batch that took ``seconds``.

        Parameters
        ----------
        function, profile
            What ran.
        samples
            Its pieces that went well.
        seconds
            What all of it took.
        speeds
            The shares of CPU and GPU that others left, by which measured seconds are multiplied.
        """
        key, history, sides = key_of(function, profile), self._history(), self.sides
        first: Sample | None = None
        with history.lock:
            entry = history.changing(key)
            for sample in samples:
                device, count, took_s = sample
                if device in (sides.cpu, sides.also_cpu):
                    entry.record(sides.cpu_model, count, took_s * speeds[0], launches=False)
                elif device == sides.gpu and (key, sides.gpu_model) not in history.begun:
                    history.begun.add((key, sides.gpu_model))
                    first = sample
                elif device == sides.gpu:
                    entry.record(sides.gpu_model, count, took_s * speeds[1], launches=True)
            entry.batch(seconds)
            if first is not None:
                self._learn_begin(history, entry, first)
        history.save_if_old()

    def _learn_begin(self, history: PerformanceHistory, entry: FunctionHistory, first: Sample) -> None:
        """Learn from a function's first piece how long the GPU took to begin, if it had not run before."""
        model = self.sides.gpu_model
        cold = model not in history.begun_devices
        history.begun_devices.add(model)
        estimate = entry.estimates.get(model)
        if cold and estimate is not None:
            history.began(model, max(0.0, first[2] - estimate.seconds(first[1])))


def _type_of(executor: object) -> str:
    return f"{type(executor).__module__}.{type(executor).__qualname__}"
