"""Every partition covers the result once."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accelera.plan._internal import Partition, split
from accelera.plan.partition import grids

sizes = st.integers(1, 300)


@given(size=sizes, parts=st.integers(1, 20), align=st.sampled_from([1, 7, 64]))
def test_spans_cover_the_axis_in_order(size: int, parts: int, align: int) -> None:
    spans = split(size, parts, align)
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert all(start % align == 0 and start < stop for start, stop in spans)
    assert len(spans) <= parts


@given(rows=sizes, cols=sizes, tile_words=st.floats(1, 50_000))
def test_grids_cover_the_result_once(rows: int, cols: int, tile_words: float) -> None:
    for partition in grids(rows, cols, tile_words)[:20]:
        taken = np.zeros((rows, cols), int)
        for (r0, r1), (c0, c1) in partition.tiles(rows, cols):
            taken[r0:r1, c0:c1] += 1
        assert (taken == 1).all(), partition


def test_neighbours_share_an_edge() -> None:
    tiles = list(Partition(((3, 4),), by_rows=True).tiles(300, 400))
    for (rows, cols), (next_rows, next_cols) in itertools.pairwise(tiles):
        assert rows == next_rows or cols == next_cols


def test_two_kinds_of_bands_fill_a_square_better_than_a_grid() -> None:
    """Five tiles of at most 0.89 of a unit square each, where the grid needs six."""
    mixed = Partition(((1, 2), (1, 3)), by_rows=False, shares=(0.42, 0.58))
    assert len(list(mixed.tiles(2100, 2100))) == 5
