"""Products of matrices, tensors and vectors, and sums of products in Einstein's notation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import from_dlpack
from accelera.tensora.norms import power_norm
from accelera.tensora.typing import Scalar


def matmul(x1: Any, x2: Any, /, *, out: Any = None, budget: Any = None) -> Tensor:
    """Product of matrices, or of stacks of them that broadcast.

    A vector is a row on the left and a column on the right. Where a factor is no tensor but lies in a file or
    a store, `accelera.MatrixEngine` multiplies by a plan that stays within the budget.

    Parameters
    ----------
    x1, x2
        Tensors; or paths of matrix files, stores, and matrices of `accelera`, also beside a tensor.
    out
        Path or store that the product is written to; only where a factor is no tensor.
    budget
        Most memory that the engine may add, as "512MiB" or a share; by default what is left of the limit that
        `set_memory_limit` has set, if one is.

    Returns
    -------
    Tensor
        The product; with `out`, what the engine returns for it.

    Raises
    ------
    ValueError
        If the extents that are summed over differ, or a tensor is 0-d.
    TypeError
        If `out` or `budget` is given for two tensors.

    """
    if isinstance(x1, Tensor) and isinstance(x2, Tensor):
        if out is not None or budget is not None:
            raise ArgumentError(
                "[matmul] out and budget are for files and stores; two tensors give a new tensor"
            )
        return native.matmul(x1, x2)
    from accelera.engine import MatrixEngine  # loaded by those who need it

    engine = MatrixEngine("cpu", enable_progress=False)
    product: Any = engine.matmul(
        _as_operand(x1), _as_operand(x2), out=out, budget=budget or _remaining_bytes()
    )
    return product if out is not None else from_dlpack(product.numpy())


def _as_operand(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, Tensor) else x


def _remaining_bytes() -> int | None:
    stats = native.memory_stats("cpu")
    return stats.limit_bytes - stats.live_bytes if stats.limit_bytes else None


def matrix_transpose(x: Tensor, /) -> Tensor:
    """View of a stack of matrices with each of them transposed.

    Raises
    ------
    ValueError
        If the tensor has less than two axes.

    """
    if x.ndim < 2:
        raise ShapeError(f"[matrix_transpose] a tensor of shape {x.shape}; give a matrix or a stack of them")
    return native.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Sum of products over axes of both tensors.

    Parameters
    ----------
    x1, x2
        Tensors.
    axes
        How many of the last axes of `x1` and of the first of `x2`, or two lists of axes that belong together.

    Returns
    -------
    Tensor
        Of the axes of `x1` that are left, then those of `x2`.

    Raises
    ------
    ValueError
        If the extents of axes that belong together differ.

    """
    if isinstance(axes, int):
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        first, second = ([axis % x.ndim for axis in each] for x, each in zip((x1, x2), axes, strict=True))
    x1, x2 = _broadcast_axes(x1, first, x2, second), _broadcast_axes(x2, second, x1, first)
    extents = [x1.shape[i] for i in first]
    if extents != [x2.shape[i] for i in second]:
        raise ShapeError(
            f"[tensordot] axes {first} of shape {x1.shape} and {second} of {x2.shape} differ in extent"
        )
    left = [i for i in range(x1.ndim) if i not in first]
    right = [i for i in range(x2.ndim) if i not in second]
    shape = tuple(x1.shape[i] for i in left) + tuple(x2.shape[i] for i in right)
    summed = math.prod(extents)
    rows, columns = math.prod(x1.shape[i] for i in left), math.prod(x2.shape[i] for i in right)
    a = native.reshape(native.permute(x1, (*left, *first)), (rows, summed))
    b = native.reshape(native.permute(x2, (*second, *right)), (summed, columns))
    return native.reshape(native.matmul(a, b), shape)


def _broadcast_axes(x: Tensor, axes: Sequence[int], other: Tensor, other_axes: Sequence[int]) -> Tensor:
    """Expand axes of extent 1 to the extents of the matching axes of the other tensor."""
    shape = list(x.shape)
    for i, k in zip(axes, other_axes, strict=True):
        shape[i] = other.shape[k] if shape[i] == 1 else shape[i]
    return native.expand(x, tuple(shape))


