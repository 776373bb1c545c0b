"""Product of matrices by a plan: operands anywhere, inside a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accelera.chunking import ChunkingStrategy
from accelera.chunking._internal import Region, covering
from accelera.devices import Device
from accelera.engine.calibration import cost_model
from accelera.engine.dtypes import held_dtype
from accelera.engine.job import PlannedJob
from accelera.engine.operands import (
    ResultTarget,
    as_matrices,
    check_matmul_dtypes,
    describe,
    factor_dtype,
    matmul_shape,
    result_view,
)
from accelera.engine.options import USUAL, MemorySplit, OperationOptions
from accelera.plan import Plan
from accelera.plan._internal import CostModel, MatmulProblem, Operand, PlanLimits, PlanStep, Span, plan_matmul
from accelera.stores import Store


def result_tiles(
    strategy: ChunkingStrategy, shape: tuple[int, int], chunk_size: int
) -> list[tuple[slice, slice]]:
    """Return the (rows, columns) of the chunks that ``strategy`` cuts a result of ``shape`` into.

    A product with batch axes is cut in its last two. Raises ShapeError when the chunks do not cover
    the result once.
    """
    return [_rows_and_columns(box) for box in covering(strategy.get_chunks(shape, chunk_size), shape)]


def _rows_and_columns(box: Region) -> tuple[slice, slice]:
    rows, columns = box
    return rows, columns


Tile = tuple[slice, slice]


@dataclass(frozen=True)
class PlannedMatmul:
    """``A @ B``, checked and ready to be planned."""

    a: Store
    b: Store
    out: Any = None
    options: OperationOptions = USUAL
    tiles: tuple[tuple[Span, Span], ...] | None = None
    """Spans of the (rows, columns) that were fixed; None: the planner chooses."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return matmul_shape(self.a.shape, self.b.shape)

    def target(self) -> ResultTarget:
        """Return where the result goes."""
        return ResultTarget(self.out, self.shape, check_matmul_dtypes(self.a, self.b))

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan for ``device``; with ``limit_bytes`` in less memory, with tiles of its own."""
        options = self.options
        instead = device.host_memory and options.host_budget_bytes is not None
        budget_bytes = options.host_budget_bytes if instead else options.budget_bytes
        problem = self.problem(device)
        room = MemorySplit.on(
            device, budget_bytes, problem.operands, options.readers, self.target().new_bytes
        )
        room = replace(room, reserved={**room.reserved, **self.beside()})
        tiles, spec = (self.tiles, spec) if limit_bytes is None else (None, None)
        return self.planned(problem, device, room, budget_bytes, limit_bytes, tiles, spec)

    def planned(
        self,
        problem: MatmulProblem,
        device: Device,
        room: MemorySplit,
        budget_bytes: int | None,
        limit_bytes: int | None = None,
        tiles: tuple[tuple[Span, Span], ...] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> Plan:
        """Return the plan of ``problem``, the whole product or one block of it, within ``room``."""
        return self.options.planned(
            lambda window: plan_matmul(
                problem,
                PlanLimits(
                    room.capacity(limit_bytes),
                    budget_bytes,
                    room.reserved,
                    room.tier,
                    window=window,
                    eviction=self.options.eviction,
                ),
                self.rates(device),
                tiles=tiles,
                spec=spec,
                objective=self.options.objective,
            ),
        )

    def problem(self, device: Device) -> MatmulProblem:
        """Return the planner's description of the product on ``device``."""
        a, b = as_matrices(self.a, self.b)
        factors, held = factor_dtype(a.dtype, device), held_dtype(a.dtype)
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        target = self.target()
        return MatmulProblem(
            self.describe_factor("A", a, device, factors),
            self.describe_factor("B", b, device, factors),
            _result(target, shape, device, held),
        )

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs."""
        return PlannedJob(
            operation="matmul",
            inputs=as_matrices(self.a, self.b),
            names=("A", "B"),
            target=self.target(),
            result_view=lambda store: result_view(store, self.a.ndim, self.b.ndim),
            plan=self.plan,
            kernel=self.kernel,
        )

    def rates(self, device: Device) -> CostModel:
        """Return the cost model of moves and arithmetic on ``device``."""
        return cost_model(device)

    def describe_factor(self, name: str, store: Store, device: Device, held: np.dtype[Any]) -> Operand:
        """Return the planner's description of a factor."""
        return describe(name, store, device, held)

    def beside(self) -> Mapping[str, int]:
        """Return the bytes that the factors take besides blocks, by purpose."""
        return {}

    def kernel(self, device: Device, step: PlanStep, arrays: Sequence[Any], out: Any) -> None:
        """Compute one step."""
        multiply(device, step, arrays, out)


def _result(target: ResultTarget, shape: tuple[int, ...], device: Device, held: np.dtype[Any]) -> Operand:
    """Return the planner's description of a new result, or of the store that takes it."""
    plain = Operand("C", shape, target.dtype, held, "ram")
    if target.path is not None:
        return replace(
            plain, tier="disk", scratch_bytes=target.scratch_bytes, chunk=_chunk(target.chunk, shape)
        )
    if target.out is None:
        return replace(plain, in_place=device.host_memory and target.dtype == held)
    given = target.given()
    resident = given.resident() if device.host_memory and given.dtype == held else None
    return replace(
        plain,
        tier=given.tier,
        order=tuple(given.layout.order) if given.ndim == len(shape) else (),
        chunk=_chunk(given.layout.chunk, shape),
        scratch_bytes=given.scratch_bytes,
        in_place=resident is not None and device.can_take(resident),
    )


def _chunk(chunk: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the result's chunk where the plan has the same axes, else None."""
    return chunk if chunk is not None and len(chunk) == len(shape) else None


def spans_of(tiles: Iterable[Tile] | None) -> tuple[tuple[Span, Span], ...] | None:
    """Return the bounds of (row slice, column slice) pairs; None stays None."""
    if tiles is None:
        return None
    return tuple(((rows.start, rows.stop), (cols.start, cols.stop)) for rows, cols in tiles)


def multiply(device: Device, step: PlanStep, arrays: Sequence[Any], out: Any) -> None:
    """Kernel of one matmul step."""
    (a, b), ((a0, a1), (b0, b1)) = arrays, step.task
    device.gemm(a[..., a0:a1], b[..., b0:b1, :], out, accumulate=not step.first)
