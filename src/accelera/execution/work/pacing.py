"""What each side may take of tasks that both share: known beforehand, or measured while they are at it."""

from __future__ import annotations

from typing import NamedTuple, final

from accelera.execution.pace import SHARE, Pace
from accelera.execution.work.pieces import Side

FIRST_SHARE = 16
"""While nothing is known of the GPU, it is given this part of the tasks to see how fast it is."""


class _At(NamedTuple):
    side: Side
    task_count: int
    since_s: float


@final
class Pacing:
    """Reduces what a side asks for, so that neither is late with the last tasks. Not thread-safe.

    Parameters
    ----------
    pace
        How fast both sides are, as learned from earlier batches; None: found out.
    now_s
        When the batch begins, in seconds of any clock that only goes forward.
    """

    def __init__(self, pace: Pace | None, now_s: float) -> None:
        self._learned = pace
        self._at: dict[int, _At] = {}
        self._tasks = {Side.CPU: 0, Side.GPU: 0}
        self._busy_s = {Side.CPU: 0.0, Side.GPU: 0.0}
        self._cpu_takers: set[int] = set()
        self._gpu_free_s = now_s + (pace.begin_s if pace is not None else 0.0)
        self._gpu_is_there = True

    def give_up_gpu(self) -> None:
        """Let the CPU take whatever it asks for, until the GPU asks again."""
        self._gpu_is_there = False

    def allowed(self, side: Side, taker: int, count: int, remaining: int, now_s: float) -> int:
        """Return how many of ``count`` tasks ``side`` may take now; 0: it should wait.

        ``taker`` tells the threads of a side apart; one that asks is through with what it took before.
        """
        self._settle(taker, now_s)
        if side is Side.GPU:
            self._gpu_is_there = True
        if not remaining or not self._gpu_is_there:
            return count
        pace = self._pace(now_s)
        if side is Side.CPU:
            left_s = abs(self._gpu_free_s - now_s) if self._gpu_is_at_it() else 0.0
            return count if pace is None else min(count, pace.cpu_count(remaining, left_s))
        if pace is not None:
            return min(count, pace.gpu_count(remaining))
        begun = self._tasks[Side.GPU] > 0
        return min(count, max(1, int(SHARE * remaining) if begun else remaining // FIRST_SHARE))

    def took(self, side: Side, taker: int, task_count: int, now_s: float) -> None:
        """Note that a thread of ``side`` has begun so many tasks."""
        self._at[taker] = _At(side, task_count, now_s)
        if side is Side.CPU:
            self._cpu_takers.add(taker)
            return
        pace = self._pace(now_s)
        begin_s = pace.begin_s if pace is not None and not self._tasks[Side.GPU] else 0.0
        self._gpu_free_s = now_s + (0.0 if pace is None else begin_s + pace.gpu_s(task_count))

    def returned(self, task_count: int) -> None:
        """Note that the GPU could not do so many of the tasks it is at."""
        for taker, at in self._at.items():
            if at.side is Side.GPU:
                self._at[taker] = at._replace(task_count=max(0, at.task_count - task_count))

    def _settle(self, taker: int, now_s: float) -> None:
        done = self._at.pop(taker, None)
        if done is not None:
            self._tasks[done.side] += done.task_count
            self._busy_s[done.side] += now_s - done.since_s

    def _gpu_is_at_it(self) -> bool:
        return any(each.side is Side.GPU for each in self._at.values()) or not self._tasks[Side.GPU]

    def _pace(self, now_s: float) -> Pace | None:
        if self._learned is not None:
            return self._learned
        if not (self._tasks[Side.GPU] and self._cpu_takers):
            return None
        at_s = sum(now_s - each.since_s for each in self._at.values() if each.side is Side.CPU)
        cpu_task_s = (self._busy_s[Side.CPU] + at_s) / max(self._tasks[Side.CPU], 1)
        gpu_task_s = self._busy_s[Side.GPU] / self._tasks[Side.GPU]
        if not (cpu_task_s > 0 and gpu_task_s > 0):
            return None
        return Pace(cpu_task_s, len(self._cpu_takers), gpu_task_s)