@computes_in("lower")
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Dot product of vectors along an axis, counted from the end; complex elements of `x1` are conjugated.

    Raises
    ------
    ValueError
        If the extents of the axis differ.

    """
    if x1.shape[axis] != x2.shape[axis]:
        raise ShapeError(f"[vecdot] axis {axis} of shapes {x1.shape} and {x2.shape} differs in extent")
    dtype = native.promote(x1.dtype, x2.dtype)
    first = native.conj(x1) if x1.dtype.name.startswith("complex") else x1
    return native.cast(native.sum(native.multiply(first, x2), axis), dtype)


# --- products with a sum ----------------------------------------------------------------------------------


def _scaled_sum(x: Tensor, product: Any, beta: Scalar, alpha: Scalar) -> Tensor:
    """``beta * x + alpha * product``; with ``beta=0`` `x` is ignored, NaN included."""
    scaled = product if alpha == 1 else native.multiply(product, alpha)
    if beta == 0:
        return native.expand(scaled, tuple(scaled.shape))
    return native.add(x if beta == 1 else native.multiply(x, beta), scaled)


@computes_in("lower")
def addmm(x: Tensor, x1: Tensor, x2: Tensor, /, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * x + alpha * x1 @ x2`` for two matrices."""
    return _scaled_sum(x, native.matmul(x1, x2), beta, alpha)


