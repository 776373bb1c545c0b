"""How often GPUs fail of late, and a warning when that is too often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from typing import final

from accelera.execution.faults.kinds import Kind

WINDOW = 20
"""The last so many executions are looked at."""
MOST = 0.1
"""Above this share of them falling back, something should be done."""

_REMEDY = {
    Kind.MEMORY: "state memory_per_task in the WorkloadProfile, prefer Hybrid to GpuOnly, watch its memory",
    Kind.TRANSIENT: "look at the GPU's log and update its driver",
    Kind.STICKY: "restart the process: its context on the GPU is lost; then update the driver",
    Kind.UNKNOWN: "test the GPU's executor, and the function's form for many, by themselves: one raises where"
    " the CPU does not",
}
_ALWAYS = "batches too small for a GPU fare better with CpuOnly"
_NONE = frozenset[Kind]()


@final
class FallbackRate:
    """Remembers how the last executions went. Not thread-safe."""

    def __init__(self) -> None:
        self._recent: deque[frozenset[Kind]] = deque(maxlen=WINDOW)
        self._fallbacks = 0
        self._warned = False

    @property
    def rate(self) -> float:
        """The share of the last executions that fell back, from 0 to 1; 0 where there was none."""
        return self._fallbacks / len(self._recent) if self._recent else 0.0

    def count(self, reasons: Collection[Kind]) -> str | None:
        """Count an execution and why it fell back, if it did; return a warning when one is due.

        One is due when the rate rises above its limit, and not again before it has been below.
        """
        if not (reasons or self._fallbacks):
            self._recent.append(_NONE)
            return None
        if len(self._recent) == WINDOW and self._recent[0]:
            self._fallbacks -= 1
        self._recent.append(frozenset(reasons))
        self._fallbacks += bool(reasons)
        if self._fallbacks <= MOST * len(self._recent):
            self._warned = False
            return None
        if self._warned or len(self._recent) < WINDOW:
            return None
        self._warned = True
        return self._warning()

    def _warning(self) -> str:
        found = Counter(kind for reasons in self._recent for kind in reasons)
        kinds = [kind for kind, _ in found.most_common()]
        histogram = ", ".join(f"{found[kind]} x {kind.value}" for kind in kinds)
        remedies = "; ".join([*(_REMEDY[kind] for kind in kinds), _ALWAYS])
        return (
            f"{self.rate:.0%} of the last {WINDOW} executions fell back to the CPU, more than {MOST:.0%}"
            f" ({histogram}): {remedies}"
        )
