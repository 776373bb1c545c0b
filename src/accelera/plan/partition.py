"""Ways to cut the result into tiles.

A partition is a list of bands along one axis, each cut into its own number of equal parts along
the other. With equal counts it is the usual grid. Bands of two kinds (r and r + 1 parts) fill a
square with fewer, squarer tiles than any grid when the fast memory does not divide it: the
half-perimeters, hence the traffic, are smaller (column-based partitions, Beaumont et al. 2001).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[int, int]


def split(size: int, parts: int, align: int = 1) -> list[Span]:
    """Cut ``range(size)`` into at most ``parts`` nearly equal spans that start at multiples of ``align``.

    >>> split(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    >>> split(100, 3, align=16)
    [(0, 48), (48, 80), (80, 100)]
    """
    units = math.ceil(size / align)
    parts = max(1, min(parts, units))
    whole, extra = divmod(units, parts)
    edges = [0]
    for index in range(parts):
        edges.append(min(size, edges[-1] + (whole + (index < extra)) * align))
    return list(pairwise(edges))


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

    def outer_spans(self, outer: int, align: int) -> list[tuple[Span, int]]:
        """Return (span, parts) of each band along an axis of size ``outer``."""
        shares = self.shares or tuple(1.0 for _ in self.bands)
        if len(self.bands) == 1:
            return [(span, self.bands[0][1]) for span in split(outer, self.bands[0][0], align)]
        result: list[tuple[Span, int]] = []
        start = 0
        for index, ((count, parts), share) in enumerate(zip(self.bands, shares, strict=True)):
            last = index == len(self.bands) - 1
            stop = outer if last else min(outer, align * math.ceil((start + share * outer) / align))
            result += [((start + a, start + b), parts) for a, b in split(stop - start, count, align) if b > a]
            start = stop
        return result

    def tiles(
        self, rows: int, cols: int, row_align: int = 1, col_align: int = 1
    ) -> Iterator[tuple[Span, Span]]:
        """Yield (row span, column span) in serpentine order: the next tile always shares an edge."""
        outer, inner = (rows, cols) if self.by_rows else (cols, rows)
        outer_align, inner_align = (row_align, col_align) if self.by_rows else (col_align, row_align)
        for index, (band, parts) in enumerate(self.outer_spans(outer, outer_align)):
            spans = split(inner, parts, inner_align)
            for part in spans if index % 2 == 0 else reversed(spans):
                yield (band, part) if self.by_rows else (part, band)


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
        for count in range(1, int(outer // wide) + 1):
            rest = outer - count * wide
            others = math.ceil(rest / (tile_words * (parts + 1) / inner))
            if rest < 1 or others > 8:
                continue
            share = count * wide / outer
            yield Partition(((count, parts), (others, parts + 1)), by_rows, (share, 1 - share))
