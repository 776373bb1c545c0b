"""Blocks of a product that are made apart: the result cut into them, and a plan for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, final

from accelera.devices import Device
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.options import MemorySplit
from accelera.plan import Plan
from accelera.plan._internal import (
    BlockTable,
    CostModel,
    DevicePlacement,
    Forecast,
    MatmulProblem,
    PlanStep,
    Span,
    Spans,
    split,
)

USUAL_BLOCKS = 16
"""Usual number of blocks: enough for two devices to finish at about the same time."""


def cut(problem: MatmulProblem, wanted: int, chunk: tuple[int, ...] | None = None) -> tuple[Spans, ...]:
    """Return the blocks of the result of ``problem``: about ``wanted``, fewer when it is small.

    Batches are cut first, as then no operand is read twice; then rows and columns, so that the fewest bytes
    are read: a block reads its rows of A and its columns of B. Cuts lie at multiples of ``chunk``, the chunk
    shape of a chunked result, so that no two blocks write one chunk.
    """
    grains = _alignments(problem, chunk)
    parts = [1] * len(problem.batch)
    if parts:
        longest = max(range(len(parts)), key=lambda axis: problem.batch[axis])
        parts[longest] = max(1, min(wanted, problem.batch[longest] // grains[longest]))
    rest = math.ceil(wanted / math.prod(parts))
    parts += _grid(problem, rest, grains[-2:])
    sizes = (*problem.batch, problem.m, problem.n)
    axes = [split(size, count, grain) for size, count, grain in zip(sizes, parts, grains, strict=True)]
    return tuple(product(*axes))


def blocks_of(spec: Mapping[str, Any] | None) -> tuple[Spans, ...]:
    """Return the blocks that a plan's ``spec`` names; none when it is of another kind."""
    found = () if spec is None else spec.get("blocks", ())
    return tuple(tuple((start, stop) for start, stop in block) for block in found)


def aligned(blocks: tuple[Spans, ...], chunk: tuple[int, ...] | None) -> tuple[Spans, ...]:
    """Return ``blocks``, or none of them if two share a chunk: two processes could write it at once."""
    if chunk is None:
        return blocks
    spans = (zip(block[-len(chunk) :], chunk, strict=True) for block in blocks)
    return blocks if all(start % size == 0 for block in spans for (start, _), size in block) else ()


def _alignments(problem: MatmulProblem, chunk: tuple[int, ...] | None) -> tuple[int, ...]:
    rows, _, columns = problem.grains
    usual = (*(1 for _ in problem.batch), rows, columns)
    return usual if chunk is None else (*(1,) * (len(usual) - len(chunk)), *chunk)


def _grid(problem: MatmulProblem, count: int, grains: tuple[int, ...]) -> tuple[int, int]:
    """Return the (row, column) counts with at least ``count`` parts, if possible, that read the least."""
    most = [max(1, size // grain) for size, grain in zip((problem.m, problem.n), grains, strict=True)]
    grids = [(rows, math.ceil(count / rows)) for rows in range(1, count + 1)]
    fitting = [(min(rows, most[0]), min(columns, most[1])) for rows, columns in grids]
    enough = max(rows * columns for rows, columns in fitting)
    least = min(enough, count)
    return min(
        (each for each in fitting if each[0] * each[1] >= least),
        key=lambda each: (each[0] * problem.n + each[1] * problem.m, each),
    )


def steps_of(problem: MatmulProblem, blocks: tuple[Spans, ...], cost: CostModel) -> Iterator[PlanStep]:
    """Yield one step for each block: the parts of A and B that it reads whole, and the part it writes."""
    table, depth = BlockTable(problem.operands), (0, problem.k)
    for spans in blocks:
        *batch, rows, columns = spans
        matrices = math.prod(stop - start for start, stop in batch)
        m, n = rows[1] - rows[0], columns[1] - columns[0]
        yield PlanStep(
            reads=(
                table.block(0, (*_batch_of(problem.a.shape, batch), rows, depth)),
                table.block(1, (*_batch_of(problem.b.shape, batch), depth, columns)),
            ),
            write=table.block(2, spans),
            first=True,
            last=True,
            task=(depth, depth),
            compute_s=matrices * cost.gemm_s(m, problem.k, n, problem.flops_scale),
            flops=2.0 * matrices * m * n * problem.k * (4 if problem.c.dtype.kind == "c" else 1),
        )


def _batch_of(shape: tuple[int, ...], batch: list[Span]) -> list[Span]:
    """Return the part of an operand's batch axes that a block needs; axes of length 1 are repeated."""
    return [(0, 1) if size == 1 else span for size, span in zip(shape[:-2], batch, strict=True)]


_Shapes = tuple[tuple[int, ...], ...]


@final
class BlockPlans:
    """Plans of single blocks of ``product`` on one device, in ``room``."""

    def __init__(self, product: PlannedMatmul, device: Device, room: MemorySplit) -> None:
        self.device = device
        self._product = product
        self._problem = product.problem(device)
        self.budget_bytes = room.budget_bytes
        self._room = room
        self._plans: dict[tuple[_Shapes, int | None], Plan] = {}

    def plan(self, step: PlanStep, limit_bytes: int | None = None) -> Plan:
        """Return the plan of the block that ``step`` writes, with at most ``limit_bytes`` in the pool.

        Raises BudgetExceededError when there is no room for it.
        """
        shapes = tuple(block.shape for block in (*step.reads, step.write))
        if (shapes, limit_bytes) not in self._plans:
            self._plans[shapes, limit_bytes] = self._make_plan(shapes, limit_bytes)
        return self._plans[shapes, limit_bytes]

    def _make_plan(self, shapes: _Shapes, limit_bytes: int | None) -> Plan:
        parts = [
            replace(operand, shape=shape)
            for operand, shape in zip(self._problem.operands, shapes, strict=True)
        ]
        problem, budget_bytes = MatmulProblem(*parts), self._room.budget_bytes
        return self._product.planned(problem, self.device, self._room, budget_bytes, limit_bytes)


def chunk_of(product: PlannedMatmul) -> tuple[int, ...] | None:
    """Return the chunk of a new chunked result, with both matrix axes; None elsewhere."""
    chunk = product.target().chunk
    if chunk is None:
        return None
    if product.b.ndim == 1:
        chunk = (*chunk, 1)
    return (*chunk[:-1], 1, chunk[-1]) if product.a.ndim == 1 else chunk


def largest_of(plans: Sequence[Plan]) -> Plan:
    """Return the plan of the block that takes most memory."""
    return max(plans, key=lambda plan: plan.peak_bytes[plan.tier])


def sum_of(largest: Forecast, taken: Sequence[Plan], placement: DevicePlacement) -> Forecast:
    """Return the forecast of all blocks; the peak is the CPU's, the time that of the slowest device."""
    forecasts = [plan.forecast for plan in taken]

    def total(figure: str) -> Any:
        return sum(getattr(each, figure) for each in forecasts)

    return Forecast(
        peak_pool_bytes=largest.peak_pool_bytes,
        bytes_read={name: sum(each.bytes_read[name] for each in forecasts) for name in ("A", "B")},
        bytes_written=total("bytes_written"),
        hits=total("hits"),
        misses=total("misses"),
        evictions=total("evictions"),
        fetched_bytes=total("fetched_bytes"),
        saved_bytes=total("saved_bytes"),
        steps=len(taken),
        passes=1,
        seconds=max(each.seconds for each in placement.devices),
        compute_s=total("compute_s"),
        stall_s=total("stall_s"),
        read_s=total("read_s"),
        write_s=total("write_s"),
    )
