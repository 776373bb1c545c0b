"""Sets of boxes against a dense array of truth values."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accelera.engine.journal import Coverage, as_box
from accelera.plan._internal import Spans

EDGE = 6


def spans() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, EDGE), st.integers(0, EDGE)).map(lambda pair: (min(pair), max(pair)))


def boxes(rank: int) -> st.SearchStrategy[Spans]:
    return st.tuples(*[spans()] * rank)


@given(data=st.data(), rank=st.integers(1, 3))
def test_covered_is_what_was_added(data: st.DataObject, rank: int) -> None:
    added = data.draw(st.lists(boxes(rank), max_size=6))
    asked = data.draw(boxes(rank))
    taken = np.zeros((EDGE,) * rank, bool)
    for box in added:
        taken[tuple(slice(*span) for span in box)] = True
    coverage = Coverage(added)
    region = taken[tuple(slice(*span) for span in asked)]
    if region.size:
        assert coverage.covers(asked) == region.all()
    assert all(coverage.covers(box) for box in added)


def test_a_box_pieced_together_from_neighbours_is_covered() -> None:
    coverage = Coverage([((0, 2), (0, 4)), ((2, 4), (0, 3))])
    assert not coverage.covers(((0, 4), (0, 4)))
    coverage.add(((2, 4), (3, 4)))
    assert coverage.covers(((0, 4), (0, 4)))
    assert not coverage.covers(((0, 5), (0, 4)))


def test_nothing_covers_nothing() -> None:
    assert not Coverage().covers(((0, 1),))


def test_the_only_element_of_a_scalar_result() -> None:
    coverage = Coverage()
    assert not coverage.covers(())
    coverage.add(())
    assert coverage.covers(())


def test_boxes_come_back_in_order_and_once() -> None:
    coverage = Coverage([((0, 1),), ((2, 3),), ((0, 1),)])
    assert list(coverage) == [((0, 1),), ((2, 3),)]
    assert len(coverage) == 2


@given(rows=st.integers(1, 6), columns=st.integers(1, 6), order=st.randoms())
def test_a_grid_of_boxes_becomes_few(rows: int, columns: int, order: Random) -> None:
    """In the order of a plan, or its reverse, there are never more than three; at the end there is one."""
    grid = [((r, r + 1), (c, c + 1)) for r in range(rows) for c in range(columns)]
    if order.random() < 0.5:
        grid.reverse()
    coverage, most = Coverage(), 0
    for box in grid:
        coverage.add(box)
        most = max(most, len(coverage))
    assert list(coverage) == [((0, rows), (0, columns))]
    assert coverage.elements == rows * columns
    assert most <= 3


def test_a_region_of_slices_is_a_box() -> None:
    assert as_box((slice(1, 3), slice(0, 7))) == ((1, 3), (0, 7))
