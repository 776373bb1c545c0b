"""Chains of matrix products, multiplied in the order that costs least.

``A @ B @ v`` as written makes the matrix ``A @ B``; ``A @ (B @ v)`` does not. The order is found by dynamic
programming over all of them (Godbole 1973), with a cost in seconds: arithmetic, and the traffic of results
in between. Rates are nominal, so that the same shapes give the same order on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from accelera.engine.expression import Expr, MatrixProduct
from accelera.plan import CostModel

_NOMINAL = CostModel()

Dimensions = tuple[int, ...]
"""Rows of every factor, then the columns of the last."""


def best_product(factors: Sequence[Expr]) -> Expr:
    """Return the product of ``factors`` in the order that costs least; of equal ones the leftmost.

    All but the first and the last are matrices; those two may be vectors.
    """
    first, last = factors[0], factors[-1]
    rows = [1 if first.ndim == 1 else first.shape[0]]
    dims = (*rows, *(each.shape[0] for each in factors[1:]), 1 if last.ndim == 1 else last.shape[1])
    splits = best_splits(dims, first.dtype.itemsize, 4.0 if first.dtype.kind == "c" else 1.0)

    def product(start: int, stop: int) -> Expr:
        if stop - start == 1:
            return factors[start]
        middle = splits[start, stop]
        return MatrixProduct(product(start, middle), product(middle, stop))

    return product(0, len(factors))


def best_splits(dims: Dimensions, itemsize: int, flops_scale: float = 1.0) -> dict[tuple[int, int], int]:
    """Return where to split every part of a chain of matrices, as ``{(start, stop): middle}``.

    >>> best_splits((1000, 1000, 1000, 1), 8)[0, 3]
    1
    """
    splits: dict[tuple[int, int], int] = {}

    @cache
    def seconds(start: int, stop: int) -> float:
        if stop - start == 1:
            return 0.0
        costs = {middle: split_s(start, middle, stop) for middle in range(stop - 1, start, -1)}
        splits[start, stop] = min(costs, key=costs.__getitem__)
        return costs[splits[start, stop]]

    def split_s(start: int, middle: int, stop: int) -> float:
        rows, inner, columns = dims[start], dims[middle], dims[stop]
        between = rows * inner * (middle - start > 1) + inner * columns * (stop - middle > 1)
        size = between * itemsize
        moved = _NOMINAL.read_s(size, max(size, 1), "disk") + _NOMINAL.write_s(size, max(size, 1), "disk")
        made = _NOMINAL.gemm_s(rows, inner, columns, flops_scale)
        return seconds(start, middle) + seconds(middle, stop) + made + moved

    seconds(0, len(dims) - 1)
    return splits


def factors_of(node: MatrixProduct, is_shared: Callable[[Expr], bool]) -> list[Expr]:
    """Return the factors of a chain of products whose order is free, first to last.

    It is for products of one element type whose factors have at most two axes. A product that
    ``is_shared`` says is used elsewhere too is a factor.
    """
    left, right = node.arguments
    one, other = list(_factors(left, node, is_shared)), list(_factors(right, node, is_shared))
    # A vector in the middle is an end of one product, and stays so.
    return [*(one if one[-1].ndim == 2 else [left]), *(other if other[0].ndim == 2 else [right])]


def _factors(node: Expr, parent: Expr, is_shared: Callable[[Expr], bool]) -> Iterator[Expr]:
    free = isinstance(node, MatrixProduct) and not is_shared(node) and node.dtype == parent.dtype
    plain = all(each.ndim <= 2 and each.dtype == parent.dtype for each in node.arguments)
    if isinstance(node, MatrixProduct) and free and plain:
        yield from factors_of(node, is_shared)
    else:
        yield node
