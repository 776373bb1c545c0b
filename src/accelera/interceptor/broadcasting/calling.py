"""Which axes one call of the library's batched product takes; the others are looped over.

The library takes a stack of matrices of any stride, also zero, as long as one axis of every matrix is
contiguous. Whatever else it is given it copies first.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from accelera.interceptor.broadcasting.axes import ONE, Axes, Axis

_CALL_ELEMENTS = 20_000
"""What starting a call costs, as elements that would be moved in its time."""


class Call(NamedTuple):
    """One axis of each kind for the library, and the axes that are looped over."""

    batch: Axis
    rows: Axis
    columns: Axis
    inner: Axis
    loops: tuple[Axis, ...]
    """Outer to inner; those that are summed over come last."""
    copied_elements: int
    """Elements that the library copies of its operands, per matrix of the stack."""


def choose_call(axes: Axes, *, copies_x: bool, copies_y: bool, copies_repeated: bool) -> Call:
    """Return the call that moves the fewest elements in all.

    Parameters
    ----------
    copies_x, copies_y
        Whether the library copies this operand whatever its strides, as it does with lazily conjugated ones.
    copies_repeated
        Whether it copies an operand that is the same for the whole stack, as it does with 16-bit types.
    """
    # A batch axis that one operand lacks is also a stack of equal matrices: one call instead of a loop.
    stacks = (*axes.batch, *axes.rows, *axes.columns)
    best: tuple[float, Call] | None = None
    for batch, rows, columns, inner in itertools.product(*map(_or_one, (stacks, *axes[1:]))):
        if batch is not ONE and (batch is rows or batch is columns):
            continue
        loops = _others(axes, batch, rows, columns, inner)
        copied = _copied(batch, rows, columns, inner, copies_x, copies_y, copies_repeated)
        call = Call(batch, rows, columns, inner, loops, copied)
        cost = _moved(call)
        if best is None or cost < best[0]:
            best = (cost, call)
    assert best is not None
    return best[1]


def copies_whatever(tensor: torch.Tensor) -> bool:
    """Return whether the library copies this operand because it is lazily conjugated."""
    return tensor.is_conj()


def copies_repeated(tensor: torch.Tensor) -> bool:
    """Return whether the library copies what is repeated, for elements of this type."""
    return tensor.dtype in (torch.bfloat16, torch.float16) and tensor.device.type == "cpu"


def _or_one(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return (*axes, ONE)


def _others(axes: Axes, *taken: Axis) -> tuple[Axis, ...]:
    left = [axis for axis in itertools.chain(*axes) if not any(axis is each for each in taken)]
    return tuple(left)


def _copied(
    batch: Axis, rows: Axis, columns: Axis, inner: Axis, copies_x: bool, copies_y: bool, repeated: bool
) -> int:
    of_x, of_y, of_out = rows.size * inner.size, inner.size * columns.size, rows.size * columns.size
    many = batch.size > 1 and repeated
    copied = 0
    if copies_x or (many and not batch.x) or not _is_plain(rows.size, rows.x, inner.size, inner.x):
        copied += of_x
    if copies_y or (many and not batch.y) or not _is_plain(inner.size, inner.y, columns.size, columns.y):
        copied += of_y
    if not _is_plain(rows.size, rows.out, columns.size, columns.out):
        copied += of_out
    return copied


def _is_plain(first: int, first_stride: int, second: int, second_stride: int) -> bool:
    """Return whether a matrix of these sizes and strides is one that the library takes in place."""
    if first == 1 or second == 1:
        return True
    by_rows = second_stride == 1 and first_stride >= second
    return by_rows or (first_stride == 1 and second_stride >= first)


def _moved(call: Call) -> float:
    calls = math.prod(axis.size for axis in call.loops)
    rows, columns, inner = call.rows.size, call.columns.size, call.inner.size
    per_matrix = rows * inner + inner * columns + rows * columns + 2 * call.copied_elements
    return calls * (_CALL_ELEMENTS + call.batch.size * per_matrix)
