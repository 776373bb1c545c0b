"""Operations by a plan on opened operands, with their options as keywords: those of ``OperationOptions``."""

from __future__ import annotations

from typing import Any

from accelera.devices import Device
from accelera.engine import Progress, RunObserver, RunReport, pipeline
from accelera.engine import evaluate as evaluation
from accelera.engine import gram as grams
from accelera.engine.job import carry_out
from accelera.engine.matmul import PlannedMatmul, spans_of
from accelera.engine.options import OperationOptions
from accelera.engine.sparse import sparse_product
from accelera.plan import Plan
from accelera.stores import Store

Found = tuple[Store, RunReport]


class StopAfter(RunObserver):
    """Ends a run, as Ctrl-C does, once so many blocks of the result are there, in whichever thread."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles

    def on_progress(self, progress: Progress) -> None:
        if progress.done_tiles >= self._tiles:
            raise KeyboardInterrupt


def matmul(
    a: Store, b: Store, out: Any = None, *, device: Device, tiles: Any = None, **options: Any
) -> Found:
    """Compute ``A @ B``."""
    product = PlannedMatmul(a, b, out, OperationOptions(**options), spans_of(tiles))
    return carry_out(product.job(), device, product.options)


def sparse_matmul(a: Any, b: Any, out: Any = None, *, device: Device, **options: Any) -> Found:
    """Compute ``A @ B`` of a sparse matrix and another operand."""
    product = sparse_product(a, b, out, OperationOptions(**options))
    return carry_out(product.job(), device, product.options)


def gram(a: Store, out: Any = None, *, side: Any = "left", device: Device, **options: Any) -> Found:
    """Compute ``AᴴA``, or ``AAᴴ``."""
    return grams.gram(a, out, side=side, device=device, options=OperationOptions(**options))


def plan_gram_of(a: Store, out: Any = None, *, side: Any = "left", device: Device, **options: Any) -> Plan:
    """Return the plan of a Gram matrix."""
    return grams.plan_gram_of(a, out, side=side, device=device, options=OperationOptions(**options))


def evaluate(
    expr: Any,
    out: Any = None,
    *,
    device: Device,
    operation: str = "evaluate",
    dtype: Any = None,
    check: Any = None,
    **options: Any,
) -> Found:
    """Compute an element-wise expression or a reduction of one."""
    wanted = OperationOptions(**options)
    return evaluation.evaluate(
        expr, out, device=device, options=wanted, operation=operation, dtype=dtype, check=check
    )


def plan_evaluate(expr: Any, out: Any = None, *, device: Device, **options: Any) -> Plan:
    """Return the plan of an element-wise expression or a reduction of one."""
    return evaluation.plan_evaluate(expr, out, device=device, options=OperationOptions(**options))


def evaluate_all(expr: Any, out: Any = None, *, device: Device, **options: Any) -> Found:
    """Compute any expression."""
    return pipeline.evaluate_all(expr, out, device=device, options=OperationOptions(**options))


def copy(src: Any, out: Any = None, dtype: Any = None, *, device: Device, **options: Any) -> Found:
    """Copy an array."""
    return evaluation.copy(src, out, dtype, device=device, options=OperationOptions(**options))


def transpose(a: Any, axes: Any = None, out: Any = None, *, device: Device, **options: Any) -> Found:
    """Write an array with its axes permuted."""
    return evaluation.transpose(a, axes, out, device=device, options=OperationOptions(**options))
