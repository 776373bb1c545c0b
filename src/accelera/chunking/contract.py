"""Contract of a chunking strategy, and the proof that chunks cover a shape once.

A gap would leave garbage in a result.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from accelera.errors import ShapeError

Chunk = tuple[slice, ...]
"""One slice per axis; ``slice(None)`` takes the whole axis."""
Region = tuple[slice, ...]
"""One slice per axis with ``0 <= start <= stop <= size`` and a positive step: part of an array."""


class ChunkingStrategy(abc.ABC):
    """Cuts a shape into chunks. Subclass it to bring your own cut.

    The engine asks for the chunks of the *result* it is to compute. It draws them one at a time,
    just before each is worked on, so a generator may decide late.
    """

    @abc.abstractmethod
    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterable[Chunk]:
        """Return the chunks of ``shape``, in working order, without gap or overlap.

        ``chunk_size`` is a number of rows (for square tiles: of rows and columns), at least 1.
        """

    def on_out_of_memory(self) -> bool:
        """Hear that the device had no room for the last chunk; return whether the next ones shrink.

        The engine itself works the failed chunk off in smaller pieces.
        """
        return False


def check_cut(strategy: ChunkingStrategy, shape: tuple[int, ...], chunk_size: int, axes: int) -> None:
    """Raise ShapeError unless ``shape`` has ``axes`` axes and ``chunk_size`` is a count."""
    name = type(strategy).__name__
    if len(shape) < axes:
        raise ShapeError(f"[chunking] {name} cuts {axes} axes; shape {tuple(shape)} has {len(shape)}")
    if chunk_size < 1:
        raise ShapeError(f"[chunking] {name} was given chunk_size={chunk_size}; it must be at least 1")


def as_box(chunk: object, shape: tuple[int, ...]) -> Region:
    """Return ``chunk`` with every bound written out; raises ShapeError when it leaves ``shape``."""
    if not isinstance(chunk, tuple) or len(chunk) > len(shape):
        raise ShapeError(f"[chunking] chunk {chunk!r} must be a tuple of at most {len(shape)} slices")
    slices = chunk + (slice(None),) * (len(shape) - len(chunk))
    return tuple(_bounds(part, size, chunk) for part, size in zip(slices, shape, strict=True))


def covering(chunks: Iterable[Chunk] | None, shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield the chunks as boxes while they are drawn; at the end prove that they cover ``shape`` once.

    Raises ShapeError naming the first chunk that is out of place, or the gap.
    """
    if chunks is None:
        raise ShapeError(f"[chunking] get_chunks returned None for shape {shape}; return tuples of slices")
    boxes: list[Region] = []
    for chunk in chunks:
        boxes.append(as_box(chunk, shape))
        yield boxes[-1]
    _prove_cover(boxes, shape)


def _bounds(part: object, size: int, chunk: object) -> slice:
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise ShapeError(f"[chunking] chunk {chunk!r} must be made of slices with step 1")
    start = 0 if part.start is None else part.start
    stop = size if part.stop is None else part.stop
    if not 0 <= start <= stop <= size:
        raise ShapeError(f"[chunking] chunk {chunk!r} reaches outside an axis of {size}")
    return slice(start, stop)


def _prove_cover(boxes: list[Region], shape: tuple[int, ...]) -> None:
    """Count how often each cell of the grid spanned by all cuts is taken."""
    cuts = [sorted({0, size} | _ends(boxes, axis)) for axis, size in enumerate(shape)]
    taken = np.zeros([len(axis_cuts) - 1 for axis_cuts in cuts], dtype=np.int32)
    index = [{cut: place for place, cut in enumerate(axis_cuts)} for axis_cuts in cuts]
    for box in boxes:
        taken[tuple(slice(at[part.start], at[part.stop]) for at, part in zip(index, box, strict=True))] += 1
    if taken.size and not (taken == 1).all():
        place = np.unravel_index(int(np.argmax(taken != 1)), taken.shape)
        where = ", ".join(_cell(axis_cuts, at) for axis_cuts, at in zip(cuts, place, strict=True))
        times = "in no chunk" if taken[place] == 0 else f"in {taken[place]} chunks"
        raise ShapeError(f"[chunking] [{where}] of shape {shape} is {times}; each element must be in one")


def _ends(boxes: list[Region], axis: int) -> set[int]:
    return {end for box in boxes for end in (box[axis].start, box[axis].stop)}


def _cell(cuts: list[int], place: np.intp) -> str:
    start, stop = list(pairwise(cuts))[place]
    return f"{start}:{stop}"
