"""Copies: an array to another store, with its axes in another order, in another element type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accelera.devices import Device
from accelera.engine.evaluate import evaluate
from accelera.engine.expression import lazy
from accelera.engine.options import USUAL, OperationOptions
from accelera.engine.promotion import check_lossless
from accelera.engine.report import RunReport
from accelera.errors import DTypeError
from accelera.stores import Store, parse_dtype


def copy(
    src: Any, out: Any = None, dtype: Any = None, *, device: Device, options: OperationOptions = USUAL
) -> tuple[Store, RunReport]:
    """Copy ``src`` into ``out``, converted to ``dtype``; the format follows from the name of ``out``.

    Reals are rounded once, to the nearest, and become infinite when they are too large. What would lose
    more than precision raises DTypeError: a fraction or an imaginary part before anything is written, an
    integer that does not fit when it is met. All else is as in ``evaluate``.
    """
    source = lazy(src)
    wanted = source.dtype if dtype is None else parse_dtype(dtype, op="copy")
    check_lossless("copy", source.dtype, wanted)
    check = _narrowing(source.dtype, wanted)
    return evaluate(source, out, device=device, options=options, operation="copy", dtype=wanted, check=check)


def transpose(
    a: Any,
    axes: Sequence[int] | None = None,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
) -> tuple[Store, RunReport]:
    """Write ``a`` with permuted axes (reversed by default) into ``out``, so that it lies in the new order.

    Reading a transposed view needs none of this: ``engine.array(a).T`` is free. Raises ShapeError when
    ``axes`` does not name each axis once. All else is as in ``evaluate``.
    """
    return evaluate(lazy(a).transpose(axes), out, device=device, options=options, operation="transpose")


def _narrowing(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Return what looks whether integers fit ``target``; None where they always do."""
    if source.kind not in "iu" or target.kind not in "iu" or np.can_cast(source, target):
        return None
    limits = np.iinfo(target)

    def check(values: np.ndarray[Any, Any]) -> None:
        least, most = int(values.min()), int(values.max())
        if least < limits.min or most > limits.max:
            wrong = least if least < limits.min else most
            raise DTypeError(
                f"[copy] {wrong} does not fit {target} ({limits.min} to {limits.max}); choose a wider type"
            )

    return check
