"""Walk a plan on paper: its misses, bytes, peak, and a timeline of reads, arithmetic and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from accelera.memory.ledger import Ledger
from accelera.plan.cost import CostModel
from accelera.plan.operand import Block, Operand
from accelera.plan.plan import Forecast, Step
from accelera.plan.walk import access_sequence, walk
from accelera.policy import Belady


class _PaperBooks:
    """A ledger that also adds up what is read, and when it arrives."""

    def __init__(self, ledger: Ledger, operands: Sequence[Operand], cost: CostModel) -> None:
        self.ledger = ledger
        self.read: Counter[int] = Counter()
        self.loads_s = 0.0
        self._operands = operands
        self._cost = cost

    def admit(self, block: Block, step: int, *, write: bool) -> None:
        resident, _ = self.ledger.admit(block.id, block.held_bytes)
        if resident or write:
            return
        self.read[block.operand] += block.moved_bytes
        tier = self._operands[block.operand].tier
        self.loads_s += self._cost.read_s(block.moved_bytes, block.run_bytes, tier)

    def unpin(self, block: Block) -> None:
        self.ledger.unpin(block.id)

    def free(self, block: Block, step: int) -> None:
        self.ledger.free(block.id)


def forecast(
    steps: Sequence[Step], operands: Sequence[Operand], capacity_bytes: int, window: int, cost: CostModel
) -> Forecast:
    """Return what running ``steps`` in ``capacity_bytes`` will move, hold and take.

    Raises BudgetExceededError when the pinned blocks of some step do not fit.
    """
    ledger = Ledger(capacity_bytes, Belady(access_sequence(steps)))
    books = _PaperBooks(ledger, operands, cost)
    target = operands[-1]
    done = [0.0] * (len(steps) + 1)
    read_free = write_free = compute_s = 0.0
    written = 0
    for index, step in walk(steps, window, books):
        admitted = done[index - window] if index >= window else 0.0
        read_free = max(read_free, admitted) + books.loads_s
        books.loads_s = 0.0
        done[index] = max(done[index - 1], read_free) + step.compute_s
        compute_s += step.compute_s
        if step.last:
            written += step.write.moved_bytes
            spent = cost.write_s(step.write.moved_bytes, step.write.run_bytes, target.tier)
            write_free = max(write_free, done[index]) + spent
    stats = ledger.stats
    return Forecast(
        peak_pool_bytes=stats.peak_bytes,
        bytes_read={operands[i].name: books.read[i] for i in range(len(operands) - 1)},
        bytes_written=written,
        hits=stats.hits,
        misses=stats.misses,
        evictions=stats.evictions,
        steps=len(steps),
        seconds=max([write_free, *done[: len(steps)]], default=0.0),
        compute_s=compute_s,
    )
