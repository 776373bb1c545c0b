"""Batch of sequences of several lengths without padding: at each step, those that are still going."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, ShapeError, StateError
from accelera.tensora import dtypes
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed

__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpad_sequence",
]


class PackedSequence(NamedTuple):
    """Batch of sequences of several lengths, step after step and without padding.

    Parameters
    ----------
    data
        Of shape (sum of lengths, ...): all elements of step 0, then those of step 1, and so on.
    batch_sizes
        How many sequences have each step, as int64 on the CPU; never rising.
    sorted_indices
        Which sequence of the batch stands at each place here, from the longest to the shortest; None if
        they were given in that order.
    unsorted_indices
        The inverse.

    """

    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None

    def to(self, *args: Any, **options: Any) -> PackedSequence:
        """Sequences with another element type, on another device, or both, as `Tensor.to`."""
        data = self.data.to(*args, **options)
        moved = [
            None if x is None else placed(x, data.device)
            for x in (self.sorted_indices, self.unsorted_indices)
        ]
        return PackedSequence(data, self.batch_sizes, *moved)

    @property
    def sizes(self) -> list[int]:
        """`batch_sizes` as integers."""
        return [int(n) for n in self.batch_sizes.numpy()]


def _integers(given: Any) -> list[int]:
    return [int(n) for n in (given.cpu().numpy() if isinstance(given, Tensor) else given)]


def inverse_order(order: Sequence[int]) -> list[int]:
    """Permutation that undoes another."""
    places = [0] * len(order)
    for place, index in enumerate(order):
        places[index] = place
    return places


def _checked_lengths(lengths: Any, shape: tuple[int, ...]) -> list[int]:
    """Lengths for a tensor of shape (steps, batch, ...)."""
    found = _integers(lengths)
    if len(found) != shape[1]:
        raise StateError(
            f"[pack_padded_sequence] {len(found)} lengths for a batch of {shape[1]}; give one each"
        )
    if not found or min(found) < 1 or max(found) > shape[0]:
        raise StateError(
            f"[pack_padded_sequence] lengths {found[:8]} for {shape[0]} steps; give lengths from 1 to it"
        )
    return found


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Padded sequences without their padding.

    Parameters
    ----------
    input
        Of shape (steps, batch, ...), or (batch, steps, ...) if `batch_first`.
    lengths
        Of each sequence: integers, or a tensor of them.
    batch_first
        Whether the first axis is the batch.
    enforce_sorted
        Whether they are sorted from the longest to the shortest; otherwise they are sorted here.

    Returns
    -------
    PackedSequence
        Sequences of which a step has only the elements that are there.

    Raises
    ------
    RuntimeError
        If the lengths do not fit, or are not sorted although they should be.

    """
    steps_first = native.permute(input, (1, 0, *range(2, input.ndim))) if batch_first else input
    found = _checked_lengths(lengths, tuple(steps_first.shape))
    order = sorted(range(len(found)), key=lambda i: -found[i])
    if enforce_sorted and any(a < b for a, b in itertools.pairwise(found)):
        raise StateError(
            "[pack_padded_sequence] lengths are not sorted from the longest to the shortest; "
            "sort them, or give enforce_sorted=False"
        )
    sizes = [sum(n > step for n in found) for step in range(max(found))]
    indices: list[Any] = [None, None]
    if not enforce_sorted:
        made = [native.asarray(each, dtypes.int64) for each in (order, inverse_order(order))]
        indices = [placed(each, input.device) for each in made]
    places = [step * len(found) + i for step, n in enumerate(sizes) for i in order[:n]]
    flat = native.reshape(steps_first, (-1, *steps_first.shape[2:]))
    data = native.take(flat, placed(native.asarray(places, dtypes.int64), input.device), 0)
    return PackedSequence(data, native.asarray(sizes, dtypes.int64), *indices)


def _filled(value: float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return placed(native.full(shape, value, like.dtype), like.device)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Any, Any]:
    """Padded tensor of packed sequences, and their lengths.

    Parameters
    ----------
    sequence
        Packed sequences.
    batch_first
        Return (batch, steps, ...) instead of (steps, batch, ...).
    padding_value
        Value of the padding after the end of a sequence.
    total_length
        Number of steps, at least that of the longest sequence, which it is by default.

    Returns
    -------
    tuple
        The tensor, and the lengths as int64 on the CPU, both in the order before packing.

    Raises
    ------
    ValueError
        If `total_length` is below the length of a sequence.

    """
    sizes = sequence.sizes
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ArgumentError(
            f"[pad_packed_sequence] total_length={total_length} for {len(sizes)} steps; give more"
        )
    padded = _padded(sequence.data, sizes, steps, padding_value)
    lengths = [sum(n > i for n in sizes) for i in range(sizes[0])]
    if sequence.unsorted_indices is not None:
        padded = native.take(padded, sequence.unsorted_indices, 1)
        lengths = [lengths[i] for i in _integers(sequence.unsorted_indices)]
    if batch_first:
        padded = native.permute(padded, (1, 0, *range(2, padded.ndim)))
    return padded, native.asarray(lengths, dtypes.int64)


def _padded(data: Tensor, sizes: list[int], steps: int, value: float) -> Tensor:
    """Tensor (steps, batch, ...) of packed rows: each place takes its row, or the one of the padding."""
    batch, begin, places = sizes[0], 0, []
    for step in range(steps):
        n = sizes[step] if step < len(sizes) else 0
        places += [*range(begin, begin + n), *[data.shape[0]] * (batch - n)]
        begin += n
    rest = tuple(data.shape[1:])
    if max(places) == data.shape[0]:
        data = native.concat([data, _filled(value, (1, *rest), data)], 0)
    rows = native.take(data, placed(native.asarray(places, dtypes.int64), data.device), 0)
    return native.reshape(rows, (steps, batch, *rest))


def pad_sequence(
    sequences: Iterable[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences of several lengths in one tensor.

    Parameters
    ----------
    sequences
        Tensors of shapes (length, ...) that differ in the length alone.
    batch_first
        Return (batch, steps, ...) instead of (steps, batch, ...).
    padding_value
        Value of the elements after the end of a sequence.
    padding_side
        ``"right"``, behind the sequences, or ``"left"``, before them.

    Raises
    ------
    ValueError
        If there is no sequence, their shapes do not fit, or the side is another.

    """
    given = list(sequences)
    if padding_side not in ("left", "right"):
        raise ArgumentError(f"[pad_sequence] padding_side={padding_side!r}; give 'left' or 'right'")
    if not given or len({tuple(each.shape[1:]) for each in given}) > 1:
        shapes = [tuple(each.shape) for each in given[:8]]
        raise ShapeError(
            f"[pad_sequence] shapes {shapes}; give tensors that differ in their first axis alone"
        )
    steps = max(each.shape[0] for each in given)
    rows = []
    for each in given:
        missing = steps - each.shape[0]
        parts = [each, _filled(padding_value, (missing, *each.shape[1:]), each)] if missing else [each]
        rows.append(native.concat(parts if padding_side == "right" else parts[::-1], 0)[None])
    padded = native.concat(rows, 0)
    return padded if batch_first else native.permute(padded, (1, 0, *range(2, padded.ndim)))


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Any]:
    """Sequences of a padded tensor, each as long as `lengths` says; the inverse of `pad_sequence`."""
    padded = padded_sequences
    if not batch_first:
        padded = native.permute(padded, (1, 0, *range(2, padded.ndim)))
    return [padded[i, :n] for i, n in enumerate(_integers(lengths))]


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors of shapes (length, ...) as one packed sequence."""
    lengths = [each.shape[0] for each in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)
