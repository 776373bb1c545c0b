"""GPU lane: batches sized by memory, out-of-memory halving, retries, and a breaker for a failing device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import final

from accelera.devices._internal import words_of
from accelera.errors import ArgumentError, DeviceError, UnknownOutcomeError
from accelera.execution.executors.lanes import GpuExecutor, is_available
from accelera.execution.faults.batch_size import BatchSizer
from accelera.execution.faults.breaker import CONSECUTIVE, Breaker, BreakerState
from accelera.execution.faults.classify import FailureKind, kind_of, release_attempt
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.kernel import FUNCTIONS_KEPT, Kernel, LruDict, name_of
from accelera.execution.strategy.memory_limit import bytes_of, refusal
from accelera.execution.tasks.queue import DeviceKind, TaskQueue, TaskRange
from accelera.execution.tasks.run import Failed, run_batch, run_lane
from accelera.settings import current_value


@final
class OomAttribution:
    """Remembers the known sizes until an out-of-memory error is explained: too many tasks, or one too large.

    Parameters
    ----------
    start, stop
        The tasks that ran out of memory first.
    size
        What is known, before that has been learned.
    """

    def __init__(self, start: int, stop: int, size: BatchSizer) -> None:
        self._start, self._stop = start, stop
        self._size = size
        self._before = size.known()
        self._most = 0
        self._alone = False

    def goes_on(self, start: int, stop: int, size: BatchSizer) -> bool:
        """Return whether these tasks, which ran out of memory too, lie within the range that did before."""
        if self._alone or size is not self._size:
            return False
        if not (self._start <= start and stop <= self._stop):
            return False
        self._start, self._stop = start, stop
        return True

    def fitted(self, count: int) -> OomAttribution | None:
        """Note that ``count`` tasks at once fitted; return None when the cause is settled, else itself."""
        self._most = max(self._most, count)
        return self._conclude()

    def alone(self, index: int, size: BatchSizer) -> OomAttribution | None:
        """Note that one task alone did not fit; return None when the cause is settled, else itself."""
        if not self._alone and not self.goes_on(index, index + 1, size):
            return None
        self._alone = True
        return self._conclude()

    def _conclude(self) -> OomAttribution | None:
        """Restore the known sizes and return None if one task alone was too large while others fitted."""
        if not (self._alone and max(self._most, self._before.good)):
            return self
        self._size.restore(self._before, self._most)
        return None


Waiting = list[tuple[TaskRange, "Exception | None"]]
"""Parts to be run, each with the error of the device that it met before."""


@final
class DeviceBatchRunner:
    """One batch on one device."""

    def __init__(self, device: DeviceLane, queue: TaskQueue) -> None:
        self._device = device
        self._breaker = device.breaker
        self._queue = queue
        self.size = device.size_of(queue.function, queue.memory_per_task)
        """What is known of how many tasks fit at once."""
        self._has_batch_form = isinstance(queue.function, Kernel) and queue.function.batch is not None
        self._unexplained_failures = 0
        self._oom: OomAttribution | None = None

    def tell(self, state: BreakerState | None) -> None:
        """Report a change of the breaker to observers."""
        if state is not None:
            self._queue.telemetry.breaker(self._device.name, state.value)

    def carry_out(self, piece: TaskRange) -> None:
        """See to it that every task of ``piece`` is finished, failed, given back or left to the CPU."""
        seen_bytes = bytes_of(piece.tasks[0])
        self.size = self._device.size_of(self._queue.function, self._queue.memory_per_task, seen_bytes)
        waiting: Waiting = [(piece, None)]
        while waiting:
            part, met = waiting.pop()
            gone = part is not piece and not is_available(self._device.executor)
            if self._queue.stopped or gone or self._breaker.state is BreakerState.OPEN:
                self._return_piece(part, met)
                continue
            fitting = min(len(part.tasks), self.size.limit or len(part.tasks))
            if fitting < len(part.tasks):
                rest = part.part(fitting, len(part.tasks))
                if self._retries_alone:
                    waiting.append((rest, met))
                else:
                    self._return_piece(rest, met)
            failed = self._run(part.part(0, fitting))
            while failed:
                waiting += self._handle_failure(failed.pop(0), fitting, first=met is None)
            met = None  # its traceback holds this frame: a cycle that would keep the tasks in memory

    @property
    def _retries_alone(self) -> bool:
        """Whether tasks that did not fit together are retried here in smaller pieces, before the CPU may."""
        return self._device.budget_bytes is not None or not self._queue.shared

    def _return_piece(self, piece: TaskRange, met: Exception | None) -> None:
        if met is None:
            self._queue.give_back(piece)
        else:
            self._queue.fall_back_to_cpu(piece, met, self._device.name)

    def _run(self, piece: TaskRange) -> list[Failed]:
        """Run ``piece`` at once; return what failed and must be seen to."""
        name, count = self._device.name, len(piece.tasks)
        failed = run_batch(self._device.executor.execute_batch, self._queue, piece, name, _is_device_error)
        if not failed:
            self._unexplained_failures = 0
            self.tell(self._breaker.succeeded())
            self.size.succeeded(count)
            self._oom = None if self._oom is None else self._oom.fitted(count)
        return failed

    def _handle_failure(self, failed: Failed, at_once: int, *, first: bool) -> Waiting:
        """Return what is to be retried here; fail, give back or leave to the CPU the rest.

        The failed tasks were among ``at_once`` tasks that ran together.
        """
        piece, error = failed
        kind = kind_of(error)
        if kind is FailureKind.USER:
            if self._queue.redoes_all and self._has_batch_form:
                self._queue.fall_back_to_cpu(piece, error, self._device.name, permanent=False)
                return []
            if self._has_batch_form or self._queue.repairs:
                return self._bisect(piece, error)
            kind = FailureKind.UNKNOWN
        release_attempt(error, self._device.executor)
        self._learn(kind, piece, at_once, _reason(kind, error))
        if self._queue.repairs and not self._queue.reruns:
            self._fail_as_unknown(piece, error)
        elif self._queue.repairs and kind is FailureKind.MEMORY:
            return self._handle_out_of_memory(piece, error, at_once)
        elif (
            self._queue.repairs
            and kind is FailureKind.TRANSIENT
            and first
            and self._breaker.state is not BreakerState.OPEN
        ):
            self._queue.telemetry.retried(piece.start, error, self._device.name)
            return [(piece, error)]
        else:
            left_alone = self._breaker.state is BreakerState.OPEN
            self._queue.fall_back_to_cpu(piece, error, self._device.name, permanent=not left_alone)
        return []

    def _learn(self, kind: FailureKind, piece: TaskRange, at_once: int, reason: str) -> None:
        if kind is not FailureKind.MEMORY:
            self.tell(self._breaker.failed(sticky=kind is FailureKind.STICKY, reason=reason))
        elif at_once > 1:
            if self._oom is None or not self._oom.goes_on(piece.start, piece.stop, self.size):
                self._oom = OomAttribution(piece.start, piece.stop, self.size)
            self.size.ran_out(at_once)
        else:
            self._oom = None if self._oom is None else self._oom.alone(piece.start, self.size)
            self.tell(self._breaker.ran_full(reason))

    def _handle_out_of_memory(self, piece: TaskRange, error: Exception, at_once: int) -> Waiting:
        """Retry tasks in smaller pieces; a task too large alone falls back to the CPU, or fails."""
        if at_once > 1:
            self._queue.telemetry.split(self._device.name, at_once, error)
            if self._retries_alone:
                return [(piece, None)]
            self._queue.give_back(piece)
            return []
        memory_per_task, budget_bytes = self._queue.memory_per_task, self._device.budget_bytes
        refused = refusal(piece.start, piece.tasks[0], memory_per_task, budget_bytes)
        if refused is None:
            self._queue.fall_back_to_cpu(piece, error, self._device.name)
        else:
            refused.__cause__ = error
            self._queue.fail(piece.start, refused, self._device.name)
        return []

    def _bisect(self, piece: TaskRange, error: Exception) -> Waiting:
        """Bisect for the task that is at fault for an error no device raises; the CPU decides whether it is.

        Where the function has no batched form the executor itself raised: after three times in a row it is
        not used for a while, like a failing device.
        """
        count, name = len(piece.tasks), self._device.name
        self._unexplained_failures += not self._has_batch_form
        if not self._queue.reruns and (count > 1 or not self._has_batch_form):
            self._fail_as_unknown(piece, error)
        elif self._unexplained_failures >= CONSECUTIVE or (
            self._unexplained_failures and self._breaker.state is BreakerState.HALF_OPEN
        ):
            self.tell(self._breaker.failed(sticky=True, reason=_reason(FailureKind.UNKNOWN, error)))
            self._queue.fall_back_to_cpu(piece, error, name, permanent=False)
        elif count > 1:
            half, first = count // 2, 1 if self._unexplained_failures == 1 else 0
            bounds = ((half, count), (first, half), (0, first))
            return [(piece.part(start, stop), None) for start, stop in bounds if start < stop]
        elif self._queue.repairs and self._queue.reruns:
            reason = _reason(FailureKind.UNKNOWN, error)
            self._queue.fall_back_to_cpu(
                piece, error, name, lambda: self.tell(self._breaker.failed(reason=reason))
            )
        else:
            self._queue.fail(piece.start, error, name)
        return []

    def _fail_as_unknown(self, piece: TaskRange, error: Exception) -> None:
        """Give tasks up that may have been done, and must not be begun again."""
        for index in range(piece.start, piece.stop):
            lost = UnknownOutcomeError(
                f"[{self._device.name}] task {index} was under way with {len(piece.tasks) - 1} others when"
                f" {type(error).__name__} ended them: {words_of(error)}; rerun='never' forbids another"
                f" attempt, rerun='on_failure' would allow it"
            )
            lost.__cause__ = error
            self._queue.fail(index, lost, self._device.name)


def _reason(kind: FailureKind, error: Exception) -> str:
    """Return in words, which keep no task alive, what failed."""
    return f"{kind.value}: {words_of(error) or type(error).__name__}"


def _is_device_error(error: Exception) -> bool:
    return kind_of(error) is not FailureKind.USER


ALL = 1 << 30
"""Requested when no new task is left: the whole of a piece that is late on the other side."""
PROBE_SHARE = 20
"""A device that failed before is given this part of what remains, to see whether it works again."""
LOOK_AGAIN_S = 0.05
"""Polling period of a device that is not used: another batch may have found it working again."""

_LOGGER = logging.getLogger("accelera.execution")


@final
class DeviceLane:
    """Gives a GPU executor micro-batches; remembers what fits, and leaves a device alone that keeps failing.

    Parameters
    ----------
    executor
        The GPU.
    name
        What results and logs call it.
    breaker
        Decides when the device is left alone.
    budget_bytes
        What a task may take of the CPU's memory that does not fit the device even alone; None: anything.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        name: str = "gpu",
        breaker: Breaker | None = None,
        *,
        budget_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.breaker = Breaker() if breaker is None else breaker
        self.executor = executor
        self.budget_bytes = budget_bytes
        self._sizes: LruDict[tuple[str, int], BatchSizer] = LruDict(FUNCTIONS_KEPT)
        self._latest: LruDict[str, BatchSizer] = LruDict(FUNCTIONS_KEPT)
        self._lock = threading.Lock()

    def size_of(
        self, function: Callable[..., object], memory_per_task: int = 0, seen_bytes: int = 0
    ) -> BatchSizer:
        """Return what is known of how many tasks of ``function`` fit at once.

        Tasks share it whose bytes, stated or else as seen in one of them, lie between the same powers of two;
        where neither is known it is that of the latest tasks.
        """
        name = name_of(function)
        key = name, (memory_per_task or seen_bytes).bit_length()
        with self._lock:
            size = None if key[1] else self._latest.get(name)
            if size is None:
                size = self._sizes.get_or_make(key, lambda: BatchSizer(self._fitting(memory_per_task)))
                self._latest.put(name, size)
            return size

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the GPU; what cannot be done there is left to the CPU."""
        run_lane(queue, self._pull, self.name, caller=caller)

    def _pull(self, queue: TaskQueue) -> None:
        self.breaker.batch_begins()
        attempt = DeviceBatchRunner(self, queue)
        alone = self.fits_none(queue.memory_per_task)
        while self._is_usable(queue) or self._await_recovery(queue):
            probing = self.breaker.state is BreakerState.HALF_OPEN
            try:
                alone = alone and self.fits_none(queue.memory_per_task)
                piece = queue.take(DeviceKind.GPU, 1 if alone else self._next_size(queue, attempt))
                if piece is None:
                    return
                attempt.carry_out(piece)
                del piece  # its tasks may be large, and the next ones long in coming
            finally:
                if probing:
                    attempt.tell(self.breaker.probe_inconclusive())

    def _next_size(self, queue: TaskQueue, attempt: DeviceBatchRunner) -> int:
        """Return how many tasks to ask for; where the CPU shares them, the batch may give fewer."""
        wanted = queue.remaining or ALL
        if self.breaker.state is BreakerState.HALF_OPEN:
            wanted = queue.remaining // PROBE_SHARE
        limits = attempt.size.limit, queue.limit.gpu, self._executor_fitting(queue.function)
        return max(1, min(limit or wanted for limit in (wanted, *limits)))

    def _is_usable(self, queue: TaskQueue) -> bool:
        """Return whether the device may be given work now."""
        before = self.breaker.state
        if not self.breaker.allows():
            return False
        if is_available(self.executor):
            if self.breaker.state is not before:
                queue.telemetry.breaker(self.name, self.breaker.state.value)
            return True
        self.breaker.probe_inconclusive()
        return False

    def _await_recovery(self, queue: TaskQueue) -> bool:
        """Leave all tasks to the CPU until the device is usable; return False when the batch is over."""
        alone, why = self.breaker.state is not BreakerState.CLOSED, self.breaker.reason
        reason = "is_available() says that it cannot be used now"
        if alone:
            reason = "left alone after failures" + (f" ({why})" if why else "")
        queue.give_up_gpu(self.name, DeviceError(f"[{self.name}] {reason}"))
        while not queue.sleep(min(self.breaker.cooldown_left_s or LOOK_AGAIN_S, LOOK_AGAIN_S)):
            if self._is_usable(queue):
                return True
        return False

    def _executor_fitting(self, function: Callable[..., object]) -> int | None:
        """Return how many tasks the executor itself expects to fit, if it is one that can tell."""
        foresee = getattr(self.executor, "fitting", None)
        try:
            fitting = None if foresee is None else foresee(function)
            return None if fitting is None else max(1, int(fitting))
        except Exception:
            _LOGGER.exception("fitting() of %s raised: taken for unknown", self.name)
            return None

    def fits_none(self, memory_per_task: int) -> bool:
        """Return whether not even one task should fit what is free now: each is tried alone, if at all."""
        return self._fitting(memory_per_task) == 0

    def _fitting(self, memory_per_task: int) -> int | None:
        """Return how many tasks the free memory should allow; None where that is not known."""
        if not memory_per_task:
            return None
        try:
            return int(self.executor.memory_available()) // memory_per_task
        except Exception:
            _LOGGER.exception("memory_available() of %s raised: taken for unknown", self.name)
            return None


def default_gpu(device: str | None = None, budget_bytes: int | None = None) -> GpuExecutor | None:
    """Return what computes on a device, or on the first accelerator there is; None where there is none.

    None stands for ``ACCELERA_DEVICE``; torch is loaded only where there is an accelerator. Raises
    UnknownNameError for a name that is none, DeviceError when the machine has no such device, ValueError for
    a simulated one without memory.
    """
    named = current_value("device") if device is None else device
    if named is None and not HardwareCapabilities.detect().gpu_available:
        return None
    from accelera.devices import SimulatedDevice, get_device
    from accelera.execution.executors.simulated import SimulatedExecutor
    from accelera.execution.executors.torch_device import TorchDeviceExecutor

    found = get_device(named)
    if isinstance(found, SimulatedDevice):
        if not found.total_bytes():
            raise ArgumentError(f"[device] {named!r} has no memory: give it some, such as 'sim:256MiB'")
        return SimulatedExecutor(found.total_bytes(), name=found.name)
    if found.host_memory:
        return None
    return TorchDeviceExecutor(found.name, budget=budget_bytes)
