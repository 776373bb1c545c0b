"""The factors of a matrix product, and what torch's kernel adds for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from accelera.interceptor.calls import (
    Call,
    Result,
    contiguous_strides,
    nbytes,
    overlaps,
)
from accelera.interceptor.limits import Limits

_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
}
"""Element types that pieces are computed in."""


class Form(NamedTuple):
    """How an operator's arguments are meant."""

    family: str
    """The operator that returns a new result, such as ``"addmm"`` for ``"addmm.out"``."""
    added: bool
    """Whether the first argument is added to the product."""
    in_place: bool
    """Whether the first argument is the result as well."""
    ranks: tuple[int, int]
    """Axes of both factors."""


def form_of(name: str) -> Form:
    """Return the form of an operator by its name.

    >>> form_of("baddbmm_").family, form_of("mv.out").ranks
    ('baddbmm', (2, 1))
    """
    packet = name.partition(".")[0]
    family = packet.removesuffix("_")
    kind = family.removeprefix("b").removeprefix("add") if family.startswith(("add", "badd")) else family
    ranks = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1)}
    return Form(family, kind != family, packet.endswith("_"), ranks["bmm" if family == "baddbmm" else kind])


class Factors(Call):
    """``beta * start + alpha * (a @ b)``, or ``a @ b`` alone."""

    __slots__ = (
        *("a", "b", "start", "alpha", "beta", "form"),
        *("op", "device", "looked_bytes", "result_bytes", "temporary_bytes", "given", "shape"),
    )

    def __init__(self, name: str, form: Form, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op, self.form = name, form
        self.start = args[0] if form.added else None
        self.a, self.b = a, b = args[1:3] if form.added else args[:2]
        self.alpha, self.beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        if len(args) > 3:
            self.beta, self.alpha = (*args[3:], 1)[:2]
        self.given = self.start if form.in_place else kwargs.get("out")
        self.device = a.device
        self.shape = (*a.shape[:-1], *b.shape[2 if b.dim() == 3 else 1 :])
        size = nbytes(self.shape, a.dtype)
        self.looked_bytes = a.nbytes + b.nbytes + size
        given = self.given
        is_given = given is not None and given.shape == self.shape
        self.result_bytes = 0 if is_given else size
        self.temporary_bytes = 0
        if not (a.is_contiguous() and b.is_contiguous()) or (given is not None and not given.is_contiguous()):
            self.temporary_bytes = self._copied_bytes()

    def _copied_bytes(self) -> int:
        """Return what torch copies of matrices that lie neither by rows nor by columns."""
        matrices = [each for each in (self.a, self.b, self.given) if each is not None and each.dim() > 1]
        # A stack is copied matrix by matrix.
        return sum(nbytes(each.shape[-2:], each.dtype) for each in matrices if not lies_plainly(each))

    def why_whole(self) -> str | None:
        """Return why only torch's kernel can compute the call; None: it can go in pieces."""
        a, b, given = self.a, self.b, self.given
        if (a.dim(), b.dim()) != self.form.ranks or a.shape[-1] != b.shape[max(0, b.dim() - 2)]:
            return "shapes that do not fit"
        if a.dim() == 3 and a.shape[0] != b.shape[0]:
            return "shapes that do not fit"
        tensors = [each for each in (a, b, self.start, given) if each is not None]
        if any(each.dtype != a.dtype or each.device != a.device for each in tensors):
            return "mixed types or devices"
        if a.dtype not in _TYPES:
            return f"elements of {a.dtype}"
        if not self.shape or 0 in self.shape:
            return "a result of one element or none"
        if given is not None and (
            given.shape != self.shape or overlaps(given, [a, b], element_for_element=False)
        ):
            return "a result given that is resized or shares memory"
        return None if self._can_be_added() else "a summand or factors that do not fit"

    def _can_be_added(self) -> bool:
        if self.start is None:
            return True
        whole = not self.a.is_floating_point() and not self.a.is_complex()
        if whole and not (isinstance(self.alpha, int) and isinstance(self.beta, int)):
            return False
        missing = len(self.shape) - self.start.dim()
        sizes = (1,) * missing + tuple(self.start.shape)
        fits = missing >= 0 and all(size in (1, full) for size, full in zip(sizes, self.shape, strict=True))
        return fits and not (
            self.given is not None and self.given is not self.start and overlaps(self.given, [self.start])
        )

    def wants_pieces(self, limits: Limits) -> bool:
        """Return whether the call goes in pieces even when it would fit."""
        elsewhere = limits.device is not None and limits.device != "cpu" and self.device.type == "cpu"
        return elsewhere or limits.cut.least != "direct"

    def result(self) -> Result:
        """Return what a new result will be."""
        return Result(self.shape, contiguous_strides(self.shape), self.a.dtype)


def lies_plainly(matrix: torch.Tensor) -> bool:
    """Return whether rows or columns of the last two axes are dense and do not overlap."""
    down, across = matrix.stride()[-2:]
    rows, columns = matrix.shape[-2:]
    return bool((across == 1 and down >= columns) or (down == 1 and across >= rows))
