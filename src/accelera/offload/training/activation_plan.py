"""Plans for saved tensors, from a recorded step: each is kept, packed, recomputed or offloaded.

They go by seconds per byte. The algorithm is that of ``csrc/planner/activation_plan.h``: plans are made
before a budget is known, and a budget selects one of them, so less budget never takes more memory.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch

from accelera._native import ActivationStep, Arena
from accelera.offload.training.tape import ForwardTape, TapeOperation, reads_unstable

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class SavedUse:
    """A saved tensor whose values were put away in the recorded step."""

    value: int
    """Its value on the tape."""
    block: int
    """The allocation in which the value lay; -1 for none of the log."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """For each time that it was needed: the position in the log, and the allocation of its copy."""


@dataclass(frozen=True)
class StepRecord:
    """One forward and backward pass in which every saved tensor of some size was put away at once."""

    allocations: Array
    """Rows of (allocation, bytes; negative when released), in order."""
    saved: list[SavedUse]
    tape: ForwardTape
    initial_bytes: int = 0
    """What was allocated before."""
    temporaries: list[tuple[int, int]] = field(default_factory=list)
    """Positions in the log, and the bytes that an operation takes there for itself."""


@final
class StepRecorder:
    """Takes the record while an arena logs."""

    def __init__(self, arena: Arena, tape: ForwardTape) -> None:
        self._arena = arena
        self._tape = tape
        self._saved: list[SavedUse] = []
        self.active = True
        """Whether it takes notes."""
        self.in_backward = False
        arena.start_log()

    def saved(self, tensor: torch.Tensor) -> int:
        """Note that ``tensor`` is put away; return the number under which it is needed again."""
        block = self._arena.block_at(tensor.untyped_storage().data_ptr())
        self._saved.append(SavedUse(self._tape.value_of(tensor), block))
        return len(self._saved) - 1

    def needed(self, number: int, bring: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Note that what is under ``number`` is needed; return what ``bring`` returns."""
        if not self.active:
            return bring()
        position = self._arena.log_size
        tensor = bring()
        block = self._arena.block_at(tensor.untyped_storage().data_ptr())
        self._saved[number].copies.append((position, block))
        return tensor

    def finish(self) -> StepRecord:
        """End the log and return the record."""
        self.active = False
        return StepRecord(self._arena.take_log(), self._saved, self._tape)

    def give_up(self) -> None:
        """Discard the log of a pass whose graph is gone, unless its backward pass is running."""
        if self.active and not self.in_backward:
            self.active = False
            self._arena.take_log()


PACKED_RATIO = 4
"""Bytes of a 32-bit mask by those of its packed form."""


class Fate(enum.IntEnum):
    """Treatment of a saved tensor until the backward pass needs it."""

    KEEP = 0
    PACK = 1
    RECOMPUTE = 2
    OFFLOAD = 3


_OFFLOAD_S_PER_BYTE = {"disk": 1.7e-9, "ram": 0.2e-9}
"""Seconds per byte of a write and a read back: 1.2 GB/s each way to a disk, 10 GB/s to host memory."""


class Prices(NamedTuple):
    """Seconds per byte."""

    offload_s: float
    """Out of memory and back."""
    pack_s: float = 0.5e-9
    """To a mask and back."""


def usual_prices(home: str) -> Prices:
    """Return the prices of a usual machine, on which the bytes go to ``"disk"`` or ``"ram"``.

    They are not measured, so that the same model in the same budget always gets the same plan.
    """
    return Prices(_OFFLOAD_S_PER_BYTE[home])


