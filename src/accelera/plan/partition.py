"""Partitions of a result into tiles.

A partition is a list of bands along one axis, each cut into its own number of equal parts along
the other. With equal counts it is the usual grid. Bands of two kinds (r and r + 1 parts) fill a
square with fewer, squarer tiles than any grid when the fast memory does not divide it: the
half-perimeters, hence the traffic, are smaller (column-based partitions, Beaumont et al. 2001).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

Span = tuple[int, int]
"""(start, stop) along one axis."""
Spans = tuple[Span, ...]
"""(start, stop) along each axis."""
_OTHERS = 8
"""Most bands of the second kind in a mixture."""


_FEW = 32
"""Up to this many parts differ by at most one unit; more are all equal except the last, so passes repeat."""


class Cuts(Sequence[Span]):
    """Spans of an axis, first to last, worked out when asked for: a billion take no more memory than two.

    At most ``parts`` spans of ``range(start, start + size)`` begin at multiples of ``align`` after ``start``.

    >>> list(Cuts(10, 3)), list(Cuts(100, 3, align=16))
    ([(0, 4), (4, 7), (7, 10)], [(0, 48), (48, 80), (80, 100)])
    >>> cuts = Cuts(10**12, 10**9)
    >>> len(cuts), cuts[-1], cuts.runs()
    (1000000000, (999999999000, 1000000000000), [(0, 1000000000)])
    """

    def __init__(self, size: int, parts: int, align: int = 1, start: int = 0) -> None:
        units = -(-size // align)
        parts = max(1, min(parts, units))
        self._size, self._align, self._start = size, align, start
        if parts > _FEW:
            self._units = -(-units // parts)
            self._count, self._longer = -(-units // self._units), 0
        else:
            self._units, self._longer = divmod(units, parts)
            self._count = parts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        place = range(self._count)[index]
        return self._edge(place), self._edge(place + 1)

    def _edge(self, place: int) -> int:
        units = place * self._units + min(place, self._longer)
        return self._start + min(self._size, units * self._align)

    def runs(self) -> list[tuple[int, int]]:
        """Return the (first, stop) places of spans in a row that are of one length."""
        found: list[tuple[int, int]] = []
        for first, stop in pairwise(sorted({0, self._longer, self._count - 1, self._count})):
            if found and self.length(found[-1][0]) == self.length(first):
                first = found.pop()[0]
            found.append((first, stop))
        return found

    def length(self, place: int) -> int:
        """Return how long one span is."""
        start, stop = self[place]
        return stop - start

    @property
    def longest(self) -> int:
        """Length of the longest span."""
        return self.length(0)

    @property
    def shortest(self) -> int:
        """Length of the shortest span."""
        return min(self.length(first) for first, _ in self.runs())

    def groups(self, size: int, *, ends: bool = False) -> list[tuple[int, int]]:
        """Return the (first, stop) numbers of groups of ``size`` spans in a row that look alike.

        Group g has the spans from ``g * size``; the last one may have fewer. With ``ends`` the first and the
        last group stand by themselves.
        """
        return alike(self._count, [edge for _, edge in self.runs()], size, ends=ends)


def alike(count: int, edges: Iterable[int], size: int, *, ends: bool = False) -> list[tuple[int, int]]:
    """Return the (first, stop) numbers of groups of ``size`` out of ``count`` in a row that look alike.

    At ``edges`` those in the row begin to look otherwise; see ``Cuts.groups``.
    """
    groups = -(-count // size)
    marks = {0, groups, *((1, groups - 1) if ends else ())}
    for edge in edges:
        marks |= {edge // size, -(-edge // size)}
    return list(pairwise(sorted(each for each in marks if 0 <= each <= groups)))


def split(size: int, parts: int, align: int = 1) -> list[Span]:
    """Cut ``range(size)`` into at most ``parts`` nearly equal spans that start at multiples of ``align``.

    >>> split(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    return list(Cuts(size, parts, align))


@dataclass(frozen=True)
class Partition:
    """Bands along the outer axis, each with a number of parts along the inner axis."""

    bands: tuple[tuple[int, int], ...]
    """(band count, parts in each of these bands), in order."""
    by_rows: bool
    """True: bands are groups of rows, parts cut the columns. False: the other way round."""
    shares: tuple[float, ...] = ()
    """Fraction of the outer axis that each entry of ``bands`` covers; empty means equal bands."""

    def describe(self) -> str:
        """Return the partition in words, such as ``"2 x 3"`` or ``"1 x 2 + 1 x 3 by columns"``."""
        text = " + ".join(f"{count} x {parts}" for count, parts in self.bands)
        return (
            text
            if len(self.bands) == 1 and self.by_rows
            else f"{text} by {'rows' if self.by_rows else 'columns'}"
        )

    def regions(self, rows: int, cols: int, row_align: int = 1, col_align: int = 1) -> list[Region]:
        """Return the grids side by side that the partition is made of, first to last."""
        outer, inner = (rows, cols) if self.by_rows else (cols, rows)
        aligns = (row_align, col_align) if self.by_rows else (col_align, row_align)
        shares = self.shares or tuple(1.0 for _ in self.bands)
        found: list[Region] = []
        start = 0
        for index, ((count, parts), share) in enumerate(zip(self.bands, shares, strict=True)):
            last = index == len(self.bands) - 1
            stop = outer if last else min(outer, aligns[0] * math.ceil((start + share * outer) / aligns[0]))
            if stop > start or (last and not found):
                bands = Cuts(stop - start, count, aligns[0], start)
                found.append(Region(bands, Cuts(inner, parts, aligns[1]), parts, self.by_rows))
            start = stop
        return found

    def tiles(
        self, rows: int, cols: int, row_align: int = 1, col_align: int = 1
    ) -> Iterator[tuple[Span, Span]]:
        """Yield (row span, column span) in serpentine order: the next tile always shares an edge."""
        before = 0
        for region in self.regions(rows, cols, row_align, col_align):
            yield from region.tiles(range(len(region.bands)), range(len(region.parts)), before)
            before += len(region.bands)


@dataclass(frozen=True)
class Region:
    """A grid of tiles: bands along the outer axis, all of them cut alike along the inner axis."""

    bands: Cuts
    parts: Cuts
    wanted_parts: int
    """Into how many parts each band was to be cut."""
    by_rows: bool

    @property
    def tall(self) -> Cuts:
        """How the rows are cut."""
        return self.bands if self.by_rows else self.parts

    @property
    def wide(self) -> Cuts:
        """How the columns are cut."""
        return self.parts if self.by_rows else self.bands

    def tiles(self, bands: range, parts: range, before: int = 0) -> Iterator[tuple[Span, Span]]:
        """Yield (row span, column span) of some tiles, to and fro; ``before`` bands came before."""
        for index, band in enumerate(bands, before):
            for part in parts if index % 2 == 0 else reversed(parts):
                pair = self.bands[band], self.parts[part]
                yield pair if self.by_rows else pair[::-1]


def grids(rows: int, cols: int, tile_words: float) -> list[Partition]:
    """Return the partitions of a ``rows x cols`` result into tiles of at most ``tile_words``.

    For each number of bands the fewest parts that fit, along either axis, and the mixtures of two
    neighbouring part counts.
    """
    found: dict[Partition, None] = {}
    for by_rows in (True, False):
        outer, inner = (rows, cols) if by_rows else (cols, rows)
        for bands in _band_counts(outer):
            parts = math.ceil(math.ceil(outer / bands) * inner / max(tile_words, 1))
            if parts <= inner:
                found[Partition(((bands, max(parts, 1)),), by_rows)] = None
        for partition in _mixtures(outer, inner, tile_words, by_rows):
            found[partition] = None
    return list(found)


def _band_counts(outer: int) -> list[int]:
    counts = [*range(1, min(outer, 24) + 1)]
    while counts[-1] * 5 // 4 < outer:
        counts.append(counts[-1] * 5 // 4)
    return counts


def _mixtures(outer: int, inner: int, tile_words: float, by_rows: bool) -> Iterator[Partition]:
    """Bands of r parts as wide as fits, the rest in bands of r + 1 parts."""
    for parts in range(1, 9):
        wide = tile_words * parts / inner
        if wide < 1 or wide >= outer:
            continue
        narrow = tile_words * (parts + 1) / inner
        fewest = max(1, math.floor((outer - (_OTHERS + 1) * narrow) / wide))
        for count in range(fewest, int(outer // wide) + 1):
            rest = outer - count * wide
            others = math.ceil(rest / narrow)
            if rest < 1 or others > _OTHERS:
                continue
            share = count * wide / outer
            yield Partition(((count, parts), (others, parts + 1)), by_rows, (share, 1 - share))
