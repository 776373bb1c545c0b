"""Products in pieces by torch's own kernel: parts of the result, one after the other.

For element types and devices where that kernel is faster than the engine's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor.calls import Target, is_out_of_memory
from accelera.interceptor.limits import PRODUCT_TILE_BYTES, Limits
from accelera.interceptor.mechanism import original
from accelera.interceptor.regions import Region, halved

if TYPE_CHECKING:
    from accelera.interceptor.products import Product


def fill(product: Product, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
    """Compute ``product`` into ``target``, adding at most ``budget_bytes``; return the fallbacks taken.

    Raises BudgetExceededError when even one element needs more.
    """
    asked = limits.cut.tile_bytes or PRODUCT_TILE_BYTES
    sizes = _sizes(product, min(budget_bytes, 4 * asked), asked)
    if sizes is None:
        least = _piece_bytes(product, (1,) * len(product.shape))
        raise BudgetExceededError(
            f"[{product.op}] one element of the result needs {least} bytes, more than the {budget_bytes} "
            f"left; raise the budget to at least {least} bytes",
            needed_bytes=least,
            budget_bytes=budget_bytes,
        )
    fallbacks: list[str] = []
    for region in _regions(product.shape, sizes):
        _compute(product, target, region, fallbacks)
    return fallbacks


def _compute(product: Product, target: Target, region: Region, fallbacks: list[str]) -> None:
    """Compute one piece; in halves when memory runs out."""
    try:
        target.put(region, _piece(product, region))
    except RuntimeError as error:
        longest = max(range(len(region)), key=lambda axis: region[axis].stop - region[axis].start)
        halves = halved(region, [longest])
        if halves is None or not is_out_of_memory(error):
            raise
        fallbacks.append(f"in half the tile after running out of memory: {error}")
        for half in halves:
            _compute(product, target, half, fallbacks)


def _piece(product: Product, region: Region) -> torch.Tensor:
    """Return one part of the result, computed by torch's kernel."""
    rows, columns = region[: product.a.dim() - 1], region[product.a.dim() - 1 :]
    of_b: Region = (*(region[:1] if product.a.dim() == 3 else ()), slice(None), *columns)
    arguments: list[Any] = [product.a[rows], product.b[of_b]]
    options: dict[str, Any] = {}
    if product.start is not None:
        arguments.insert(0, product.start.expand(product.shape)[region])
        options = {"beta": product.beta, "alpha": product.alpha}
    piece: torch.Tensor = original(product.form.family)(*arguments, **options)
    return piece


def _sizes(product: Product, most_bytes: int, asked: int) -> list[int] | None:
    """Return the sides of the pieces: as large as fit, cut along the longest side; None: nothing fits."""
    sizes = list(product.shape)
    if len(sizes) == 3 and _piece_bytes(product, sizes) > most_bytes:
        per_matrix = _piece_bytes(product, [1, *sizes[1:]])
        sizes[0] = max(1, min(sizes[0], most_bytes // per_matrix))
    first = 1 if len(sizes) == 3 and sizes[0] == 1 else 0
    while _piece_bytes(product, sizes) > most_bytes or math.prod(sizes) * product.a.itemsize > asked:
        longest = max(range(first, len(sizes)), key=lambda axis: sizes[axis])
        if sizes[longest] == 1:
            return None if _piece_bytes(product, sizes) > most_bytes else sizes
        sizes[longest] = -(-sizes[longest] // 2)
    return sizes


def _piece_bytes(product: Product, sizes: tuple[int, ...] | list[int]) -> int:
    """Bound what one piece takes: itself twice, and both factors' parts, which the kernel packs."""
    depth: int = product.a.shape[-1]
    stack = sizes[0] if len(sizes) == 3 else 1
    rows: int = sizes[product.a.dim() - 2]
    columns: int = sizes[-1] if product.b.dim() > 1 else 1
    itemsize: int = product.a.itemsize
    return (2 * stack * rows * columns + rows * depth + columns * depth) * itemsize


def _regions(shape: tuple[int, ...], sizes: list[int]) -> Iterator[Region]:
    """Yield the pieces of a result of ``shape``, row by row."""
    spans = [
        [slice(start, min(start + size, full)) for start in range(0, full, size)]
        for full, size in zip(shape, sizes, strict=True)
    ]
    return itertools.product(*spans)