@final
@dataclass(frozen=True)
class ActivationPlan:
    """One choice of fates.

    ``names``, ``nbytes`` and ``reads`` are those of the recorded tape.
    """

    peak_bytes: int
    """Most bytes of tensors that are alive at once, weights and states left out."""
    added_s: float
    """Seconds that it adds to a step in which everything is kept."""
    fates: bytes
    record: _TapeSummary

    def fate_of(self, value: int, tape: ForwardTape) -> Fate:
        """Return the fate of a value of ``tape``; one that the plan does not know is offloaded."""
        known = self.record
        if value >= len(known.nbytes) or tape.nbytes[value] > known.nbytes[value]:
            return Fate.OFFLOAD
        producer = tape.producers[value]
        if producer != known.producers[value] or (
            producer >= 0 and tape.names[producer] != known.names[producer]
        ):
            return Fate.OFFLOAD
        return Fate(self.fates[value])

    @cached_property
    def sources(self) -> Mapping[int, tuple[int, ...]]:
        """For each value that is recomputed, the saved values from which."""
        return {
            value: self._sources_of(value) for value, fate in enumerate(self.fates) if fate == Fate.RECOMPUTE
        }

    def bytes_by_fate(self) -> dict[str, int]:
        """Return the bytes of the saved values by what becomes of them."""
        sums = dict.fromkeys((each.name.lower() for each in Fate), 0)
        for value in self.record.saved:
            sums[Fate(self.fates[value]).name.lower()] += self.record.nbytes[value]
        return sums

    def _sources_of(self, value: int) -> tuple[int, ...]:
        known = self.record
        found: dict[int, None] = {}
        seen = {value}
        left = [value]
        while left:
            producer = known.producers[left.pop()]
            for read in known.reads[producer] if producer >= 0 else ():
                if read in seen:
                    continue
                seen.add(read)
                if read in known.saved and self.fates[read] != Fate.RECOMPUTE:
                    found[read] = None
                else:
                    left.append(read)
        return tuple(found)


class _TapeSummary(NamedTuple):
    """The parts of the tape that a plan made from it needs."""

    names: Sequence[str]
    nbytes: Sequence[int]
    producers: Sequence[int]
    reads: Sequence[tuple[int, ...]]
    saved: frozenset[int]


@final
class ActivationPlans:
    """Plans of falling peak and rising time for steps like a recorded one."""

    def __init__(self, record: StepRecord, prices: Prices, least_bytes: int) -> None:
        tape, times = record.tape, _SavedTimeline(record)
        operations = tape.operations
        self._prices = (prices.offload_s, prices.pack_s, PACKED_RATIO, least_bytes)
        self._step = ActivationStep(
            base=times.base,
            nbytes=np.array(tape.nbytes, np.int64),
            producer=np.array(tape.producers, np.int32),
            idle_from=times.idle_from,
            needed=times.needed,
            ends=times.ends,
            packable=np.array([_is_dropout_mask(tape, value) for value in range(len(tape.nbytes))], np.uint8),
            seconds=_seconds(tape),
            pure=np.array([_is_repeatable(tape, each) for each in operations], np.uint8),
            reads=_to_csr(each.reads for each in operations),
            makes=_to_csr(each.makes for each in operations),
        )
        facts = _TapeSummary(
            tuple(tape.names),
            tuple(tape.nbytes),
            tuple(tape.producers),
            tuple(each.reads for each in operations),
            frozenset(np.flatnonzero(times.needed >= 0).tolist()),
        )
        found = self._step.plans(self._prices)
        self.plans = [ActivationPlan(peak, seconds, fates, facts) for peak, seconds, fates in found]
        """The first adds no time: it keeps all but what costs nothing."""
        self.ends = times.ends
        """Position in the record's log at which each saved value is needed no more; -1 for others."""

    def affordable(
        self,
        room_bytes: int,
        blocks_bytes: int,
        demand_bytes: int,
        price_s: float,
        *,
        floor_bytes: int = 0,
    ) -> ActivationPlan | None:
        """Return the plan with the least time for ``room_bytes`` of tensors and blocks together, or None.

        Parameters
        ----------
        blocks_bytes
            Least bytes of blocks.
        demand_bytes
            Bytes of blocks with which none would ever have to be brought.
        price_s
            Seconds for each byte of blocks that has no place.
        floor_bytes
            What tensors take in any case, as in the optimizer's step.
        """

        def taken(plan: ActivationPlan) -> int:
            return max(plan.peak_bytes, floor_bytes)

        def seconds(plan: ActivationPlan) -> float:
            return plan.added_s + price_s * max(0, demand_bytes - (room_bytes - taken(plan)))

        fit = [each for each in self.plans if taken(each) + blocks_bytes <= room_bytes]
        return min(fit, key=seconds, default=None)

    def recomputations(self, plan: ActivationPlan) -> list[tuple[int, list[int]]]:
        """Return what a plan computes again, in order: for which value, and operations of the tape."""
        return self._step.recomputations(self._prices, plan.fates)


