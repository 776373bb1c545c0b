import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.chunking import AdaptiveChunking, ChunkingStrategy, RowChunking, TileChunking
from accelera.chunking._internal import covering, create_chunking_strategy
from accelera.errors import ShapeError, UnknownNameError


class Gauge:
    """A memory whose free share is what the test says, reading by reading."""

    def __init__(self, *shares: float) -> None:
        self.shares = list(shares)

    def get_available_memory(self) -> int:
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        return int(share * 1000)

    def get_total_memory(self) -> int:
        return 1000


def rows(chunks):
    return [chunk[0].stop - chunk[0].start for chunk in chunks]


STRATEGIES = st.one_of(
    st.just(RowChunking()),
    st.builds(TileChunking, st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9))),
    st.builds(
        AdaptiveChunking,
        st.builds(lambda shares: Gauge(*shares), st.lists(st.floats(0, 1), min_size=1)),
        st.integers(1, 5),
    ),
)


@given(STRATEGIES, st.lists(st.integers(0, 20), min_size=2, max_size=3), st.integers(1, 25))
def test_every_strategy_covers_every_element_once(strategy, shape, chunk_size):
    count = np.zeros(shape, dtype=int)
    for chunk in covering(strategy.get_chunks(tuple(shape), chunk_size), tuple(shape)):
        count[chunk] += 1
    assert (count == 1).all()


def test_rows_take_the_other_axes_whole():
    assert list(RowChunking().get_chunks((5, 7, 2), 3)) == [
        (slice(0, 3), slice(None), slice(None)),
        (slice(3, 5), slice(None), slice(None)),
    ]


def test_tiles_walk_row_by_row_and_default_to_squares():
    assert list(TileChunking((2, 3)).get_chunks((3, 4), 99)) == [
        (slice(0, 2), slice(0, 3)),
        (slice(0, 2), slice(3, 4)),
        (slice(2, 3), slice(0, 3)),
        (slice(2, 3), slice(3, 4)),
    ]
    assert rows(TileChunking().get_chunks((4, 2), 2)) == [2, 2]


def test_adaptive_halves_under_pressure_and_grows_back():
    strategy = AdaptiveChunking(Gauge(1, 0.1, 0.1, 0.5, 0.5, 0.5))
    assert rows(strategy.get_chunks((80, 3), 16)) == [16, 8, 4, 8, 16, 16, 12]
    assert [decision.reason for decision in strategy.history] == [
        "kept",
        "memory pressure",
        "memory pressure",
        "recovered",
        "recovered",
        "kept",
        "kept",
    ]


def test_adaptive_looks_only_when_the_next_chunk_is_drawn():
    gauge = Gauge(1.0)
    chunks = iter(AdaptiveChunking(gauge).get_chunks((64, 1), 16))
    assert rows([next(chunks), next(chunks)]) == [16, 16]
    gauge.shares = [0.05]
    assert rows(chunks) == [8, 4, 2, 1, *[1] * 17]


def test_adaptive_never_goes_below_its_minimum():
    strategy = AdaptiveChunking(Gauge(0.0), min_chunk_size=3)
    assert rows(strategy.get_chunks((20, 1), 8)) == [4, 3, 3, 3, 3, 3, 1]


def test_running_out_of_memory_shrinks_for_the_rest_of_the_operation():
    strategy = AdaptiveChunking(Gauge(1.0))
    chunks = strategy.get_chunks((64, 1), 16)
    assert rows([next(chunks)]) == [16]
    assert strategy.on_out_of_memory()
    assert rows(chunks) == [8] * 6
    assert strategy.history[1].reason == "out of memory"
    assert rows(strategy.get_chunks((32, 1), 16)) == [16, 16], "the next operation begins afresh"


def test_adaptive_says_when_it_cannot_shrink_further():
    strategy = AdaptiveChunking(min_chunk_size=4)
    next(strategy.get_chunks((64, 1), 4))
    assert not strategy.on_out_of_memory()
    assert not RowChunking().on_out_of_memory()


@pytest.mark.parametrize(
    ("strategy", "shape", "size"),
    [
        (RowChunking(), (), 1),
        (RowChunking(), (4, 4), 0),
        (TileChunking(), (4,), 2),
        (AdaptiveChunking(), (4, 4), -1),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused_before_anything_is_drawn(strategy, shape, size):
    with pytest.raises(ShapeError, match=type(strategy).__name__):
        strategy.get_chunks(shape, size)


@pytest.mark.parametrize("tile_size", [(0, 4), (4,), (1, 2, 3)])
def test_tile_size_must_be_two_counts(tile_size):
    with pytest.raises(ShapeError, match="tile_size"):
        TileChunking(tile_size)


def test_names():
    assert isinstance(create_chunking_strategy("row"), RowChunking)
    tiles = create_chunking_strategy("tile", tile_size=(3, 4))
    assert isinstance(tiles, TileChunking)
    assert tiles.tile_size == (3, 4)
    assert isinstance(create_chunking_strategy("adaptive", min_chunk_size=2), AdaptiveChunking)
    with pytest.raises(UnknownNameError, match="did you mean 'adaptive'"):
        create_chunking_strategy("adaptiv")


class Broken(ChunkingStrategy):
    def __init__(self, *chunks):
        self.chunks = chunks

    def get_chunks(self, shape, chunk_size):
        return self.chunks


@pytest.mark.parametrize(
    ("chunks", "complaint"),
    [
        ([(slice(0, 2),)], r"\[2:4, 0:3\] of shape \(4, 3\) is in no chunk"),
        ([(slice(0, 3),), (slice(2, 4),)], r"\[2:3, 0:3\] .* in 2 chunks"),
        ([(slice(0, 5),)], "outside an axis of 4"),
        ([(slice(-2, 4),)], "outside an axis of 4"),
        ([(slice(0, 4, 2),)], "step 1"),
        ([(0,)], "slices with step 1"),
        ([slice(0, 4)], "must be a tuple"),
        ([(slice(None),) * 3], "at most 2 slices"),
        ([], "in no chunk"),
    ],
)
def test_a_cut_with_gaps_overlaps_or_nonsense_is_named(chunks, complaint):
    with pytest.raises(ShapeError, match=complaint):
        list(covering(Broken(*chunks).get_chunks((4, 3), 1), (4, 3)))


def test_a_strategy_that_returns_nothing_is_named():
    with pytest.raises(ShapeError, match="returned None"):
        list(covering(None, (4, 3)))
