"""Admission control: how many tasks a memory budget lets run at once, and the bytes of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

from accelera.errors import TaskTooLargeError
from accelera.execution.strategy.strategy import Decision
from accelera.memory._internal import Budget
from accelera.units import format_bytes


class ConcurrencyLimit(NamedTuple):
    """The most tasks that either side may be at; None: as many as it likes.

    A side that runs its tasks one after the other may take more of them, as long as it is at no more.
    """

    cpu: int | None = None
    gpu: int | None = None


UNLIMITED: Final = ConcurrencyLimit()
"""No limit on either side."""


@final
class AdmissionControl:
    """Keeps the tasks under way, as many as they are on both sides, within a budget.

    Every batch keeps to it by itself.

    Parameters
    ----------
    budget
        Bytes, text such as ``"8GiB"``, or a share of the RAM such as ``"50%"``; None: ``ACCELERA_BUDGET``,
        and without that, for the CPU, what is free when a batch begins, less the share kept for others.
    workers
        How many tasks the CPU would be at if memory were plenty.
    """

    def __init__(self, budget: int | float | str | None, workers: int) -> None:
        from accelera.memory import MemoryManager

        self._amount = budget
        self._memory = MemoryManager()
        self._workers = workers
        self.budget_now()

    def budget_now(self) -> Budget:
        """Return what holds now; raises ValueError when it is no amount of memory."""
        return Budget.parse(self._amount, self._memory)

    def room(self, memory_per_task: int, *, gpu: bool) -> ConcurrencyLimit:
        """Return how many tasks of so many bytes either side may be at; the GPU at none if one alone fits.

        The CPU may have up to half, for the tasks that a GPU leaves to it. Where nobody gave a budget the
        free memory bounds the CPU alone: a GPU has its own. Raises ``TaskTooLargeError`` when not even one
        fits.
        """
        if not memory_per_task:
            return UNLIMITED
        budget = self.budget_now()
        fitting = budget.limit_bytes // memory_per_task
        if gpu and not budget.is_given:
            return ConcurrencyLimit(cpu=max(1, min(self._workers, fitting)))
        if not fitting:
            raise TaskTooLargeError(
                f"[execute] task 0 takes {memory_per_task:,} bytes, as the profile says of every task: more"
                f" than the {budget.allowance}; {budget.remedy(memory_per_task)}, or make smaller tasks",
                index=0,
                needed_bytes=memory_per_task,
                budget_bytes=budget.limit_bytes,
            )
        if not gpu:
            return ConcurrencyLimit(cpu=min(self._workers, fitting))
        cpu = min(self._workers, max(1, fitting // 2))
        return ConcurrencyLimit(cpu, fitting - cpu)

    def admitted(self, decision: Decision, memory_per_task: int) -> tuple[Decision, ConcurrencyLimit]:
        """Return the decision as the budget allows it, with a reason where it matters, and the room."""
        room = self.room(memory_per_task, gpu=decision.strategy.uses_gpu)
        if room is UNLIMITED:
            return decision, room
        if room.gpu == 0:
            room, decision = ConcurrencyLimit(cpu=1), decision.on_cpu()
        elif room.cpu == self._workers:
            return decision, room
        at_once = f"{room.cpu} at once on the CPU" + (f", {room.gpu} on the GPU" if room.gpu else "")
        size = format_bytes(memory_per_task)
        reason = f"tasks of {size} each within {self.budget_now()}: {at_once}"
        return replace(decision, reasons=(*decision.reasons, reason)), room


def refusal(
    index: int, task: Any, memory_per_task: int, budget_bytes: int | None
) -> TaskTooLargeError | None:
    """Return why the task ``index``, which no device has room for, must not go to the CPU; None: it may.

    A task whose size is not known, neither stated nor visible in its arrays, may.
    """
    needed_bytes = memory_per_task or bytes_of(task)
    if budget_bytes is None or needed_bytes <= budget_bytes:
        return None
    return TaskTooLargeError(
        f"[execute] task {index} takes {needed_bytes:,} bytes: it does not fit the device even alone,"
        f" and the CPU may use {budget_bytes:,} bytes; raise the budget, or make smaller tasks",
        index=index,
        needed_bytes=needed_bytes,
        budget_bytes=budget_bytes,
    )


MOST_PARTS: Final = 64
"""Of a larger collection only so many parts are looked at, and the others taken to be like them."""
MOST_LOOKS: Final = 4096
"""Of all collections within one task only so many parts are looked at; what is beyond counts as nothing."""


def bytes_of(task: Any) -> int:
    """Return the bytes of the arrays and byte strings in ``task``; 0 where none shows, or looking fails."""
    try:
        return _bytes_of(task, iter(range(MOST_LOOKS)))
    except Exception:
        return 0


def _bytes_of(task: Any, looks: Iterator[int]) -> int:
    if next(looks, None) is None:
        return 0
    nbytes = getattr(task, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(task, (bytes, bytearray, str)):
        return len(task)
    if isinstance(task, Mapping):
        task = list(task.values())
    if not isinstance(task, (list, tuple)) or not task:
        return 0
    seen = task[:MOST_PARTS]
    return sum(_bytes_of(part, looks) for part in seen) * len(task) // len(seen)
