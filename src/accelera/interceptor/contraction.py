"""``out = x @ y`` over broadcast batch axes, summed over those that the result lacks; operands in place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

SCRATCH_BYTES = 64 << 20
"""Most bytes that operands copied by the library and partial sums take, unless one matrix has more."""

_HALF_TYPES = (torch.bfloat16, torch.float16)


def contract(
    x: torch.Tensor,
    y: torch.Tensor,
    out: torch.Tensor,
    *,
    alpha: float = 1,
    accumulate: bool = False,
    scratch_bytes: int = SCRATCH_BYTES,
) -> torch.Tensor:
    """Write ``alpha * (x @ y)`` into ``out``, or add it.

    Parameters
    ----------
    x, y, out
        ``(*batch, m, k)``, ``(*batch, k, n)``, ``(*batch, m, n)``: one rank, one dtype, any strides, nothing
        empty. A batch axis has size 1 where a tensor lacks it: what only operands have is summed over.
    accumulate
        Whether to add to what ``out`` holds.
    scratch_bytes
        Most memory to take beyond ``out``; one matrix of the stack is copied whatever this says.

    Returns
    -------
    torch.Tensor
        ``out``.
    """
    call = choose_call(
        sort_axes(x, y, out),
        copies_x=copies_always(x),
        copies_y=copies_always(y),
        copies_repeated=copies_repeated(x),
    )
    run = _ContractionRun(x, y, out, call, scratch_bytes)
    summed = [axis for axis in call.loops if not axis.out]
    kept = [axis for axis in call.loops if axis.out]
    for place in _offsets(kept):
        if len(summed) and out.dtype in _HALF_TYPES:
            run.sum_in_float32(place, list(_offsets(summed)), alpha, accumulate)
            continue
        for count, part in enumerate(_offsets(summed)):
            run.multiply(_sum_offsets(place, part), alpha, keep=accumulate or count > 0)
    return out


Place = tuple[int, int, int]
"""Offsets into x, y and out, in elements."""


class _ContractionRun:
    """The tensors of one contraction, cut into calls of the library."""

    def __init__(
        self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, call: GemmCall, scratch_bytes: int
    ) -> None:
        self._x, self._y, self._out, self._call = x, y, out, call
        per_matrix = call.copied_elements * out.element_size()
        self._most = max(1, scratch_bytes // per_matrix) if per_matrix else call.batch.size
        self._scratch_bytes = scratch_bytes

    def multiply(self, place: Place, alpha: float, *, keep: bool) -> None:
        """Write one call's product at ``place``, or add it when ``keep``."""
        for first, size in _pieces(self._call.batch.size, self._most):
            x, y, out = self._matrix_stacks(place, first, size)
            _multiply_into(out, x, y, alpha, beta=1 if keep else 0)

    def sum_in_float32(self, place: Place, parts: Sequence[Place], alpha: float, accumulate: bool) -> None:
        """Add up 16-bit products in single precision, as PyTorch sums them."""
        matrix = self._call.rows.size * self._call.columns.size
        most = min(self._most, max(1, self._scratch_bytes // (matrix * 6)))
        for first, size in _pieces(self._call.batch.size, most):
            out = self._matrix_stacks(place, first, size)[2]
            total = out.float() if accumulate else torch.zeros(out.shape, device=out.device)
            product = torch.empty(out.shape, dtype=out.dtype, device=out.device)
            for part in parts:
                x, y, _ = self._matrix_stacks(_sum_offsets(place, part), first, size)
                total.add_(torch.bmm(x, y, out=product), alpha=alpha)
            out.copy_(total)

    def _matrix_stacks(
        self, place: Place, first: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, rows, columns, inner = self._call[:4]
        x = _stack(
            self._x, (size, rows.size, inner.size), (batch.x, rows.x, inner.x), place[0] + first * batch.x
        )
        y = _stack(
            self._y,
            (size, inner.size, columns.size),
            (batch.y, inner.y, columns.y),
            place[1] + first * batch.y,
        )
        out = _stack(
            self._out,
            (size, rows.size, columns.size),
            (batch.out, rows.out, columns.out),
            place[2] + first * batch.out,
        )
        return x, y, out


def _multiply_into(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor, alpha: float, *, beta: int) -> None:
    if len(out) == 1:
        out[0].addmm_(x[0], y[0], beta=beta, alpha=alpha)
    else:
        out.baddbmm_(x, y, beta=beta, alpha=alpha)


def _stack(
    tensor: torch.Tensor, sizes: tuple[int, int, int], strides: tuple[int, int, int], offset: int
) -> torch.Tensor:
    """Return a view of ``tensor``; an axis of size 1 gets the stride that makes a plain matrix."""
    _, first, second = sizes
    stack_stride, first_stride, second_stride = strides
    if second == 1 and first_stride != 1:
        second_stride = 1
    elif first == 1:
        first_stride = 1 if second_stride != 1 else second
    elif second == 1:
        second_stride = first
    plain = tensor.conj() if tensor.is_conj() else tensor
    view = plain.as_strided(
        sizes, (stack_stride, first_stride, second_stride), tensor.storage_offset() + offset
    )
    return view.conj() if tensor.is_conj() else view


def _offsets(loops: Sequence[Axis]) -> Iterator[Place]:
    for indices in itertools.product(*(range(axis.size) for axis in loops)):
        place: Place = (0, 0, 0)
        for index, axis in zip(indices, loops, strict=True):
            place = _sum_offsets(place, (index * axis.x, index * axis.y, index * axis.out))
        yield place


def _sum_offsets(one: Place, other: Place) -> Place:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _pieces(size: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, size, most):
        yield first, min(most, size - first)


class Axis(NamedTuple):
    """One axis, and how far apart its elements are in each tensor; zero where a tensor lacks it."""

    size: int
    x: int
    y: int
    out: int


ONE = Axis(1, 0, 0, 0)
"""Axis of size 1, for a kind of axis that a product lacks."""


class Axes(NamedTuple):
    """All axes of a product, by kind; neighbours are merged."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inner: tuple[Axis, ...]


def sort_axes(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Axes:
    """Return the axes of ``out = x @ y``.

    Parameters
    ----------
    x, y, out
        ``(*batch, m, k)``, ``(*batch, k, n)`` and ``(*batch, m, n)``, all of one rank; a batch axis has
        size 1 where a tensor lacks it.
    """
    kinds: dict[str, list[Axis]] = {kind: [] for kind in Axes._fields}
    rows = Axis(x.shape[-2], x.stride(-2), 0, out.stride(-2))
    columns = Axis(y.shape[-1], 0, y.stride(-1), out.stride(-1))
    kinds["rows"].append(rows)
    kinds["columns"].append(columns)
    kinds["inner"].append(Axis(x.shape[-1], x.stride(-1), y.stride(-2), 0))
    for position in range(out.dim() - 2):
        axis = _batch_axis(x, y, out, position)
        kinds[_axis_kind(axis, out.shape[position])].append(axis)
    return Axes(**{kind: tuple(_merged(axes)) for kind, axes in kinds.items()})


def _batch_axis(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, position: int) -> Axis:
    sizes = (x.shape[position], y.shape[position], out.shape[position])
    strides = (each.stride(position) if each.shape[position] > 1 else 0 for each in (x, y, out))
    return Axis(max(sizes), *strides)


def _axis_kind(axis: Axis, size_in_out: int) -> str:
    if size_in_out == 1:
        return "inner"
    if not axis.y:
        return "rows" if axis.x else "batch"
    return "batch" if axis.x else "columns"


def _merged(axes: Iterable[Axis]) -> list[Axis]:
    """Return ``axes`` without those of size 1, each run that is one in memory as one axis."""
    merged: list[Axis] = []
    for axis in sorted((each for each in axes if each.size > 1), key=lambda each: each[1:], reverse=True):
        if merged and _is_contiguous_with(merged[-1], axis):
            merged[-1] = Axis(merged[-1].size * axis.size, *axis[1:])
        else:
            merged.append(axis)
    return merged


def _is_contiguous_with(outer: Axis, inner: Axis) -> bool:
    return all(wide == narrow * inner.size for wide, narrow in zip(outer[1:], inner[1:], strict=True))


_CALL_ELEMENTS = 20_000
"""Cost of starting a call, in elements that could be moved in the same time."""


class GemmCall(NamedTuple):
    """One axis of each kind for the library, and the axes that are looped over."""

    batch: Axis
    rows: Axis
    columns: Axis
    inner: Axis
    loops: tuple[Axis, ...]
    """Outer to inner; those that are summed over come last."""
    copied_elements: int
    """Elements that the library copies of its operands, per matrix of the stack."""


def choose_call(axes: Axes, *, copies_x: bool, copies_y: bool, copies_repeated: bool) -> GemmCall:
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
    best: tuple[float, GemmCall] | None = None
    for batch, rows, columns, inner in itertools.product(*map(_with_unit_axis, (stacks, *axes[1:]))):
        if batch is not ONE and (batch is rows or batch is columns):
            continue
        loops = _remaining_axes(axes, batch, rows, columns, inner)
        copied = _copied_elements(batch, rows, columns, inner, copies_x, copies_y, copies_repeated)
        call = GemmCall(batch, rows, columns, inner, loops, copied)
        cost = _moved_elements(call)
        if best is None or cost < best[0]:
            best = (cost, call)
    assert best is not None
    return best[1]


def copies_always(tensor: torch.Tensor) -> bool:
    """Return whether the library copies this operand because it is lazily conjugated."""
    return tensor.is_conj()


def copies_repeated(tensor: torch.Tensor) -> bool:
    """Return whether the library copies what is repeated, for elements of this type."""
    return tensor.dtype in (torch.bfloat16, torch.float16) and tensor.device.type == "cpu"


def _with_unit_axis(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return (*axes, ONE)


def _remaining_axes(axes: Axes, *taken: Axis) -> tuple[Axis, ...]:
    left = [axis for axis in itertools.chain(*axes) if not any(axis is each for each in taken)]
    return tuple(left)


def _copied_elements(
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


def _moved_elements(call: GemmCall) -> float:
    calls = math.prod(axis.size for axis in call.loops)
    rows, columns, inner = call.rows.size, call.columns.size, call.inner.size
    per_matrix = rows * inner + inner * columns + rows * columns + 2 * call.copied_elements
    return calls * (_CALL_ELEMENTS + call.batch.size * per_matrix)
