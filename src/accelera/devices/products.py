"""Products of NumPy arrays in bounded memory: any strides, any batch, no hidden copies.

Operands whose strides the kernels can read are multiplied whole; others are packed block by block into at
most ``PACKING_BYTES``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from accelera._native import igemm
from accelera.devices.blas import MOST_ELEMENTS, SPAN_BYTES, Array, blas, is_plain

PACKING_BYTES = 4 << 20
"""The most that one product takes for blocks of operands that the kernels cannot read."""

_MIRROR_EDGE = 128
_SMALL = 32**3
"""Multiplications of a product so small that the overhead of a BLAS call exceeds its time."""
_STRIP = 512
"""Columns per strip of a Gram matrix where a whole block is computed on the diagonal."""


def is_takeable(x: Array) -> bool:
    """Return whether the kernels read ``x``, of two axes or more, as it lies."""
    if x.size == 0:
        return True
    if x.dtype.kind in "iu":
        return x.flags.aligned and all(stride % x.itemsize == 0 for stride in x.strides)
    return x.flags.aligned and is_plain(x[(0,) * (x.ndim - 2)])


def gemm(a: Array, b: Array, c: Array, *, accumulate: bool, conjugate_a: bool = False) -> None:
    """Compute ``c (+)= a @ b`` for checked operands."""
    if c.ndim == 2:
        _gemm(a, b, c, accumulate, conjugate_a)
        return
    batch = c.shape[:-2]
    left = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    right = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    if b.size == math.prod(b.shape[-2:]) and has_merging_rows(left) and has_merging_rows(c):
        _gemm(_merged(left), b.reshape(b.shape[-2:]), _merged(c), accumulate, conjugate_a)
    elif c.dtype.kind in "fc" and 0 < math.prod((*c.shape[-2:], a.shape[-1])) <= _SMALL:
        _small_matrices(left, right, c, accumulate, conjugate_a)
    else:
        for index in np.ndindex(batch):
            _gemm(left[index], right[index], c[index], accumulate, conjugate_a)


def gram(a: Array, c: Array, *, accumulate: bool) -> None:
    """Compute the upper triangle of ``c (+)= aᴴ @ a`` for checked operands."""
    for index in np.ndindex(c.shape[:-2]):
        _gram(a[index], c[index], accumulate)


def symmetrize(c: Array) -> None:
    """Write the conjugate of the upper triangle into the lower."""
    for index in np.ndindex(c.shape[:-2]):
        square = c[index]
        spans = list(_spans(square.shape[0], _MIRROR_EDGE))
        for number, rows in enumerate(spans):
            corner = square[rows, rows]
            below = np.tri(len(corner), k=-1, dtype=bool)
            np.copyto(corner, np.conjugate(corner).T, where=below)
            for columns in spans[number + 1 :]:
                np.conjugate(square[rows, columns].T, out=square[columns, rows])


def has_merging_rows(x: Array) -> bool:
    """Return whether the batch axes of ``x`` continue its rows at the same distance."""
    axes = [axis for axis in zip(x.shape[:-1], x.strides[:-1], strict=True) if axis[0] != 1]
    return all(above[1] == length * step for above, (length, step) in itertools.pairwise(axes))


def _merged(x: Array) -> Array:
    """Return ``x`` as one matrix; only for ``has_merging_rows``, so that nothing is copied."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _small_matrices(a: Array, b: Array, c: Array, accumulate: bool, conjugate_a: bool) -> None:
    """Multiply stacks of small matrices: one call of NumPy is faster than many of BLAS."""
    most = PACKING_BYTES // (c.itemsize * c.shape[-2] * (c.shape[-1] + a.shape[-1]))
    for index in np.ndindex(c.shape[:-3]):
        for stack in _spans(c.shape[-3], most):
            left, right, target = a[index][stack], b[index][stack], c[index][stack]
            left = np.conjugate(left) if conjugate_a and c.dtype.kind == "c" else left
            if accumulate:
                target += np.matmul(left, right)
            else:
                np.matmul(left, right, out=target)


