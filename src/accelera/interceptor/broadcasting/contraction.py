"""``out = x @ y`` over broadcast batch axes, summed over those that the result lacks; operands in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from accelera.interceptor.broadcasting.axes import Axis, sort_axes
from accelera.interceptor.broadcasting.calling import Call, choose_call, copies_repeated, copies_whatever

SCRATCH_BYTES = 64 << 20
"""Most bytes that operands copied by the library and partial sums take, unless one matrix has more."""

_SHORT = (torch.bfloat16, torch.float16)


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
        copies_x=copies_whatever(x),
        copies_y=copies_whatever(y),
        copies_repeated=copies_repeated(x),
    )
    run = _Run(x, y, out, call, scratch_bytes)
    summed = [axis for axis in call.loops if not axis.out]
    kept = [axis for axis in call.loops if axis.out]
    for place in _places(kept):
        if len(summed) and out.dtype in _SHORT:
            run.sum_in_single(place, list(_places(summed)), alpha, accumulate)
            continue
        for count, part in enumerate(_places(summed)):
            run.multiply(_added(place, part), alpha, keep=accumulate or count > 0)
    return out


Place = tuple[int, int, int]
"""Offsets into x, y and out, in elements."""


class _Run:
    """The tensors of one contraction, cut into calls of the library."""

    def __init__(
        self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, call: Call, scratch_bytes: int
    ) -> None:
        self._x, self._y, self._out, self._call = x, y, out, call
        per_matrix = call.copied_elements * out.element_size()
        self._most = max(1, scratch_bytes // per_matrix) if per_matrix else call.batch.size
        self._scratch_bytes = scratch_bytes

    def multiply(self, place: Place, alpha: float, *, keep: bool) -> None:
        """Write one call's product at ``place``, or add it when ``keep``."""
        for first, size in _pieces(self._call.batch.size, self._most):
            x, y, out = self._stacks(place, first, size)
            _into(out, x, y, alpha, beta=1 if keep else 0)

    def sum_in_single(self, place: Place, parts: Sequence[Place], alpha: float, accumulate: bool) -> None:
        """Add up 16-bit products in single precision, as PyTorch sums them."""
        matrix = self._call.rows.size * self._call.columns.size
        most = min(self._most, max(1, self._scratch_bytes // (matrix * 6)))
        for first, size in _pieces(self._call.batch.size, most):
            out = self._stacks(place, first, size)[2]
            total = out.float() if accumulate else torch.zeros(out.shape, device=out.device)
            product = torch.empty(out.shape, dtype=out.dtype, device=out.device)
            for part in parts:
                x, y, _ = self._stacks(_added(place, part), first, size)
                total.add_(torch.bmm(x, y, out=product), alpha=alpha)
            out.copy_(total)

    def _stacks(self, place: Place, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def _into(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor, alpha: float, *, beta: int) -> None:
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


def _places(loops: Sequence[Axis]) -> Iterator[Place]:
    for indices in itertools.product(*(range(axis.size) for axis in loops)):
        place: Place = (0, 0, 0)
        for index, axis in zip(indices, loops, strict=True):
            place = _added(place, (index * axis.x, index * axis.y, index * axis.out))
        yield place


def _added(one: Place, other: Place) -> Place:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _pieces(size: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, size, most):
        yield first, min(most, size - first)
