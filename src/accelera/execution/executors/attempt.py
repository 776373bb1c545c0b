"""What becomes of a piece on a GPU: done, done in smaller parts, tried again, or left to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from accelera.errors import UnknownOutcomeError
from accelera.execution.executors.availability import is_available
from accelera.execution.executors.contract import GpuExecutor
from accelera.execution.executors.handing import Failed, hand_over
from accelera.execution.faults.breaker import CONSECUTIVE, Breaker, State
from accelera.execution.faults.kinds import Kind, kind_of, words_of
from accelera.execution.faults.letting_go import let_go
from accelera.execution.faults.micro_batch import MicroBatch
from accelera.execution.faults.overflow import Overflow
from accelera.execution.kernel import Kernel
from accelera.execution.work.contract import Work
from accelera.execution.work.pieces import Piece
from accelera.execution.work.too_large import refusal
from accelera.execution.work.weight import bytes_of


class Device(Protocol):
    """A GPU, and what is known of it."""

    name: str
    executor: GpuExecutor
    breaker: Breaker
    budget_bytes: int | None

    def size_of(
        self, function: Callable[..., object], memory_per_task: int = 0, seen_bytes: int = 0
    ) -> MicroBatch:
        """Return what is known of how many tasks of ``function`` fit at once."""


Waiting = list[tuple[Piece, "Exception | None"]]
"""Parts to be run, each with the error of the device that it met before."""


@final
class Attempt:
    """One batch on one device."""

    def __init__(self, device: Device, work: Work) -> None:
        self._device = device
        self._breaker = device.breaker
        self._work = work
        self.size = device.size_of(work.function, work.memory_per_task)
        """What is known of how many tasks fit at once."""
        self._many = isinstance(work.function, Kernel) and work.function.batch is not None
        self._riddles = 0
        self._overflow: Overflow | None = None

    def tell(self, state: State | None) -> None:
        """Let observers know that the breaker changed."""
        if state is not None:
            self._work.watch.breaker(self._device.name, state.value)

    def carry_out(self, piece: Piece) -> None:
        """See to it that every task of ``piece`` is finished, failed, given back or left to the CPU."""
        seen_bytes = bytes_of(piece.tasks[0])
        self.size = self._device.size_of(self._work.function, self._work.memory_per_task, seen_bytes)
        waiting: Waiting = [(piece, None)]
        while waiting:
            part, met = waiting.pop()
            gone = part is not piece and not is_available(self._device.executor)
            if self._work.stopped or gone or self._breaker.state is State.OPEN:
                self._put_down(part, met)
                continue
            fitting = min(len(part.tasks), self.size.limit or len(part.tasks))
            if fitting < len(part.tasks):
                rest = part.part(fitting, len(part.tasks))
                if self._judges:
                    waiting.append((rest, met))
                else:
                    self._put_down(rest, met)
            failed = self._run(part.part(0, fitting))
            while failed:
                waiting += self._after(failed.pop(0), fitting, first=met is None)
            met = None  # an exception knows this call: if it were known here, neither would go

    @property
    def _judges(self) -> bool:
        """Whether the CPU does not take what was too much at once before each task was tried alone here."""
        return self._device.budget_bytes is not None or not self._work.shared

    def _put_down(self, piece: Piece, met: Exception | None) -> None:
        if met is None:
            self._work.give_back(piece)
        else:
            self._work.leave_to_cpu(piece, met, self._device.name)

    def _run(self, piece: Piece) -> list[Failed]:
        """Run ``piece`` at once; return what failed and must be seen to."""
        name, count = self._device.name, len(piece.tasks)
        failed = hand_over(self._device.executor.execute_batch, self._work, piece, name, _is_the_devices)
        if not failed:
            self._riddles = 0
            self.tell(self._breaker.succeeded())
            self.size.succeeded(count)
            self._overflow = None if self._overflow is None else self._overflow.fitted(count)
        return failed

    def _after(self, failed: Failed, at_once: int, *, first: bool) -> Waiting:
        """Return what is to be run again here; the rest is told, given back or left to the CPU.

        What failed was among ``at_once`` tasks that ran together, maybe not all of them.
        """
        piece, error = failed
        kind = kind_of(error)
        if kind is Kind.USER:
            if self._many or self._work.repairs:
                return self._find(piece, error)
            kind = Kind.UNKNOWN
        let_go(error, self._device.executor)
        self._learn(kind, piece, at_once, _reason(kind, error))
        if self._work.repairs and not self._work.reruns:
            self._lose(piece, error)
        elif self._work.repairs and kind is Kind.MEMORY:
            return self._smaller(piece, error, at_once)
        elif (
            self._work.repairs and kind is Kind.TRANSIENT and first and self._breaker.state is not State.OPEN
        ):
            self._work.watch.retried(piece.start, error, self._device.name)
            return [(piece, error)]
        else:
            left_alone = self._breaker.state is State.OPEN
            self._work.leave_to_cpu(piece, error, self._device.name, for_good=not left_alone)
        return []

    def _learn(self, kind: Kind, piece: Piece, at_once: int, reason: str) -> None:
        if kind is not Kind.MEMORY:
            self.tell(self._breaker.failed(sticky=kind is Kind.STICKY, reason=reason))
        elif at_once > 1:
            if self._overflow is None or not self._overflow.goes_on(piece.start, piece.stop, self.size):
                self._overflow = Overflow(piece.start, piece.stop, self.size)
            self.size.ran_out(at_once)
        else:
            self._overflow = None if self._overflow is None else self._overflow.alone(piece.start, self.size)
            self.tell(self._breaker.ran_full(reason))

    def _smaller(self, piece: Piece, error: Exception, at_once: int) -> Waiting:
        """Put back what was too much at once, or try less; what is too much alone is the CPU's, if it may."""
        if at_once > 1:
            self._work.watch.split(self._device.name, at_once, error)
            if self._judges:
                return [(piece, None)]
            self._work.give_back(piece)
            return []
        refused = refusal(piece, self._work.memory_per_task, self._device.budget_bytes)
        if refused is None:
            self._work.leave_to_cpu(piece, error, self._device.name)
        else:
            refused.__cause__ = error
            self._work.fail(piece.start, refused, self._device.name)
        return []

    def _find(self, piece: Piece, error: Exception) -> Waiting:
        """Find the task that is at fault when something raises that no device would; the CPU is to judge it.

        Where the function has no form for many it is the executor that raises: three times in a row, and it
        is left alone, as a device is.
        """
        count, name = len(piece.tasks), self._device.name
        self._riddles += not self._many
        if not self._work.reruns and (count > 1 or not self._many):
            self._lose(piece, error)
        elif self._riddles >= CONSECUTIVE or (self._riddles and self._breaker.state is State.HALF_OPEN):
            self.tell(self._breaker.failed(sticky=True, reason=_reason(Kind.UNKNOWN, error)))
            self._work.leave_to_cpu(piece, error, name, for_good=False)
        elif count > 1:
            half, first = count // 2, 1 if self._riddles == 1 else 0
            bounds = ((half, count), (first, half), (0, first))
            return [(piece.part(start, stop), None) for start, stop in bounds if start < stop]
        elif self._work.repairs and self._work.reruns:
            reason = _reason(Kind.UNKNOWN, error)
            self._work.leave_to_cpu(
                piece, error, name, lambda: self.tell(self._breaker.failed(reason=reason))
            )
        else:
            self._work.fail(piece.start, error, name)
        return []

    def _lose(self, piece: Piece, error: Exception) -> None:
        """Give tasks up that may have been done, and must not be begun again."""
        for index in range(piece.start, piece.stop):
            lost = UnknownOutcomeError(
                f"[{self._device.name}] task {index} was under way with {len(piece.tasks) - 1} others when"
                f" {type(error).__name__} ended them: {error}; rerun='never' forbids another attempt,"
                f" rerun='on_failure' would allow it"
            )
            lost.__cause__ = error
            self._work.fail(index, lost, self._device.name)


def _reason(kind: Kind, error: Exception) -> str:
    """Return in words, which keep no task alive, what failed."""
    return f"{kind.value}: {words_of(error) or type(error).__name__}"


def _is_the_devices(error: Exception) -> bool:
    return kind_of(error) is not Kind.USER
