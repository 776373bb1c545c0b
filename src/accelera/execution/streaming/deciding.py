"""Where a stream runs: nobody knows how many tasks it will have."""

from __future__ import annotations

from accelera.execution.decision import Decision
from accelera.execution.strategy import ExecutionStrategy, Kind

_ALONE = Decision(ExecutionStrategy.CpuOnly, "no GPU", ("the manager was given no GPU",))
_BOTH = Decision(
    ExecutionStrategy.Hybrid(),
    "stream",
    ("how many tasks there will be is not known: CPU and GPU take them as fast as they can",),
    dynamic=True,
)


def of_stream(strategy: ExecutionStrategy, *, gpu: bool) -> Decision:
    """Return where a stream of a manager with ``strategy`` runs; there is no whole to have shares of."""
    if not gpu:
        return _ALONE
    if strategy.kind in (Kind.CPU_ONLY, Kind.GPU_ONLY):
        return Decision(strategy, "given", ("the manager was made with it",))
    return _BOTH
