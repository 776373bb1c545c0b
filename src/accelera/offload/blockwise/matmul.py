"""Matrix products in blocks: one product for each box of rows, columns and depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import Box
from accelera.offload.blockwise.elementwise import pointwise
from accelera.offload.blockwise.run import implements_blockwise
from accelera.offload.op_schema import written
from accelera.offload.operands import Axes, BlockOperand, boxes, broadcast_axes, pin_box
from accelera.offload.tensor import empty

ACCUMULATED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Types whose partial products are added up in a wider one."""


@dataclass(frozen=True)
class ProductAxes:
    """Axes of the operands of a kind of product within its iteration space; the last axis is the depth."""

    left: Axes
    right: Axes
    out: Axes
    plain: Callable[..., torch.Tensor]
    """The product itself."""
    added: Callable[..., torch.Tensor]
    """The product added to a third operand."""

    def space(self, left: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
        """Return the sizes of the space of two operands."""
        sizes = dict(zip(self.left, left.shape, strict=True))
        sizes.update(zip(self.right, right.shape, strict=True))
        return tuple(size for _, size in sorted(sizes.items(), key=lambda pair: pair[0] or 0))


MATRICES = ProductAxes((0, 2), (2, 1), (0, 1), torch.mm, torch.addmm)

BATCHES = ProductAxes((0, 1, 3), (0, 3, 2), (0, 1, 2), torch.bmm, torch.baddbmm)

VECTORS = ProductAxes((0, 1), (1,), (0,), torch.mv, torch.addmv)

PRODUCTS = {
    "mm": MATRICES,
    "addmm": MATRICES,
    "bmm": BATCHES,
    "baddbmm": BATCHES,
    "mv": VECTORS,
    "addmv": VECTORS,
}


@implements_blockwise(*PRODUCTS, *(f"{name}_" for name in PRODUCTS))
def product(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out ``mm`` and its like, with and without a third operand, in place and into ``out=``."""
    name = func.overloadpacket.__name__.rstrip("_")
    form, target = PRODUCTS[name], written(func, args, kwargs)
    bias, left, right = args if name == form.added.__name__ else (None, *args)
    sizes = form.space(left, right)
    narrow = left.dtype
    wide = ACCUMULATED.get(narrow, narrow)
    job = _BlockProduct(
        cache, form, left, right, bias, kwargs.get("beta", 1), kwargs.get("alpha", 1), str(func)
    )
    if wide != narrow and job.split(sizes):
        result = job.into(empty(cache, job.out_sizes(sizes), wide), sizes)
        target = empty(cache, job.out_sizes(sizes), narrow) if target is None else target
        return pointwise(torch.ops.aten.copy_.default, (target, result), {}, cache)
    return job.into(empty(cache, job.out_sizes(sizes), narrow) if target is None else target, sizes)


@dataclass(frozen=True)
class _BlockProduct:
    cache: BlockCache
    form: ProductAxes
    left: torch.Tensor
    right: torch.Tensor
    bias: torch.Tensor | None
    beta: float
    alpha: float
    op: str

    def out_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sizes[axis] for axis in self.form.out if axis is not None)

    def split(self, sizes: tuple[int, ...]) -> bool:
        """Return whether the depth is cut, so that partial products must be accumulated."""
        depth = slice(0, sizes[-1])
        return any(box[-1] != depth for box in boxes(sizes, self._sources()))

    def into(self, target: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
        """Compute box by box; return ``target``."""
        reused = self.bias is target
        operands = [*self._sources(), BlockOperand(target, self.form.out, read=reused, write=True)]
        if self.bias is not None and not reused:
            operands.append(BlockOperand(self.bias, broadcast_axes(self.bias.shape, target.ndim)))
        for box in boxes(sizes, operands):
            seen = [_accumulating_operand(one, box) for one in operands]
            with pin_box(self.cache, seen, box, self.op) as parts:
                self._box(parts, first=box[-1].start == 0)
        return target

    def _sources(self) -> list[BlockOperand]:
        return [BlockOperand(self.left, self.form.left), BlockOperand(self.right, self.form.right)]

    def _box(self, parts: list[torch.Tensor], *, first: bool) -> None:
        left, right, target, *rest = parts
        left, right = left.to(target.dtype), right.to(target.dtype)
        if not first:
            self.form.added(target, left, right, alpha=self.alpha, out=target)
        elif self.bias is None:
            self.form.plain(left, right, out=target)
        else:
            bias = rest[0].to(target.dtype) if rest else target
            self.form.added(bias, left, right, beta=self.beta, alpha=self.alpha, out=target)


def _accumulating_operand(operand: BlockOperand, box: Box) -> BlockOperand:
    """Return the operand as one box uses it: from the second box of the depth on, results are added to."""
    if operand.write and box[-1].start > 0:
        return BlockOperand(operand.tensor, operand.axes, read=True, write=True)
    return operand