@final
class _SavedTimeline:
    """Times at which saved values become idle, are needed and are freed, and the other allocations.

    Times are numbers of events of the log so far.
    """

    def __init__(self, record: StepRecord) -> None:
        rows = record.allocations
        count = len(rows)
        changes = np.concatenate([[record.initial_bytes], rows[:, 1]])
        values = len(record.tape.nbytes)
        self.idle_from = np.full(values, -1, np.int64)
        self.needed = np.full(values, -1, np.int64)
        self.ends = np.full(values, -1, np.int64)
        born = {int(block): at + 1 for at, (block, nbytes) in enumerate(rows) if nbytes > 0}
        gone = {int(block): at + 1 for at, (block, nbytes) in enumerate(rows) if nbytes < 0}
        for use in record.saved:
            if use.block not in gone or not use.copies:
                continue  # somebody else holds it anyway, or nobody needs it
            for position, block in use.copies:
                self._note(use.value, gone[use.block], position, gone.get(block, count))
                if block in born:
                    nbytes = rows[born[block] - 1, 1]
                    changes[born[block]] -= nbytes
                    changes[min(gone.get(block, count), count)] += nbytes if block in gone else 0
        self.base = np.ascontiguousarray(np.cumsum(changes))
        for position, nbytes in record.temporaries:
            self.base[position] += nbytes

    def _note(self, value: int, idle_from: int, needed: int, ends: int) -> None:
        known = self.needed[value] >= 0
        self.idle_from[value] = idle_from
        self.needed[value] = min(self.needed[value], needed) if known else needed
        self.ends[value] = max(self.ends[value], ends)


def _is_repeatable(tape: ForwardTape, operation: TapeOperation) -> bool:
    return operation.pure and not reads_unstable(operation, tape.unstable)


def _is_dropout_mask(tape: ForwardTape, value: int) -> bool:
    """Return whether ``value`` is a dropout mask: every element is zero or one fixed number."""
    producer = tape.producers[value]
    if producer < 0 or tape.names[producer] not in ("div_", "bernoulli_"):
        return False
    changed = tape.operations[producer]
    if tape.names[producer] == "bernoulli_":
        return True
    before = changed.changes[0] if changed.changes else -1
    return before >= 0 and tape.names[tape.producers[before]] == "bernoulli_"


def _seconds(tape: ForwardTape) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the seconds of each operation: the least of those with the same name and bytes."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for index, operation in enumerate(tape.operations):
        made = tuple(tape.nbytes[value] for value in operation.makes)
        read = tuple(sorted(tape.nbytes[value] for value in operation.reads))
        alike[tape.names[index], made, read].append(index)
    seconds = np.array([each.seconds for each in tape.operations], np.float64)
    for indices in alike.values():
        seconds[indices] = seconds[indices].min()
    return seconds


def _to_csr(rows: Iterable[Sequence[int]]) -> tuple[Any, Any]:
    """Return rows of different lengths as (starts, items), as in a CSR matrix."""
    rows = [list(each) for each in rows]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in rows])])
    return starts.astype(np.int64), np.array([item for each in rows for item in each], np.int32)
