"""A GPU as a lane: as many tasks at once as fit, left alone while it keeps failing."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import final

from accelera.errors import DeviceError
from accelera.execution.executors.attempt import Attempt
from accelera.execution.executors.availability import is_available
from accelera.execution.executors.contract import GpuExecutor
from accelera.execution.faults.breaker import Breaker, State
from accelera.execution.faults.micro_batch import MicroBatch
from accelera.execution.kernel import name_of
from accelera.execution.work.contract import Work
from accelera.execution.work.guarding import guarded
from accelera.execution.work.pieces import Side

ALL = 1 << 30
"""Asked for when nobody is left to be begun: the whole of a piece that is late elsewhere."""
PROBE_SHARE = 20
"""A device that failed before is given this part of what remains, to see whether it works again."""
LOOK_AGAIN_S = 0.05
"""A device that is left alone is looked at so often: another batch may have found it well."""

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
        self._sizes: dict[tuple[str, int], MicroBatch] = {}
        self._latest: dict[str, MicroBatch] = {}
        self._lock = threading.Lock()

    def size_of(
        self, function: Callable[..., object], memory_per_task: int = 0, seen_bytes: int = 0
    ) -> MicroBatch:
        """Return what is known of how many tasks of ``function`` fit at once.

        Tasks share it whose bytes, stated or else as seen in one of them, lie between the same powers of two;
        where neither is known it is that of the latest tasks.
        """
        name = name_of(function)
        key = name, (memory_per_task or seen_bytes).bit_length()
        with self._lock:
            if not key[1] and name in self._latest:
                return self._latest[name]
            if key not in self._sizes:
                self._sizes[key] = MicroBatch(self._fitting(memory_per_task))
            self._latest[name] = self._sizes[key]
            return self._sizes[key]

    def work(self, work: Work, *, caller: bool) -> None:
        """Carry out what there is for the GPU; what cannot be done there is left to the CPU."""
        if caller:
            self._pull(work)
            return
        pull = guarded(work, functools.partial(self._pull, work))
        thread = threading.Thread(target=pull, name=f"accelera-{self.name}", daemon=True)
        thread.start()
        work.wait([thread])

    def _pull(self, work: Work) -> None:
        self.breaker.given_another()
        attempt = Attempt(self, work)
        alone = self.fits_none(work.memory_per_task)
        while self._is_usable(work) or self._comes_back(work):
            probing = self.breaker.state is State.HALF_OPEN
            try:
                alone = alone and self.fits_none(work.memory_per_task)
                piece = work.take(Side.GPU, 1 if alone else self._next_size(work, attempt))
                if piece is None:
                    return
                attempt.carry_out(piece)
                del piece  # its tasks may be large, and the next ones long in coming
            finally:
                if probing:
                    attempt.tell(self.breaker.undecided())

    def _next_size(self, work: Work, attempt: Attempt) -> int:
        """Return how many tasks to ask for; where the CPU shares them, the batch may give fewer."""
        wanted = work.remaining or ALL
        if self.breaker.state is State.HALF_OPEN:
            wanted = work.remaining // PROBE_SHARE
        limits = attempt.size.limit, work.room.gpu, self._foreseen(work.function)
        return max(1, min(limit or wanted for limit in (wanted, *limits)))

    def _is_usable(self, work: Work) -> bool:
        """Return whether the device may be given work now."""
        before = self.breaker.state
        if not self.breaker.allows():
            return False
        if is_available(self.executor):
            if self.breaker.state is not before:
                work.watch.breaker(self.name, self.breaker.state.value)
            return True
        self.breaker.undecided()
        return False

    def _comes_back(self, work: Work) -> bool:
        """Leave everything to the CPU until the device can be used again; False when the batch is over."""
        alone, why = self.breaker.state is not State.CLOSED, self.breaker.reason
        reason = "is_available() says that it cannot be used now"
        if alone:
            reason = "left alone after failures" + (f" ({why})" if why else "")
        work.give_up_gpu(self.name, DeviceError(f"[{self.name}] {reason}"))
        while not work.rest(min(self.breaker.cooldown_left_s or LOOK_AGAIN_S, LOOK_AGAIN_S)):
            if self._is_usable(work):
                return True
        return False

    def _foreseen(self, function: Callable[..., object]) -> int | None:
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
        """Return how many tasks the free memory should allow; None where that cannot be told."""
        if not memory_per_task:
            return None
        try:
            return int(self.executor.memory_available()) // memory_per_task
        except Exception:
            _LOGGER.exception("memory_available() of %s raised: taken for unknown", self.name)
            return None
