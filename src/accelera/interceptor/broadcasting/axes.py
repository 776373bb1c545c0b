"""The axes of a batched product by what they do: stack, make rows, make columns, or are summed over.

``out[b, m, n] = sum over k of x[b, m, k] y[b, k, n]``. A batch axis that only ``x`` has makes rows, one
that only ``y`` has makes columns, and one that the result lacks is summed over. Axes of one kind whose
strides follow one another in every tensor are one axis, so most products are a single call of the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch


class Axis(NamedTuple):
    """One axis, and how far apart its elements are in each tensor; zero where a tensor lacks it."""

    size: int
    x: int
    y: int
    out: int


ONE = Axis(1, 0, 0, 0)
"""Stands for a kind of axis of which a product has none."""


class Axes(NamedTuple):
    """All axes of a product, by kind; neighbours are merged."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inner: tuple[Axis, ...]


def sort_axes(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Axes:
    """Return the axes of ``out = x @ y``.

    Parameters
    ----------
    x, y, out
        ``(*batch, m, k)``, ``(*batch, k, n)`` and ``(*batch, m, n)``, all of one rank; a batch axis has
        size 1 where a tensor lacks it.
    """
    kinds: dict[str, list[Axis]] = {kind: [] for kind in Axes._fields}
    rows = Axis(x.shape[-2], x.stride(-2), 0, out.stride(-2))
    columns = Axis(y.shape[-1], 0, y.stride(-1), out.stride(-1))
    kinds["rows"].append(rows)
    kinds["columns"].append(columns)
    kinds["inner"].append(Axis(x.shape[-1], x.stride(-1), y.stride(-2), 0))
    for position in range(out.dim() - 2):
        axis = _batch_axis(x, y, out, position)
        kinds[_kind(axis, out.shape[position])].append(axis)
    return Axes(**{kind: tuple(_merged(axes)) for kind, axes in kinds.items()})


def _batch_axis(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, position: int) -> Axis:
    sizes = (x.shape[position], y.shape[position], out.shape[position])
    strides = (each.stride(position) if each.shape[position] > 1 else 0 for each in (x, y, out))
    return Axis(max(sizes), *strides)


def _kind(axis: Axis, size_in_out: int) -> str:
    if size_in_out == 1:
        return "inner"
    if not axis.y:
        return "rows" if axis.x else "batch"
    return "batch" if axis.x else "columns"


def _merged(axes: Iterable[Axis]) -> list[Axis]:
    """Return ``axes`` without those of size 1, each run that is one in memory as one axis."""
    merged: list[Axis] = []
    for axis in sorted((each for each in axes if each.size > 1), key=lambda each: each[1:], reverse=True):
        if merged and _follows(merged[-1], axis):
            merged[-1] = Axis(merged[-1].size * axis.size, *axis[1:])
        else:
            merged.append(axis)
    return merged


def _follows(outer: Axis, inner: Axis) -> bool:
    return all(wide == narrow * inner.size for wide, narrow in zip(outer[1:], inner[1:], strict=True))
