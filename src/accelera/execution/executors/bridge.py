"""A CPU executor of the user's own, in the manner of seed 002: given tasks through ``execute_batch``."""

from __future__ import annotations

import functools
import threading
from typing import final

from accelera.execution.executors.contract import CpuExecutor
from accelera.execution.executors.handing import hand_over
from accelera.execution.work.contract import Work
from accelera.execution.work.guarding import guarded
from accelera.execution.work.pieces import Side

SHARES = 4
"""Where a GPU takes from the same tasks, each piece is this part of what remains."""


@final
class BridgeLane:
    """Gives an executor everything at once; piece by piece where a GPU pulls too, or memory is short."""

    def __init__(self, executor: CpuExecutor, name: str = "cpu") -> None:
        self.name = name
        self._executor = executor

    def work(self, work: Work, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        if caller:
            self._pull(work)
            return
        pull = guarded(work, functools.partial(self._pull, work))
        thread = threading.Thread(target=pull, name="accelera-bridge", daemon=True)
        thread.start()
        work.wait([thread])

    def _pull(self, work: Work) -> None:
        while (piece := work.take(Side.CPU, self._size(work))) is not None:
            failed = hand_over(self._executor.execute_batch, work, piece, self.name)
            if failed:
                work.break_down(failed[0][1])
                return
            del piece  # its tasks may be large, and the next ones long in coming

    @staticmethod
    def _size(work: Work) -> int:
        wanted = work.remaining // SHARES if work.shared else work.remaining
        return max(1, min(wanted, work.room.cpu or wanted))
