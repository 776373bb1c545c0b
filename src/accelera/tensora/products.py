"""Products of matrices, tensors and vectors, and sums of products in Einstein's notation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import from_dlpack


def matmul(x1: Any, x2: Any, /, *, out: Any = None, budget: Any = None) -> Any:
    """Product of matrices, or of stacks of them that broadcast.

    A vector is a row on the left and a column on the right. Where a factor is no tensor but lies in a file or a
    store, `accelera.MatrixEngine` multiplies by a plan that stays within the budget.

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
            raise TypeError("matmul: out and budget are for files and stores; two tensors give a new tensor")
        return native.matmul(x1, x2)
    from accelera.engine import MatrixEngine  # loaded by those who need it

    engine = MatrixEngine("cpu", enable_progress=False)
    product = engine.matmul(_operand(x1), _operand(x2), out=out, budget=budget or _left_of_limit())
    return product if out is not None else from_dlpack(product.numpy())


def _operand(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, Tensor) else x


def _left_of_limit() -> int | None:
    stats = native.memory_stats()
    return stats.limit_bytes - stats.live_bytes if stats.limit_bytes else None


def matrix_transpose(x: Tensor, /) -> Tensor:
    """View of a stack of matrices with each of them transposed.

    Raises
    ------
    ValueError
        If the tensor has less than two axes.

    """
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: a tensor of shape {x.shape}; give a matrix or a stack of them")
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
    extents = [x1.shape[i] for i in first]
    if extents != [x2.shape[i] for i in second]:
        raise ValueError(
            f"tensordot: axes {first} of shape {x1.shape} and {second} of {x2.shape} differ in extent"
        )
    left = [i for i in range(x1.ndim) if i not in first]
    right = [i for i in range(x2.ndim) if i not in second]
    shape = tuple(x1.shape[i] for i in left) + tuple(x2.shape[i] for i in right)
    summed = math.prod(extents)
    rows, columns = math.prod(x1.shape[i] for i in left), math.prod(x2.shape[i] for i in right)
    a = native.reshape(native.permute(x1, (*left, *first)), (rows, summed))
    b = native.reshape(native.permute(x2, (*second, *right)), (summed, columns))
    return native.reshape(native.matmul(a, b), shape)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Dot product of vectors along an axis, counted from the end; complex elements of `x1` are conjugated.

    Raises
    ------
    ValueError
        If the extents of the axis differ.

    """
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} of shapes {x1.shape} and {x2.shape} differs in extent")
    dtype = native.promote(x1.dtype, x2.dtype)
    first = native.conj(x1) if x1.dtype.name.startswith("complex") else x1
    return native.cast(native.sum(native.multiply(first, x2), axis), dtype)


# --- Einstein's notation ----------------------------------------------------------------------------------


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
    terms, output = _read(subscripts, operands)
    extents: dict[Any, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for label, extent in zip(term, x.shape, strict=True):
            if extents.get(label, 1) not in (1, extent) and extent != 1:
                raise ValueError(
                    f"einsum: '{label}' is {extents[label]} in one operand and {extent} in another"
                )
            extents[label] = max(extents.get(label, 1), extent) if extent else 0
    missing = [label for label in output if label not in extents]
    if missing or len(set(output)) != len(output):
        raise ValueError(
            f"einsum: the output of {subscripts!r} names {missing or output}; each of the inputs', once"
        )
    labels: list[Any] = []
    found = None
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        wanted = set(output).union(*terms[i + 1 :])
        one = _diagonal(list(term), x)
        one = _spread(*one, extents)
        labels, found = one if found is None else _contract(labels, found, *one, wanted)
        labels, found = _sum_out(labels, found, wanted)
    return native.permute(found, tuple(labels.index(label) for label in output))


def _read(subscripts: str, operands: Sequence[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Labels of each operand's axes and of the output's; axes of '...' are numbers, -1 the last."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ValueError(f"einsum: {subscripts!r} has {len(parts)} operands; {len(operands)} given")
    terms, most = [], 0
    for part, x in zip(parts, operands, strict=True):
        head, dots, tail = part.partition("...")
        n = x.ndim - len(head) - len(tail)
        if n < 0 or (n and not dots):
            raise ValueError(f"einsum: {part!r} for an operand with {x.ndim} axes")
        most = max(most, n)
        terms.append([*head, *range(-n, 0), *tail])
    if arrow:
        head, dots, tail = right.partition("...")
        return terms, [*head, *(range(-most, 0) if dots else ()), *tail]
    letters = left.replace(",", "").replace(".", "")
    return terms, [*range(-most, 0), *sorted(label for label in set(letters) if letters.count(label) == 1)]


def _diagonal(labels: list[Any], x: Any) -> tuple[list[Any], Any]:
    """Axes with one label as one."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            k = labels.index(label, i + 1)
            rest = [axis for axis in range(x.ndim) if axis not in (i, k)]
            places = native.arange(x.shape[i])
            x = native.permute(x, (i, k, *rest))[places, places]
            labels = [label, *(labels[axis] for axis in rest)]
    return labels, x


def _spread(labels: list[Any], x: Any, extents: dict[Any, int]) -> tuple[list[Any], Any]:
    """Axes of extent 1 as long as the others with their label."""
    return labels, native.expand(x, tuple(extents[label] for label in labels))


def _sum_out(labels: list[Any], x: Any, wanted: set[Any]) -> tuple[list[Any], Any]:
    """Sum over axes that nothing else has."""
    lost = tuple(i for i, label in enumerate(labels) if label not in wanted)
    if lost:
        x = native.cast(native.sum(x, lost, False), x.dtype)
    return [label for label in labels if label in wanted], x


def _contract(a: list[Any], x: Any, b: list[Any], y: Any, wanted: set[Any]) -> tuple[list[Any], Any]:
    """Product of two operands as one product of stacks of matrices."""
    b, y = _sum_out(b, y, wanted | set(a))
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
