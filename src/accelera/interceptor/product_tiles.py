"""Products in pieces by torch's own kernel: parts of the result, one after the other.

For element types and devices where that kernel is faster than the engine's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import Target
from accelera.interceptor.factors import Factors
from accelera.interceptor.limits import PRODUCT_TILE_BYTES, Limits
from accelera.interceptor.mechanism import original
from accelera.interceptor.pieces import Pieces
from accelera.interceptor.regions import Region

_PACKING_BYTES = 8 << 20
"""What torch's libraries keep for the blocks that they pack, and their threads' stacks."""


_LEAST_SIDE = 256
"""Rows and columns of the smallest parts: with fewer, reading the factors again and again takes the time."""


def fill(product: Factors, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
    """Compute ``product`` into ``target``, adding at most ``budget_bytes``; return the fallbacks taken.

    Raises BudgetExceededError when even one element needs more.
    """
    asked = limits.cut.tile_bytes or PRODUCT_TILE_BYTES
    side = _LEAST_SIDE if limits.cut.tile_bytes is None else 1
    sizes = _sizes(product, budget_bytes, asked, side)
    least = _piece_bytes(product, sizes)
    if least > budget_bytes:
        raise BudgetExceededError(
            f"[{product.op}] the smallest part needs {least} bytes, and {budget_bytes} are left; "
            f"raise the budget to at least {least} bytes",
            needed_bytes=least,
            budget_bytes=budget_bytes,
        )
    return _Parts(product, target).compute(_regions(product.shape, sizes))


@final
class _Parts(Pieces):
    """The parts of a product, computed by torch's kernel into memory that all of them share.

    With memory of its own for each the heap would grow by nearly all of them.
    """

    def __init__(self, product: Factors, target: Target) -> None:
        super().__init__(product.device)
        self._product, self._target = product, target
        self._scratch: torch.Tensor | None = None

    def axes(self, region: Region) -> Sequence[int]:
        return sorted(range(len(region)), key=lambda axis: region[axis].start - region[axis].stop)

    def release(self) -> None:
        self._scratch = None

    def at_once(self, region: Region) -> None:
        arguments, options = self._called_with(region)
        piece = self._piece([part.stop - part.start for part in region])
        original(f"{self._product.form.family}.out")(*arguments, **options, out=piece)
        self._target.put(region, piece)

    def on_cpu(self, region: Region) -> None:
        arguments, options = self._called_with(region)
        there = [each.cpu() for each in arguments]
        self._target.put(region, original(self._product.form.family)(*there, **options))

    def _called_with(self, region: Region) -> tuple[list[torch.Tensor], dict[str, Any]]:
        product = self._product
        rows, columns = region[: product.a.dim() - 1], region[product.a.dim() - 1 :]
        of_b: Region = (*(region[:1] if product.a.dim() == 3 else ()), slice(None), *columns)
        factors = [product.a[rows], product.b[of_b]]
        if product.start is None:
            return factors, {}
        start = product.start.expand(product.shape)[region]
        return [start, *factors], {"beta": product.beta, "alpha": product.alpha}

    def _piece(self, shape: list[int]) -> torch.Tensor:
        count = math.prod(shape)
        if self._scratch is None or self._scratch.numel() < count:
            self._scratch = None
            self._scratch = torch.empty(count, dtype=self._product.a.dtype, device=self._product.device)
        return self._scratch[:count].view(shape)


def _sizes(product: Factors, budget_bytes: int, asked: int, side: int) -> list[int]:
    """Return the sides of the parts: as large as the budget allows, but no side cut below ``side``."""
    sizes = list(product.shape)
    stacked = len(sizes) == 3

    def is_large() -> bool:
        return math.prod(sizes) * product.a.itemsize > asked or _piece_bytes(product, sizes) > budget_bytes

    while is_large():
        if stacked and sizes[0] > 1:
            sizes[0] = -(-sizes[0] // 2)
            continue
        longest = max(range(stacked, len(sizes)), key=lambda axis: sizes[axis])
        if sizes[longest] <= side:
            break
        sizes[longest] = max(side, -(-sizes[longest] // 2))
    return sizes


def _piece_bytes(product: Factors, sizes: tuple[int, ...] | list[int]) -> int:
    """Bound what one piece takes: itself twice, and both factors' parts, which the kernel packs."""
    depth: int = product.a.shape[-1]
    stack = sizes[0] if len(sizes) == 3 else 1
    rows: int = sizes[product.a.dim() - 2]
    columns: int = sizes[-1] if product.b.dim() > 1 else 1
    itemsize: int = product.a.itemsize
    return _PACKING_BYTES + (2 * stack * rows * columns + rows * depth + columns * depth) * itemsize


def _regions(shape: tuple[int, ...], sizes: list[int]) -> Iterator[Region]:
    """Yield the pieces of a result of ``shape``, row by row."""
    spans = [
        [slice(start, min(start + size, full)) for start in range(0, full, size)]
        for full, size in zip(shape, sizes, strict=True)
    ]
    return itertools.product(*spans)