@computes_in("lower")
def addmv(x: Tensor, x1: Tensor, x2: Tensor, /, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * x + alpha * x1 @ x2`` for a matrix and a vector."""
    return _scaled_sum(x, native.matmul(x1, x2), beta, alpha)


@computes_in("lower")
def addr(x: Tensor, x1: Tensor, x2: Tensor, /, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * x + alpha * outer(x1, x2)`` for two vectors."""
    return _scaled_sum(x, outer(x1, x2), beta, alpha)


@computes_in("lower")
def baddbmm(x: Tensor, x1: Tensor, x2: Tensor, /, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * x + alpha * x1 @ x2`` for stacks of matrices."""
    return _scaled_sum(x, native.matmul(x1, x2), beta, alpha)


@computes_in("lower")
def addbmm(x: Tensor, x1: Tensor, x2: Tensor, /, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * x`` plus `alpha` times the sum of the products of two stacks of matrices."""
    return _scaled_sum(x, native.sum(native.matmul(x1, x2), 0), beta, alpha)


# --- products of vectors and tensors ----------------------------------------------------------------------


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Products of each element of one vector with each of another, of shape ``(x1.size, x2.size)``."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"[outer] shapes {x1.shape} and {x2.shape}; two vectors are needed")
    return native.multiply(x1[:, None], x2[None, :])


@computes_in("widest")
def dot(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Sum of the products of the elements of two vectors of one size."""
    if x1.ndim != 1 or x1.shape != x2.shape:
        raise ShapeError(f"[dot] shapes {x1.shape} and {x2.shape}; two vectors of one size are needed")
    return native.matmul(x1, x2)


@computes_in("widest")
def vdot(x1: Tensor, x2: Tensor, /) -> Tensor:
    """`dot` with the complex conjugate of the first vector."""
    return dot(native.conj(x1), x2)


def inner(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Sums of products over the last axes; a 0-d tensor is multiplied with every element."""
    if x1.ndim == 0 or x2.ndim == 0:
        return native.multiply(x1, x2)
    if x1.ndim == x2.ndim == 1:
        return dot(x1, x2)
    return tensordot(x1, x2, axes=[[x1.ndim - 1], [x2.ndim - 1]])


def kron(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Kronecker product: each element of one tensor times the whole other one."""
    n = max(x1.ndim, x2.ndim)
    first, second = ((1,) * (n - x.ndim) + tuple(x.shape) for x in (x1, x2))
    a = native.reshape(x1, tuple(extent for each in first for extent in (each, 1)))
    b = native.reshape(x2, tuple(extent for each in second for extent in (1, each)))
    shape = tuple(i * k for i, k in zip(first, second, strict=True))
    return native.reshape(native.multiply(a, b), shape)


@computes_in("float32")
def cdist(x1: Tensor, x2: Tensor, /, *, p: float = 2.0) -> Tensor:
    """Distances of each row of one matrix and each of another.

    Parameters
    ----------
    x1, x2
        Of shapes ``(..., m, k)`` and ``(..., n, k)``; stacks broadcast.
    p
        Order of the norm: from 0 to infinity.

    Returns
    -------
    Tensor
        Of shape ``(..., m, n)``; where the distance is 0, so is its gradient.

    """
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"[cdist] shapes {x1.shape} and {x2.shape}; rows of as many columns are needed")
    if p < 0:
        raise ArgumentError(f"[cdist] p={p}; give 0 or more")
    difference = native.abs(native.subtract(x1[..., :, None, :], x2[..., None, :, :]))
    if p == 0:
        return native.cast(native.sum(native.not_equal(difference, 0), -1), difference.dtype)
    if p == 1:
        return native.sum(difference, -1)
    if math.isinf(p):
        shape = (*difference.shape[:-1], 1)
        return native.max(native.concat([difference, native.full(shape, 0, difference.dtype)], -1), -1)
    return power_norm(difference, p, -1)


def cartesian_prod(*vectors: Tensor) -> Tensor:
    """All combinations of one element of each vector, a row for each; a single vector is only copied."""
    if len(vectors) == 1:
        return native.copy(vectors[0])
    shape = tuple(each.size for each in vectors)
    columns = []
    for i, each in enumerate(vectors):
        apart = native.reshape(each, tuple(n if k == i else 1 for k, n in enumerate(shape)))
        columns.append(native.reshape(native.expand(apart, shape), (-1, 1)))
    return native.concat(columns, 1)


def combinations(x: Tensor, r: int = 2, /, *, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements of a vector, a row for each, in the order of their places."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = list(choose(range(x.size), r))
    if not chosen or r == 0:
        return native.full((0,) if r == 0 else (0, r), 0, x.dtype)
    return native.take(x, native.asarray(chosen, native.dtype.int64), 0)


def block_diag(*arrays: Tensor) -> Tensor:
    """Matrices along the diagonal of one with zeros elsewhere; vectors count as rows."""
    parts = [native.reshape(x, (1, x.size)) if x.ndim < 2 else x for x in arrays]
    width, before, rows = sum(x.shape[1] for x in parts), 0, []
    for x in parts:
        sides = [native.full((x.shape[0], n), 0, x.dtype) for n in (before, width - before - x.shape[1])]
        rows.append(native.concat([sides[0], x, sides[1]], 1))
        before += x.shape[1]
    return native.concat(rows, 0)


# --- chains and powers ------------------------------------------------------------------------------------


@computes_in("lower")
def multi_dot(arrays: Sequence[Any], /) -> Tensor:
    """Product of several matrices in the order that needs the fewest operations; the ends may be vectors."""
    if len(arrays) < 2:
        raise ArgumentError(f"[multi_dot] {len(arrays)} matrices; give at least 2")
    first, last = arrays[0], arrays[-1]
    chain = [
        first[None, :] if first.ndim == 1 else first,
        *arrays[1:-1],
        last[:, None] if last.ndim == 1 else last,
    ]
    found = _chain_product(
        chain, _chain_splits([chain[0].shape[0], *(x.shape[1] for x in chain)]), 0, len(chain) - 1
    )
    found = found[0] if first.ndim == 1 else found
    return found[..., 0] if last.ndim == 1 else found


def _chain_splits(extents: list[int]) -> dict[tuple[int, int], int]:
    """Return the best split of each subchain of a matrix chain, by dynamic programming.

    Key (i, k) is the subchain of matrices i to k; its value j means ``(i ... j) @ (j + 1 ... k)``.
    """
    n = len(extents) - 1
    costs, parts = dict.fromkeys(((i, i) for i in range(n)), 0), {}
    for length in range(1, n):
        for i in range(n - length):
            k = i + length
            each = [
                (costs[i, j] + costs[j + 1, k] + extents[i] * extents[j + 1] * extents[k + 1], j)
                for j in range(i, k)
            ]
            costs[i, k], parts[i, k] = min(each)
    return parts


def _chain_product(chain: list[Any], parts: dict[tuple[int, int], int], i: int, k: int) -> Tensor:
    if i == k:
        return chain[i]
    j = parts[i, k]
    return native.matmul(_chain_product(chain, parts, i, j), _chain_product(chain, parts, j + 1, k))


def vander(x: Tensor, /, *, n: int | None = None) -> Tensor:
    """Powers 0 to n - 1 of each element, along a new last axis; as many as there are elements by default."""
    x = native.reshape(x, (1,)) if x.ndim == 0 else x
    count = x.shape[-1] if n is None else n
    powers = native.cast(native.arange(count), x.dtype)
    return native.pow(native.reshape(x, (*x.shape, 1)), powers)


# --- Einstein's notation ----------------------------------------------------------------------------------


@computes_in("lower")
def einsum(subscripts: str, *operands: Tensor) -> Tensor:
    """Sum of products in Einstein's notation.

    Parameters
    ----------
    subscripts
        A letter for each axis of each operand, as in ``"ij,jk->ik"``. Letters that are missing on the right
        are summed over; without ``->`` those that occur once stay, in alphabetical order. ``...`` stands for
        axes that broadcast.
    *operands
        As many tensors. They are multiplied from left to right, by matrix products.

    Raises
    ------
    ValueError
        If subscripts and operands do not fit.

    """
    terms, output = _parse_einsum(subscripts, operands)
    extents: dict[Any, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for label, extent in zip(term, x.shape, strict=True):
            if extents.get(label, 1) not in (1, extent) and extent != 1:
                raise ShapeError(
                    f"[einsum] '{label}' is {extents[label]} in one operand and {extent} in another"
                )
            extents[label] = max(extents.get(label, 1), extent) if extent else 0
    missing = [label for label in output if label not in extents]
    if missing or len(set(output)) != len(output):
        raise ArgumentError(
            f"[einsum] the output of {subscripts!r} names {missing or output}; each of the inputs', once"
        )
    labels: list[Any] = []
    found = None
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        wanted = set(output).union(*terms[i + 1 :])
        one = _merge_repeated_labels(list(term), x)
        one = _broadcast_labels(*one, extents)
        labels, found = one if found is None else _contract(labels, found, *one, wanted)
        labels, found = _sum_labels(labels, found, wanted)
    return native.permute(found, tuple(labels.index(label) for label in output))


def _parse_einsum(subscripts: str, operands: Sequence[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Labels of each operand's axes and of the output's; axes of '...' are numbers, -1 the last."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ArgumentError(f"[einsum] {subscripts!r} has {len(parts)} operands; {len(operands)} given")
    terms, most = [], 0
    for part, x in zip(parts, operands, strict=True):
        head, dots, tail = part.partition("...")
        n = x.ndim - len(head) - len(tail)
        if n < 0 or (n and not dots):
            raise ShapeError(f"[einsum] {part!r} for an operand with {x.ndim} axes")
        most = max(most, n)
        terms.append([*head, *range(-n, 0), *tail])
    if arrow:
        head, dots, tail = right.partition("...")
        return terms, [*head, *(range(-most, 0) if dots else ()), *tail]
    letters = left.replace(",", "").replace(".", "")
    return terms, [*range(-most, 0), *sorted(label for label in set(letters) if letters.count(label) == 1)]


def _merge_repeated_labels(labels: list[Any], x: Tensor) -> tuple[list[Any], Any]:
    """Take the diagonal over axes with the same label, so that each label occurs once."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            k = labels.index(label, i + 1)
            rest = [axis for axis in range(x.ndim) if axis not in (i, k)]
            places = native.arange(x.shape[i])
            x = native.permute(x, (i, k, *rest))[places, places]
            labels = [label, *(labels[axis] for axis in rest)]
    return labels, x


def _broadcast_labels(labels: list[Any], x: Tensor, extents: dict[Any, int]) -> tuple[list[Any], Any]:
    """Expand axes of extent 1 to the extent of their label."""
    return labels, native.expand(x, tuple(extents[label] for label in labels))


def _sum_labels(labels: list[Any], x: Tensor, wanted: set[Any]) -> tuple[list[Any], Any]:
    """Sum over the axes whose labels are not wanted any more."""
    lost = tuple(i for i, label in enumerate(labels) if label not in wanted)
    if lost:
        x = native.cast(native.sum(x, lost, False), x.dtype)
    return [label for label in labels if label in wanted], x


def _contract(a: list[Any], x: Tensor, b: list[Any], y: Any, wanted: set[Any]) -> tuple[list[Any], Any]:
    """Contract two operands by one batched matrix product; return the labels and the result."""
    b, y = _sum_labels(b, y, wanted | set(a))
    both = [label for label in a if label in b]
    stacked = [label for label in both if label in wanted]
    summed = [label for label in both if label not in wanted]
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    extents = dict(zip((*a, *b), (*x.shape, *y.shape), strict=True))

    def sizes(labels: list[Any]) -> tuple[int, ...]:
        return tuple(extents[label] for label in labels)

    stack = sizes(stacked)
    n_rows, n_summed, n_columns = (math.prod(sizes(each)) for each in (rows, summed, columns))
    left = native.permute(x, tuple(a.index(label) for label in (*stacked, *rows, *summed)))
    right = native.permute(y, tuple(b.index(label) for label in (*stacked, *summed, *columns)))
    product = native.matmul(
        native.reshape(left, (*stack, n_rows, n_summed)), native.reshape(right, (*stack, n_summed, n_columns))
    )
    labels = [*stacked, *rows, *columns]
    return labels, native.reshape(product, sizes(labels))
