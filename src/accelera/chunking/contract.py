"""What a chunking strategy must do: cut an array's shape into pieces that together cover it."""

from __future__ import annotations

import abc
from collections.abc import Iterable

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
