"""Which shapes go together element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accelera.errors import ShapeError


def broadcast_shape(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape two shapes broadcast to; raises ShapeError naming both.

    >>> broadcast_shape("add", (4, 1, 3), (2, 3))
    (4, 2, 3)
    """
    try:
        return np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError as error:
        raise ShapeError(
            f"[{op}] A of shape {tuple(a)} and B of shape {tuple(b)} do not broadcast: "
            "counted from the last, axes must be equal or 1"
        ) from error
