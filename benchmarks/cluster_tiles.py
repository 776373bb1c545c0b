"""A product of two files on Ray as somebody who knows it writes it: a task for each tile of the result.

Every task loads what it needs from files that all nodes see and writes its tile into the shared result; the
driver keeps two tiles for each node under way. Nothing but a number travels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

AHEAD = 2
"""Tiles under way for each node, one of which it works at."""
TILE = "tile"
"""Ray resource, one per node: the nodes' processors are reserved by the other, idle contender."""


class Tiles(NamedTuple):
    """A product of squares in ``A.npy`` and ``B.npy`` of a folder, into ``C.npy``."""

    folder: str
    edge: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Tiles along each axis."""

    def tile(self, number: int) -> tuple[slice, slice]:
        """Return rows and columns of a tile."""
        row, column = divmod(number, self.count)
        return self._span(row), self._span(column)

    def depths(self) -> list[slice]:
        """Return the parts of the inner axis, as long as tiles."""
        return [self._span(index) for index in range(self.count)]

    def mapped(self, name: str, mode: Any = "r") -> np.ndarray[Any, Any]:
        """Return one of the three files, mapped."""
        mapped: np.ndarray[Any, Any] = np.load(f"{self.folder}/{name}.npy", mmap_mode=mode)
        return mapped

    def _span(self, index: int) -> slice:
        return slice(index * self.edge // self.count, (index + 1) * self.edge // self.count)


Make = Callable[[Tiles, int], None]
"""Makes one tile."""


def whole_panels(tiles: Tiles, number: int) -> None:
    """Multiply rows and columns as they are mapped, straight into the mapped result."""
    rows, columns = tiles.tile(number)
    out = tiles.mapped("C", "r+")
    np.matmul(tiles.mapped("A")[rows], tiles.mapped("B")[:, columns], out=out[rows, columns])


def whole_panels_in_memory(tiles: Tiles, number: int) -> None:
    """Read rows and columns, multiply them in memory, write the tile."""
    rows, columns = tiles.tile(number)
    a = np.array(tiles.mapped("A")[rows])
    b = np.array(tiles.mapped("B")[:, columns])
    tiles.mapped("C", "r+")[rows, columns] = a @ b


def panels_in_parts(tiles: Tiles, number: int) -> None:
    """Add up products of mapped tiles in memory, write the sum: the least memory."""
    rows, columns = tiles.tile(number)
    a, b = tiles.mapped("A")[rows], tiles.mapped("B")[:, columns]
    first, *depths = tiles.depths()
    total = a[:, first] @ b[first]
    part = np.empty_like(total)
    for depth in depths:
        total += np.matmul(a[:, depth], b[depth], out=part)
    tiles.mapped("C", "r+")[rows, columns] = total


def flushed(make: Make) -> Make:
    """Return ``make`` with every tile on the disk when its task ends, as ours are: a node may die then."""

    def make_and_flush(tiles: Tiles, number: int) -> None:
        make(tiles, number)
        flush(tiles)

    return make_and_flush


def flush(tiles: Tiles) -> None:
    """Return when the result, as far as it is there, is on the disk."""
    with open(f"{tiles.folder}/C.npy", "rb") as file:
        os.fdatasync(file.fileno())


BY_HAND: dict[str, Make] = {
    "by hand, whole panels mapped": flushed(whole_panels),
    "by hand, whole panels in memory": flushed(whole_panels_in_memory),
    "by hand, panels in parts": flushed(panels_in_parts),
    "by hand, panels in parts, flushed at the end": panels_in_parts,
}


def by_hand(tiles: Tiles, how: str, nodes: int) -> None:
    """Make all tiles on the cluster that is connected; the result is on the disk then."""
    import ray

    shape = (tiles.edge, tiles.edge)
    np.lib.format.open_memmap(f"{tiles.folder}/C.npy", "w+", np.float32, shape)
    make = ray.remote(num_cpus=0, resources={TILE: 1})(BY_HAND[how])
    under_way: list[Any] = []
    for number in range(tiles.count**2):
        if len(under_way) >= AHEAD * nodes:
            done, under_way = ray.wait(under_way)
            ray.get(done)
        under_way.append(make.remote(tiles, number))
    ray.get(under_way)
    flush(tiles)
