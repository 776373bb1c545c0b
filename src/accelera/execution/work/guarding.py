"""A thread beside the caller's is part of its batch: it has its cores and modes, and does not end unheard."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from accelera.execution.cores import having, share_here
from accelera.execution.thread_context import ThreadContext
from accelera.execution.work.contract import Work


def guarded(work: Work, do: Callable[[], object]) -> Callable[[], None]:
    """Return ``do`` for a thread of its own, which has this thread's context and share of the cores.

    What it raises ends ``work`` and is raised to the caller: others would wait for what the thread had.
    """
    return _Guarded(work, do)


@final
class _Guarded:
    """No closure: an exception keeps the functions that it came through, and their closures with them."""

    def __init__(self, work: Work, do: Callable[[], object]) -> None:
        self._work = work
        self._do = do
        self._share = share_here()
        self._context = ThreadContext()

    def __call__(self) -> None:
        try:
            with having(self._share):
                self._context.run(self._do)
        except BaseException as error:
            self._work.break_down(error)
