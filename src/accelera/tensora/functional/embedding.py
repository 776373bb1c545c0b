"""Rows of a table by index, one by one or a bag of them at once."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.linalg import vector_norm


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Rows of a table.

    Parameters
    ----------
    input
        Integers: the rows that are wanted.
    weight
        Of shape (rows, embedding_dim).
    padding_idx
        A row that gets no gradient; a negative one counts from the end.
    max_norm, norm_type
        Wanted rows whose norm is larger are first scaled down to it, in place in `weight`.
    scale_grad_by_freq
        Divide the gradient of each row by how often it is wanted.

    Returns
    -------
    Tensor
        Of shape (*input.shape, embedding_dim).

    Raises
    ------
    IndexError
        If a row is not in the table.

    """
    if not native.holds(native.logical_not(native.any(input < 0))):
        raise IndexingError("[embedding] a negative index; rows are counted from 0")
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    rows = native.take(weight, input, 0)
    if scale_grad_by_freq:
        rows = _scaled_by_frequency(rows, input, weight.shape[0])
    if padding_idx is None:
        return rows
    padding = native.equal(input, padding_idx % weight.shape[0])
    padding = native.reshape(padding, (*padding.shape, 1))
    return native.where(padding, rows.detach(), rows)


def _scaled_by_frequency(rows: Tensor, chosen: Tensor, n: int) -> Tensor:
    """Return the same rows, with gradients that are divided by the number of times a row is chosen."""
    scaled = rows / _frequencies(chosen, n, rows.dtype)
    return rows.detach() + (scaled - scaled.detach())


def _frequencies(chosen: Tensor, rows: int, dtype: DType) -> Tensor:
    """Return how often each chosen row is chosen, of shape (*chosen.shape, 1)."""
    places = native.reshape(native.cast(chosen, dtypes.int64), (-1,))
    ones = native.full((chosen.size,), 1, dtype)
    often = native.scatter_add(native.full((rows,), 0, dtype), places, ones, 0)
    return native.reshape(native.take(often, places, 0), (*chosen.shape, 1))


def _limit_rows(weight: Tensor, chosen: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale rows of a table down to a norm, in place."""
    with no_grad():
        rows = native.take(weight, chosen, 0)
        norms = vector_norm(rows, axis=-1, keepdims=True, ord=norm_type)
        weight[chosen] = native.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,  # noqa: ARG001 - PyTorch's
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sum, mean or maximum of the rows of each bag; zero of an empty one.

    Parameters
    ----------
    input
        Rows that are wanted, as integers: of shape (bags, n), or a vector of all bags one after the other.
    weight
        Of shape (rows, embedding_dim).
    offsets
        Where each bag begins, for a vector.
    max_norm, norm_type, scale_grad_by_freq
        As for `embedding`.
    mode
        ``"sum"``, ``"mean"`` or ``"max"``.
    sparse
        Taken for PyTorch's sake; gradients are dense.
    per_sample_weights
        Factors of the rows, of the shape of `input`; only for sums.
    include_last_offset
        Whether `offsets` ends with the length of `input`.
    padding_idx
        A row that counts in no bag; a negative one counts from the end.

    Returns
    -------
    Tensor
        Of shape (bags, embedding_dim).

    Raises
    ------
    IndexError
        If a row is not in the table.
    ValueError
        If shapes or options do not fit.

    """
    _check_bags(mode, input, per_sample_weights, scale_grad_by_freq)
    flat, bags, n = _flat_bags(input, offsets, include_last_offset)
    if not native.holds(native.logical_not(native.any(flat < 0))):
        raise IndexingError("[embedding_bag] a negative index; rows are counted from 0")
    if max_norm is not None:
        _limit_rows(weight, flat, max_norm, norm_type)
    counted = None if padding_idx is None else native.not_equal(flat, padding_idx % weight.shape[0])
    if mode == "max":
        return _largest_of_bags(native.take(weight, flat, 0), bags, n, counted)
    rows = native.take(weight, flat, 0)
    if scale_grad_by_freq:
        rows = _scaled_by_frequency(rows, flat, weight.shape[0])
    if per_sample_weights is not None:
        rows = rows * native.reshape(per_sample_weights, (-1, 1))
    if counted is not None:
        rows = native.where(native.reshape(counted, (-1, 1)), rows, 0)
    sums = native.take_add(rows, bags, (n, weight.shape[1]), 0)
    if mode == "sum":
        return sums
    ones = native.full(flat.shape, 1, rows.dtype) if counted is None else native.cast(counted, rows.dtype)
    counts = native.take_add(native.reshape(ones, (-1, 1)), bags, (n, 1), 0)
    return sums / native.maximum(counts, 1)


def _check_bags(mode: str, input: Tensor, factors: Tensor | None, scale_grad_by_freq: bool) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"[embedding_bag] mode={mode!r}; give 'sum', 'mean' or 'max'")
    if mode == "max" and scale_grad_by_freq:
        raise ArgumentError("[embedding_bag] scale_grad_by_freq with mode='max'; give 'sum' or 'mean'")
    if factors is None:
        return
    if mode != "sum":
        raise ArgumentError(f"[embedding_bag] per_sample_weights with mode={mode!r}; give mode='sum'")
    if tuple(factors.shape) != tuple(input.shape):
        raise ShapeError(
            f"[embedding_bag] per_sample_weights of shape {factors.shape} for an input of shape {input.shape}"
        )


