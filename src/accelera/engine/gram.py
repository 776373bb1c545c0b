"""Gram matrices through a plan: ``AᴴA`` (or ``AAᴴ``) at half the products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from accelera.devices import Device
from accelera.engine.calibration import cost_model
from accelera.engine.dtypes import held_dtype
from accelera.engine.job import PlannedJob, carry_out
from accelera.engine.operands import ResultTarget, describe, factor_dtype
from accelera.engine.options import USUAL, MemorySplit, OperationOptions
from accelera.engine.report import RunReport
from accelera.engine.staging import PIECE_BYTES
from accelera.errors import DTypeError, ShapeError
from accelera.plan import Plan
from accelera.plan._internal import GramProblem, Operand, PlanLimits, PlanStep, plan_gram
from accelera.stores import Store
from accelera.stores._internal import Layout, Region

Array = np.ndarray[Any, np.dtype[Any]]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class PlannedGram:
    """``AᴴA``, checked and ready to be planned."""

    a: Store
    """(…, depth, size): A itself, or its transpose for ``AAᴴ``."""
    out: Any = None
    options: OperationOptions = USUAL
    turned: bool = False
    """Whether the result is the transpose of what is computed (complex ``AAᴴ``)."""

    @classmethod
    def of(cls, a: Store, out: Any, side: Side, options: OperationOptions = USUAL) -> PlannedGram:
        """Check the operand; raises ShapeError and DTypeError."""
        if a.ndim < 2:
            raise ShapeError(f"[gram] shape {a.shape}: a matrix is needed; use a norm for vectors")
        if a.dtype.kind == "b":
            raise DTypeError("[gram] bool cannot be multiplied; convert with astype")
        if side not in ("left", "right"):
            raise ShapeError(f"[gram] side={side!r}: it is 'left' (AᴴA) or 'right' (AAᴴ)")
        if side == "left":
            return cls(a, out, options)
        return cls(_turned(a), out, options, a.dtype.kind == "c")

    def target(self) -> ResultTarget:
        """Return where the result goes."""
        size = self.a.shape[-1]
        return ResultTarget(self.out, (*self.a.shape[:-2], size, size), self.a.dtype)

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan for ``device``; ``limit_bytes`` lowers the room further."""
        held = held_dtype(self.a.dtype)
        factors = describe("A", self.a, device, factor_dtype(self.a.dtype, device))
        problem = GramProblem(factors, self._result(device, held))
        options = self.options
        new_bytes = self.target().new_bytes
        room = MemorySplit.on(device, options.budget_bytes, problem.operands, options.readers, new_bytes)
        room = replace(room, reserved={**room.reserved, **self._beside(device)})
        return options.planned(
            lambda window: plan_gram(
                problem,
                PlanLimits(
                    room.capacity(limit_bytes),
                    options.budget_bytes,
                    room.reserved,
                    room.tier,
                    window=window,
                    eviction=options.eviction,
                ),
                cost_model(device),
                spec=spec if limit_bytes is None else None,
            ),
        )

    def _beside(self, device: Device) -> dict[str, int]:
        """Return what complex numbers take: conjugates being written, operands being packed."""
        if self.a.dtype.kind != "c":
            return {}
        return {"conjugates": PIECE_BYTES, "packing": device.packing_bytes()}

    def _result(self, device: Device, held: np.dtype[Any]) -> Operand:
        """Describe the result, which may not exist yet."""
        target = self.target()
        axes = list(range(self.a.ndim))
        if self.turned:
            axes[-2:] = axes[-1], axes[-2]
        plain = Operand("G", target.shape, target.dtype, held, "ram", tuple(axes))
        if target.path is not None:
            return replace(plain, tier="disk", chunk=target.chunk, scratch_bytes=target.scratch_bytes)
        if target.out is None:
            return replace(plain, in_place=device.host_memory and target.dtype == held)
        target.check("gram", [self.a])
        return describe("G", self._result_view(target.given()), device, held)

    def _result_view(self, store: Store) -> Mirrored:
        return Mirrored(_turned(store) if self.turned else store)

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs."""
        kernel = _GramKernel()

        def view(store: Store) -> Store:
            kernel.result = self._result_view(store)
            return kernel.result

        return PlannedJob("gram", (self.a,), ("A",), self.target(), view, self.plan, kernel)


def gram(
    a: Store,
    out: Any = None,
    *,
    side: Side = "left",
    device: Device,
    options: OperationOptions = USUAL,
) -> tuple[Store, RunReport]:
    """Compute ``AᴴA`` (``side="right"``: ``AAᴴ``) by a plan; return the result's store and the report.

    ``a`` is ``(…, m, n)``, the result ``(…, n, n)`` or ``(…, m, m)`` of the same element type; half types
    are summed in float32. Raises ShapeError, DTypeError, BudgetExceededError (before anything is
    allocated), StoreError.
    """
    job = replace(PlannedGram.of(a, out, side, options).job(), header={"task": side})
    return carry_out(job, device, options)


def plan_gram_of(
    a: Store,
    out: Any = None,
    *,
    side: Side = "left",
    device: Device,
    options: OperationOptions = USUAL,
) -> Plan:
    """Return the plan that ``gram`` would follow; nothing is read or allocated."""
    return PlannedGram.of(a, out, side, options).plan(device)


class _GramKernel:
    """Computes one slab of one tile; after the last slab, completes the tile."""

    def __init__(self) -> None:
        self.result: Mirrored | None = None
        """The result under way, once it exists."""

    def __call__(self, device: Device, step: PlanStep, arrays: Sequence[Any], out: Any) -> None:
        on_diagonal: bool = step.task
        if on_diagonal:
            device.gram(arrays[0], out, accumulate=not step.first)
        else:
            left, right = arrays
            device.gemm(left.swapaxes(-1, -2), right, out, accumulate=not step.first, conjugate_a=True)
        if not step.last:
            return
        if on_diagonal:
            device.symmetrize(out)
            _make_diagonal_real(out)
        elif not step.write.held_bytes and self.result is not None:
            self.result.reflect(step.write.region, out)


def _make_diagonal_real(square: Any) -> None:
    """Set the imaginary parts on the diagonal of an array in RAM, which are rounding errors, to zero."""
    if isinstance(square, np.ndarray) and square.dtype.kind == "c":
        np.einsum("...ii->...i", square.imag)[...] = 0


@final
class Mirrored(Store):
    """A Hermitian result: blocks off the diagonal are written to both triangles."""

    def __init__(self, base: Store) -> None:
        self._base = base
        self.shape, self.dtype, self.tier, self.name = base.shape, base.dtype, base.tier, base.name

    def read(self, region: Region, out: Array) -> int:
        """Read from the base."""
        return self._base.read(region, out)

    def write(self, region: Region, data: Array) -> int:
        """Write ``data``, and its conjugate transpose unless it touches the diagonal; return all bytes."""
        written = self._base.write(region, data)
        return written + (self.reflect(region, data) if region[-2].stop <= region[-1].start else 0)

    def reflect(self, region: Region, data: Array) -> int:
        """Write the conjugate transpose of ``data``, complex data some rows at a time; return its bytes."""
        *lead, rows, cols = region
        if self.dtype.kind != "c":
            return self._base.write((*lead, cols, rows), data.swapaxes(-1, -2))
        count = max(1, PIECE_BYTES // max(1, data.nbytes // max(1, data.shape[-2])))
        written = 0
        for start in range(rows.start, rows.stop, count):
            part = slice(start, min(start + count, rows.stop))
            piece = data[..., part.start - rows.start : part.stop - rows.start, :]
            written += self._base.write((*lead, cols, part), np.conjugate(piece).swapaxes(-1, -2))
        return written

    @property
    def layout(self) -> Layout:
        """Layout of the base."""
        return self._base.layout

    @property
    def scratch_bytes(self) -> int:
        """Scratch bytes of the base."""
        return self._base.scratch_bytes

    def resident(self) -> Array | None:
        """Return the base's array."""
        return self._base.resident()

    def flush(self) -> None:
        """Make what was written durable."""
        self._base.flush()


def _turned(store: Store) -> Store:
    """Return a view with the last two axes exchanged."""
    axes = list(range(store.ndim))
    return store.transpose([*axes[:-2], axes[-1], axes[-2]])
