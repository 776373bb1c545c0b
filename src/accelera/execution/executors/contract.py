"""Executor protocols of seed 002, the ``Lane`` of ours, and checks of executors."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from accelera.execution.arguments import described
from accelera.execution.tasks.queue import TaskQueue

Self = TypeVar("Self", bound="Closeable")


class Closeable(abc.ABC):
    """Something that holds processes or connections until it is closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of them."""

    def __enter__(self: Self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


PROCESSES: Final = "processes"
"""Worker processes, also where the default executor has sent a batch to them."""


@runtime_checkable
class CpuExecutor(Protocol):
    """Carries tasks out on the CPU (seed 002)."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order."""


@runtime_checkable
class GpuExecutor(Protocol):
    """Carries tasks out on a GPU (seed 002).

    It may also have a ``name``; ``empty_cache()``, called after a failure; ``memory_total()``, which returns
    the bytes of device memory in all; and ``fitting(function)``, which returns how many tasks of the function
    should fit at once, or None while that is not known.
    """

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order; raises when the device fails."""

    def is_available(self) -> bool:
        """Return whether the device can be used now."""

    def memory_available(self) -> int:
        """Return the bytes of device memory that are free."""


@runtime_checkable
class Lane(Protocol):
    """Takes pieces of a batch until nothing is left for it.

    An executor that is a lane as well chooses the size of its pieces itself; others are given pieces through
    ``execute_batch``.
    """

    name: str
    """As results and logs call it: ``"cpu"``, ``"processes"``, ``"cuda:0"`` …"""

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what ``queue`` has for this side; return when nothing is left for it.

        With ``caller`` the calling thread may run tasks itself; without, it must only wait, so that tasks
        that never end can be left behind.
        """


_LOGGER = logging.getLogger("accelera.execution")


def is_available(executor: GpuExecutor) -> bool:
    """Return what ``executor`` says; one that raises instead says no."""
    try:
        return bool(executor.is_available())
    except Exception:
        name = getattr(executor, "name", "gpu")
        _LOGGER.exception("is_available() of %s raised: taken for no", name)
        return False


CPU_METHODS: Final = ("execute_batch",)
GPU_METHODS: Final = ("execute_batch", "is_available", "memory_available")


def check_executors(cpu: Any, gpu: Any) -> None:
    """Raise TypeError where an executor is a class, or lacks a method that it must have."""
    _check_executor("cpu", cpu, CPU_METHODS)
    if gpu is not None:
        _check_executor("gpu", gpu, GPU_METHODS)


def _check_executor(side: str, executor: Any, methods: tuple[str, ...]) -> None:
    if isinstance(executor, type):
        name = executor.__name__
        raise TypeError(
            f"[StrategyManager] {side}={name}: a class, not an executor; make one, such as {name}()"
        )
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if missing:
        raise TypeError(
            f"[StrategyManager] {side}={described(executor)} has no {'(), '.join(missing)}(): give the CPU's"
            " executor first, then the GPU's; strategy= says where work runs"
        )