def _flat_bags(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> tuple[Any, Any, int]:
    """The input as a vector, the bag of each element, and how many bags there are."""
    if input.ndim == 2 and offsets is None:
        n, each = input.shape
        bags = native.reshape(native.expand(native.reshape(native.arange(n), (n, 1)), (n, each)), (-1,))
        return native.reshape(input, (-1,)), bags, n
    if input.ndim != 1 or offsets is None or offsets.ndim != 1:
        raise ShapeError(
            f"[embedding_bag] an input of shape {input.shape} "
            f"{'without' if offsets is None else 'with'} offsets; give (bags, n), or a vector and a vector"
        )
    begins = [int(each) for each in offsets.tolist()]
    if not begins or begins[0] != 0 or begins[-1] > input.size or begins != sorted(begins):
        raise ArgumentError(
            f"[embedding_bag] offsets={begins[:8]} for {input.size} indices; give rising ones from 0 on"
        )
    begins = begins[:-1] if include_last_offset else begins
    found = native.searchsorted(native.asarray(begins, dtypes.int64), native.arange(input.size), True)
    return input, found - 1, len(begins)


def _largest_of_bags(rows: Any, bags: Any, n: int, counted: Any) -> Tensor:
    """Return the largest elements of each bag's rows, after padding all bags to the size of the largest."""
    members: list[list[int]] = [[] for _ in range(n)]
    kept = [True] * bags.size if counted is None else counted.tolist()
    for i, (bag, counts) in enumerate(zip(bags.tolist(), kept, strict=True)):
        if counts:
            members[bag].append(i)
    longest = max(map(len, members), default=0)
    if not longest:
        return native.sum(rows) * native.full((n, rows.shape[1]), 0, rows.dtype)
    places = [[*each, *[-1] * (longest - len(each))] for each in members]
    index = native.asarray(places, dtypes.int64)
    is_there = native.reshape(index >= 0, (n, longest, 1))
    apart = native.where(is_there, native.take(rows, native.maximum(index, 0), 0), -float("inf"))
    best = native.argmax(apart.detach(), 1, True)
    largest = native.reshape(native.take_along_axis(apart, best, 1), (n, rows.shape[1]))
    return native.where(native.any(is_there, 1, False), largest, 0)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the place of each class and 0 elsewhere, as int64 of shape (*tensor.shape, num_classes).

    Parameters
    ----------
    tensor
        Classes, as integers.
    num_classes
        Number of classes; -1: as many as the largest class needs.

    Raises
    ------
    ValueError
        If a class is negative, or not below `num_classes`.

    """
    if tensor.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"[one_hot] classes of type {tensor.dtype}; give integers")
    if tensor.size == 0 and num_classes < 1:
        raise ArgumentError("[one_hot] no classes in an empty tensor; give num_classes")
    most = int(native.max(tensor).item()) if tensor.size else -1
    least = int(native.min(tensor).item()) if tensor.size else 0
    classes = most + 1 if num_classes == -1 else num_classes
    if least < 0 or most >= classes:
        raise ArgumentError(f"[one_hot] classes from {least} to {most}; give those from 0 to {classes - 1}")
    hit = native.equal(native.reshape(tensor, (*tensor.shape, 1)), native.arange(classes))
    return native.cast(hit, dtypes.int64)
