"""Node agent: the one process on a node that carries leases out, on threads and on a GPU if it has one."""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, final

import accelera
from accelera.execution.cluster.contract import Lease, LeasePart, Range, unpack
from accelera.execution.cluster.lease import LeaseQueue, read_in_flight, remove_old_logs
from accelera.execution.executors.device import DeviceLane, default_gpu
from accelera.execution.executors.lanes import GpuExecutor, Lane
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.executors.torch_device import TorchDeviceExecutor
from accelera.execution.kernel import LruDict
from accelera.execution.result import DeviceShare
from accelera.execution.strategy.rates import DeviceRates
from accelera.execution.tasks.queue import DeviceKind
from accelera.execution.tasks.run import in_context

PATIENCE: Final = 100
"""An idle side is tried again after the other side has worked for the time of so many tasks."""


@final
class LearnedRates:
    """Rates of both sides learned from earlier leases. Thread-safe.

    The first lease does not count: it contains one-time costs such as loading a library.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._begun = False
        self._pace: DeviceRates | None = None
        self._alone_s = 0.0
        self._lock = threading.Lock()

    @property
    def pace(self) -> DeviceRates | None:
        """How fast both sides are; None: to be found out."""
        return self._pace

    def learn(self, cpu: DeviceShare, gpu: DeviceShare) -> None:
        """Take note of what each side did of a lease."""
        with self._lock:
            if cpu.tasks and gpu.tasks:
                cpu_task_s, gpu_task_s = cpu.busy_s / cpu.tasks, gpu.busy_s / gpu.tasks
                known = self._begun and cpu_task_s > 0 and gpu_task_s > 0
                self._pace = DeviceRates(cpu_task_s, self._workers, gpu_task_s) if known else None
                self._begun, self._alone_s = True, 0.0
            elif self._pace is not None:
                self._alone_s += max(cpu.busy_s / self._workers, gpu.busy_s)
                if self._alone_s > PATIENCE * max(self._pace.cpu_task_s, self._pace.gpu_task_s):
                    self._pace = None


def node_gpu(device: str | None) -> GpuExecutor | None:
    """Return what computes on ``device``, or on the first accelerator of this node; None where there is none.

    Raises UnknownNameError for a name that is none, DeviceError when the node has no such device.
    """
    gpu = default_gpu(device)
    if isinstance(gpu, TorchDeviceExecutor):
        gpu.outputs_to = "cpu"
    return gpu


LEASES: Final = 2
"""How many are carried out at once, at most."""
SHIPPED_KEPT = 16
"""Functions of earlier leases that need not be shipped again."""


class _ShippedFunction(NamedTuple):
    function: Callable[[Any], Any]
    learned: LearnedRates


class Agent:
    """Carries leases out, two at once at most, with no more than ``workers`` threads at work in all.

    With a ``gpu`` both sides take from the same lease; what the GPU fails at the processors do.
    """

    def __init__(self, workers: int, gpu: GpuExecutor | None = None) -> None:
        remove_old_logs()
        self._workers = workers
        self._permits = {DeviceKind.CPU: threading.Semaphore(workers), DeviceKind.GPU: threading.Semaphore(1)}
        self._lane, self._single_lane = _lane(workers), _lane(1)
        self._gpu = None if gpu is None else DeviceLane(gpu, getattr(gpu, "name", "gpu"))
        self._gpu_threads = ThreadPoolExecutor(LEASES, "accelera-gpu")
        """The threads stay alive: torch keeps a separate memory cache on a device for each of them."""
        self._functions: LruDict[Any, _ShippedFunction] = LruDict(SHIPPED_KEPT)
        self._leases: dict[str, LeaseQueue] = {}

    def versions(self) -> dict[str, str]:
        """Return the versions that run here."""
        return {"Python": platform.python_version(), "Accelera": accelera.__version__}

    def run(self, lease: Lease) -> Iterator[LeasePart]:
        """Yield what is done of ``lease``."""
        known = self._load_function(lease.function)
        gpu = self._gpu if lease.gpu and not lease.alone else None
        name, pace = (None, None) if gpu is None else (gpu.name, known.learned.pace)
        queue = LeaseQueue(lease, known.function, self._workers, self._permits, name, pace)
        self._leases[lease.id] = queue
        try:
            self._begin(queue, lease, gpu)
            yield from queue.parts()
        finally:
            queue.stop()
            del self._leases[lease.id]
        if gpu is not None:
            shares = queue.telemetry.shares()
            known.learned.learn(*(shares.get(each, DeviceShare()) for each in (self._lane.name, gpu.name)))

    def stop(self, lease: str) -> None:
        """Begin nothing more of a lease."""
        if lease in self._leases:
            self._leases[lease].stop()

    def in_flight_of(self, lease: str) -> list[Range]:
        """Return what was under way of a lease when the agent before this one died."""
        return read_in_flight(lease)

    def fetch(self, reference: Any) -> bytes:
        """Return what was put into the cluster; where an agent runs by itself it is there already."""
        found: bytes = reference
        return found

    def _begin(self, queue: LeaseQueue, lease: Lease, gpu: Lane | None) -> None:
        if lease.short and gpu is None:
            _carry_out(queue, self._single_lane)
            return
        cpu = self._single_lane if lease.alone else self._lane
        beside = None
        if gpu is not None:
            work = in_context(queue, functools.partial(gpu.work, queue, caller=True))
            beside = self._gpu_threads.submit(work)
        threading.Thread(target=_carry_out, args=(queue, cpu, beside), daemon=True).start()

    def _load_function(self, reference: Any) -> _ShippedFunction:
        """Return the function; it is shipped once, however many leases name it."""
        return self._functions.get_or_make(
            reference,
            lambda: _ShippedFunction(unpack(self.fetch(reference)), LearnedRates(self._workers)),
        )


def _lane(workers: int) -> Lane:
    """Return a lane of threads that catches whatever a task raises, ``SystemExit`` too, as its failure."""
    lane = ThreadsExecutor(workers)
    lane.caught = BaseException
    return lane


def _carry_out(queue: LeaseQueue, cpu: Lane, gpu: Future[None] | None = None) -> None:
    """Run a lease on the processors, beside a GPU if there is one; end it when both find no more tasks."""
    try:
        cpu.work(queue, caller=True)
    except BaseException as error:
        queue.abort(error)
    finally:
        if gpu is not None and not gpu.cancel():
            gpu.result()
        queue.end()
