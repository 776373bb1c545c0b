"""A trace kept in memory while a run goes on: the recorder that remembers everything it hears."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from accelera.trace.access import Access
from accelera.trace.trace import Trace


class TraceLog:
    """An ordered list of events, and what the run said of itself; of the latest run, if there were several.

    >>> log = TraceLog()
    >>> log.record(Access(buffer=0, nbytes=64, step=0))
    >>> len(log), log.moved_distinct_bytes(), log.trace()
    (1, 64, Trace(1 accesses of 1 buffers in 1 steps))
    """

    def __init__(self) -> None:
        self._accesses: list[Access] = []
        self._facts: dict[str, Any] = {}
        self._arithmetic: dict[int, tuple[float, float]] = {}

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Forget what was heard before: a run begins, described by ``facts``."""
        self._accesses.clear()
        self._arithmetic.clear()
        self._facts = dict(facts)

    def took(self, step: int, seconds: float, flops: float) -> None:
        """Take note of a step's arithmetic and how long it took."""
        self._arithmetic[step] = seconds, flops

    def record(self, access: Access) -> None:
        """Append ``access``."""
        self._accesses.append(access)

    def __len__(self) -> int:
        return len(self._accesses)

    def __iter__(self) -> Iterator[Access]:
        return iter(self._accesses)

    def __getitem__(self, index: int) -> Access:
        return self._accesses[index]

    def trace(self, **more: Any) -> Trace:
        """Return what was recorded, in columns; ``more`` goes to ``Trace.from_arrays``.

        A run of the engine is described in ``meta``: operation, policy, capacity, window, device.
        """
        last = max((access.step for access in self._accesses), default=-1)
        count = max(last, *self._arithmetic, -1) + 1
        operation = self._facts.get("operation", "")
        ops = [operation] * count
        for access in self._accesses:
            ops[access.step] = access.op or ops[access.step]
        arithmetic = [self._arithmetic.get(step, (np.nan, 0.0)) for step in range(count)]
        seconds, flops = zip(*arithmetic, strict=True) if arithmetic else ((), ())
        return Trace.from_accesses(
            self._accesses,
            **{
                "ops": ops,
                "seconds": seconds,
                "flops": flops,
                "model_type": operation,
                **more,
                "meta": {**self._facts, **more.get("meta", {})},
            },
        )

    def buffers(self) -> list[int]:
        """Return the buffer ids in order of access, other events left out."""
        return [access.buffer for access in self._accesses if access.counts]

    def moved_distinct_bytes(self) -> int:
        """Return the bytes of all distinct buffers: the least any policy must move."""
        sizes = {access.buffer: access.nbytes for access in self._accesses}
        return sum(sizes.values())