def _gemm(a: Array, b: Array, c: Array, accumulate: bool, conjugate_a: bool) -> None:
    if c.size == 0:
        return
    if a.shape[1] == 0:
        if not accumulate:
            c.fill(0)
        return
    if not _try_kernel(a, b, c, accumulate, conjugate_a):
        _PackedBlocks(a, b, c, conjugate_a).run(accumulate)


def _try_kernel(a: Array, b: Array, c: Array, accumulate: bool, conjugate_a: bool = False) -> bool:
    """Compute with one kernel; return False, with nothing done, when it cannot take the operands."""
    if not (a.flags.aligned and b.flags.aligned and c.flags.aligned):
        return False
    if c.dtype.kind in "iu":
        if not (is_takeable(a) and is_takeable(b) and is_takeable(c)):
            return False
        igemm(a, b, c, accumulate, blas().threads.count)
        return True
    if max(*a.shape, *b.shape) > MOST_ELEMENTS:
        return False
    return blas().gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)


def _gram(a: Array, c: Array, accumulate: bool) -> None:
    depth, size = a.shape
    if depth == 0:
        if not accumulate:
            c.fill(0)
        return
    whole = c.dtype.kind in "iu" or not (is_takeable(a) and is_takeable(c))
    width = _STRIP if whole else SPAN_BYTES // c.itemsize
    for columns in _spans(size, width):
        left, rest = a[:, columns], slice(columns.stop, size)
        corner = c[columns, columns]
        if whole or depth > MOST_ELEMENTS or not blas().herk(left, corner, accumulate=accumulate):
            _gemm(left.T, left, corner, accumulate, True)
        _gemm(left.T, a[:, rest], c[columns, rest], accumulate, True)


class _PackedBlocks:
    """One product with at least one operand that must be packed, or longer than the kernels count."""

    def __init__(self, a: Array, b: Array, c: Array, conjugate_a: bool) -> None:
        self._arrays = a, b, c
        self._conjugate = conjugate_a and c.dtype.kind == "c"
        packs = not is_takeable(a) or self._conjugate, not is_takeable(b), not is_takeable(c)
        share = PACKING_BYTES // max(1, sum(packs)) // c.itemsize
        edge = min(math.isqrt(share), MOST_ELEMENTS)
        self._scratch = [np.empty(edge * edge, c.dtype) if pack else None for pack in packs]
        pack_a, pack_b, pack_c = packs
        self._steps = (
            edge if pack_a or pack_c else MOST_ELEMENTS,
            edge if pack_b or pack_c else MOST_ELEMENTS,
            edge if pack_a or pack_b else MOST_ELEMENTS,
        )

    def run(self, accumulate: bool) -> None:
        """Multiply block by block; each result block is finished before the next."""
        a, b, c = self._arrays
        (m, n), k = c.shape, a.shape[1]
        for rows in _spans(m, self._steps[0]):
            for columns in _spans(n, self._steps[1]):
                target = self._load(2, c[rows, columns], read=accumulate)
                for depth in _spans(k, self._steps[2]):
                    left = self._load(0, a[rows, depth], conjugate=self._conjugate)
                    right = self._load(1, b[depth, columns])
                    taken = _try_kernel(left, right, target, accumulate or depth.start > 0)
                    assert taken, "blocks are dense and short"
                if self._scratch[2] is not None:
                    c[rows, columns] = target

    def _load(self, which: int, block: Array, *, read: bool = True, conjugate: bool = False) -> Array:
        """Return ``block`` itself, or its copy in this operand's scratch."""
        scratch = self._scratch[which]
        if scratch is None:
            return block
        packed: Array = scratch[: block.size].reshape(block.shape)
        if conjugate:
            np.conjugate(block, out=packed)
        elif read:
            packed[...] = block
        return packed


def _spans(length: int, step: int) -> Iterator[slice[Any, Any, Any]]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
