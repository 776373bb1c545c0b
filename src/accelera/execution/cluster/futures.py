"""A cluster as an ``Executor`` of ``concurrent.futures``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, TypeVar, final

from accelera.execution.cluster.calls import Call, Calls
from accelera.execution.executors.contract import Lane
from accelera.execution.work.guarding import guarded

Output = TypeVar("Output")


@final
class LaneExecutor(Executor):
    """Runs what is submitted on the nodes of a cluster, as soon as one has room.

    Parameters
    ----------
    lane
        What hands the calls out.
    reruns
        Whether a call that was lost with its node may be begun again.
    """

    def __init__(self, lane: Lane, *, reruns: bool = True) -> None:
        self._calls = Calls(reruns=reruns)
        work = guarded(self._calls, functools.partial(lane.work, self._calls, caller=True))
        self._thread = threading.Thread(target=work, name="accelera-calls", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Output], /, *args: Any, **kwargs: Any) -> Future[Output]:
        """Run ``fn(*args, **kwargs)`` on some node and return its future.

        Raises
        ------
        RuntimeError
            After ``shutdown``.
        ClusterError
            When the cluster has gone.
        """
        return self._calls.put(Call(fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those that were taken, or cancel the ones not begun."""
        self._calls.close(cancel=cancel_futures)
        if wait:
            self._thread.join()

    def abandon(self) -> None:
        """Take no more calls, end those under way, and return when nobody is at one any more."""
        self._calls.break_down(CancelledError("[ray] the calls were abandoned"))
        self._thread.join()
