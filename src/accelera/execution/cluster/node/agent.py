"""The one process on a node that carries leases out, on threads and on a GPU if it has one."""

from __future__ import annotations

import functools
import platform
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import accelera
from accelera.execution.cluster.contract import Lease, Part, Range
from accelera.execution.cluster.node.learned import LearnedPace
from accelera.execution.cluster.node.leased import Leased
from accelera.execution.cluster.node.marks import read_marks, sweep_marks
from accelera.execution.cluster.packing import unpack
from accelera.execution.executors.contract import GpuExecutor, Lane
from accelera.execution.executors.device import DeviceLane
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.shares import DeviceShare
from accelera.execution.work.guarding import guarded
from accelera.execution.work.pieces import Side

LEASES: Final = 2
"""How many are carried out at once, at most."""
FUNCTIONS_KEPT = 16
"""Functions of earlier leases that need not be shipped again."""


class _Known(NamedTuple):
    function: Callable[[Any], Any]
    learned: LearnedPace


class Agent:
    """Carries leases out, two at once at most, with no more than ``workers`` threads at work in all.

    With a ``gpu`` both sides take from the same lease; what the GPU fails at the processors do.
    """

    def __init__(self, workers: int, gpu: GpuExecutor | None = None) -> None:
        sweep_marks()
        self._workers = workers
        self._permits = {Side.CPU: threading.Semaphore(workers), Side.GPU: threading.Semaphore(1)}
        self._lane, self._alone = _lane(workers), _lane(1)
        self._gpu = None if gpu is None else DeviceLane(gpu, getattr(gpu, "name", "gpu"))
        self._gpu_threads = ThreadPoolExecutor(LEASES, "accelera-gpu")
        """They stay: torch keeps the memory that it takes on a device for each of them apart."""
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._leases: dict[str, Leased] = {}

    def hello(self) -> dict[str, str]:
        """Return the versions that run here."""
        return {"Python": platform.python_version(), "Accelera": accelera.__version__}

    def run(self, lease: Lease) -> Iterator[Part]:
        """Yield what is done of ``lease``."""
        known = self._looked_up(lease.function)
        gpu = self._gpu if lease.gpu and not lease.alone else None
        name, pace = (None, None) if gpu is None else (gpu.name, known.learned.pace)
        leased = Leased(lease, known.function, self._workers, self._permits, name, pace)
        self._leases[lease.id] = leased
        try:
            self._begin(leased, lease, gpu)
            yield from leased.parts()
        finally:
            leased.stop()
            del self._leases[lease.id]
        if gpu is not None:
            shares = leased.watch.shares()
            known.learned.learn(*(shares.get(each, DeviceShare()) for each in (self._lane.name, gpu.name)))

    def stop(self, lease: str) -> None:
        """Begin nothing more of a lease."""
        if lease in self._leases:
            self._leases[lease].stop()

    def autopsy(self, lease: str) -> list[Range]:
        """Return what was under way of a lease when the agent before this one died."""
        return read_marks(lease)

    def fetch(self, reference: Any) -> bytes:
        """Return what was put into the cluster; where an agent runs by itself it is there already."""
        found: bytes = reference
        return found

    def _begin(self, leased: Leased, lease: Lease, gpu: Lane | None) -> None:
        if lease.short and gpu is None:
            _carry_out(leased, self._alone)
            return
        cpu = self._alone if lease.alone else self._lane
        beside = None
        if gpu is not None:
            work = guarded(leased, functools.partial(gpu.work, leased, caller=True))
            beside = self._gpu_threads.submit(work)
        threading.Thread(target=_carry_out, args=(leased, cpu, beside), daemon=True).start()

    def _looked_up(self, reference: Any) -> _Known:
        """Return the function; it is shipped once, however many leases name it."""
        known = self._known.get(reference)
        if known is None:
            known = _Known(unpack(self.fetch(reference)), LearnedPace(self._workers))
            self._known[reference] = known
            if len(self._known) > FUNCTIONS_KEPT:
                self._known.popitem(last=False)
        return known


def _lane(workers: int) -> Lane:
    """Return threads for which whatever a task raises, ``SystemExit`` too, is that task's failure."""
    lane = ThreadsExecutor(workers)
    lane.caught = BaseException
    return lane


def _carry_out(leased: Leased, cpu: Lane, gpu: Future[None] | None = None) -> None:
    """Carry a lease out beside what may be done of it on a GPU; end it when neither finds anything more."""
    try:
        cpu.work(leased, caller=True)
    except BaseException as error:
        leased.break_down(error)
    finally:
        if gpu is not None and not gpu.cancel():
            gpu.result()
        leased.end()
