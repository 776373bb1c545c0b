"""Batches of samples: equal parts of the samples become tensors with one axis more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accelera.errors import ArgumentError, DTypeError
from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import asarray
from accelera.tensora.manipulation import stack


def default_convert(data: Any) -> Any:
    """Sample with NumPy arrays as tensors over their memory, inside of sequences and mappings as well.

    Everything else, numbers among it, stays as it is.
    """
    if isinstance(data, (np.ndarray, np.generic)):
        return data if data.dtype.kind in "SUO" else asarray(np.asarray(data))
    if isinstance(data, Mapping):
        return _mapping(data, {name: default_convert(each) for name, each in data.items()})
    if isinstance(data, (list, tuple)):
        return _sequence(data, [default_convert(each) for each in data])
    return data


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples as one batch.

    Parameters
    ----------
    batch
        Samples of the same structure: tensors and arrays are stacked along a new first axis; numbers become a
        tensor, floats of float64 and integers of int64; strings and bytes a list; mappings and sequences are
        gone into, and keep their types.

    Returns
    -------
    Any
        A structure as that of a sample.

    Raises
    ------
    TypeError
        If samples are of another kind.
    ValueError
        If sequences have unequal lengths, or tensors unequal shapes.

    """
    first = batch[0]
    for kinds, collate in _KINDS:
        if isinstance(first, kinds):
            return collate(batch)
    if hasattr(first, "__dlpack__"):
        return stack([asarray(each) for each in batch])
    raise ArgumentError(
        f"[default_collate] a sample has a {type(first).__name__}; give tensors, arrays, numbers, strings, "
        "mappings or sequences of them, or a collate_fn of your own"
    )


def _arrays(batch: Sequence[Any]) -> Any:
    if batch[0].dtype.kind in "SUO":
        raise DTypeError(
            f"[default_collate] an array of {batch[0].dtype}; give numbers, or a collate_fn of your own"
        )
    return stack([asarray(np.asarray(each)) for each in batch])


def _mappings(batch: Sequence[Any]) -> Any:
    first = batch[0]
    return _mapping(first, {name: default_collate([each[name] for each in batch]) for name in first})


def _sequences(batch: Sequence[Any]) -> Any:
    lengths = {len(each) for each in batch}
    if len(lengths) > 1:
        raise ArgumentError(
            f"[default_collate] sequences of {sorted(lengths)} items in one batch; make them alike, "
            "or give a collate_fn of your own"
        )
    return _sequence(batch[0], [default_collate(each) for each in zip(*batch, strict=True)])


def _mapping(like: Any, items: dict[Any, Any]) -> Any:
    if isinstance(like, dict):
        try:
            made = like.copy()  # keeps further state of the class, such as the default of a defaultdict
            made.update(items)
            return made
        except TypeError:
            return items
    return items


def _sequence(like: Any, items: list[Any]) -> Any:
    if isinstance(like, tuple):
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    return items


_KINDS: tuple[tuple[Any, Callable[[Sequence[Any]], Any]], ...] = (
    (Tensor, lambda batch: stack(list(batch))),
    ((np.ndarray, np.generic), _arrays),
    (float, lambda batch: asarray(list(batch), dtype=native.dtype.float64)),
    (int, lambda batch: asarray(list(batch))),
    ((str, bytes), list),
    (Mapping, _mappings),
    ((list, tuple), _sequences),
)
"""Collate functions by type, in order of precedence: np.float64 is a float too, so NumPy's come first."""
