"""What an executor must offer: the two protocols of seed 002, and what ours offer beyond them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from accelera.execution.work.contract import Work


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

    def work(self, work: Work, *, caller: bool) -> None:
        """Carry out what ``work`` has for this side; return when nothing is left for it.

        With ``caller`` the calling thread may run tasks itself; without, it must only wait, so that tasks
        that never end can be left behind.
        """
