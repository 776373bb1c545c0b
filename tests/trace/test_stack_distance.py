"""Stack distances against counting by hand, and the curve against the simulated cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.simulator import simulate_cache
from accelera.trace import Kind, Trace, miss_ratio_curve, sampled_miss_ratio_curve
from accelera.trace._internal import stack_distances
from tests.trace.examples import traces

ACCESSES = (Kind.READ, Kind.WRITE)


def counted_by_hand(trace: Trace) -> list[tuple[int, int]]:
    """Distinct others since the last use and their bytes, per access: the definition, quadratic."""
    found = []
    for i, (buffer, kind) in enumerate(zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True)):
        if kind > Kind.WRITE:
            continue
        since: set[int] = set()
        for j in range(i - 1, -2, -1):
            if j < 0 or (trace.buffer[j] == buffer and trace.kind[j] == Kind.FREE):
                found.append((-1, -1))
                break
            if trace.kind[j] <= Kind.WRITE:
                if trace.buffer[j] == buffer:
                    found.append((len(since), int(trace.size_bytes[list(since)].sum())))
                    break
                since.add(int(trace.buffer[j]))
    return found


@given(traces())
def test_as_counted_by_hand(trace: Trace) -> None:
    found = stack_distances(trace)
    assert list(zip(found.buffers.tolist(), found.bytes.tolist(), strict=True)) == counted_by_hand(trace)


@given(traces(equal=True))
def test_the_curve_is_the_simulated_cache_at_every_size(trace: Trace) -> None:
    curve = miss_ratio_curve(trace)
    for capacity in range(1, trace.footprint_bytes + 2):
        real = simulate_cache(trace, capacity_bytes=capacity, policy="lru")
        assert (real.misses, real.miss_bytes) == (curve.misses(capacity), curve.miss_bytes(capacity))


@given(traces())
def test_with_sizes_that_differ_it_is_exact_where_the_largest_fits(trace: Trace) -> None:
    curve = miss_ratio_curve(trace)
    largest = int(trace.size_bytes.max(initial=0))
    for capacity in range(1, trace.footprint_bytes + 2):
        real = simulate_cache(trace, capacity_bytes=capacity, policy="lru")
        if capacity >= largest:
            assert (real.misses, real.miss_bytes) == (curve.misses(capacity), curve.miss_bytes(capacity))
        else:
            assert real.misses <= curve.misses(capacity)
            assert real.miss_bytes <= curve.miss_bytes(capacity)


@given(traces(kinds=ACCESSES))
def test_a_capacity_is_needed_for_what_lies_between_and_the_buffer_itself(trace: Trace) -> None:
    found = stack_distances(trace)
    reused = found.buffers >= 0
    own = trace.size_bytes[trace.accessed]
    np.testing.assert_array_equal(found.needed_bytes[reused], (found.bytes + own)[reused])
    assert (found.needed_bytes[~reused] == -1).all()


@given(st.integers(0, 2**32), st.sampled_from([(), (Kind.FREE,), (Kind.EVICT, Kind.FREE)]))
def test_long_after_the_slots_are_used_up(seed: int, leaving: tuple[Kind, ...]) -> None:
    """More uses than slots: the live ones move together many times over."""
    random = np.random.default_rng(seed)
    count, buffers = 20_000, 300
    ids = random.integers(0, buffers, count)
    sizes = random.integers(1, 2**40, buffers)
    kinds = random.choice([0, 1, *leaving], count, p=[0.5, 0.5 - 0.05 * len(leaving), *[0.05] * len(leaving)])
    trace = Trace.from_arrays(ids, sizes[ids], kinds=kinds)
    curve = miss_ratio_curve(trace)
    for share in (0.1, 0.5, 0.9):
        capacity = int(share * trace.footprint_bytes)
        real = simulate_cache(trace, capacity_bytes=capacity, policy="lru")
        assert (real.misses, real.miss_bytes) == (curve.misses(capacity), curve.miss_bytes(capacity))


def test_sizes_whose_sum_is_beyond_one_word() -> None:
    huge = 2**60
    trace = Trace.from_arrays([0, 1, 2, 0], [huge, huge, huge, huge])
    assert stack_distances(trace).bytes.tolist() == [-1, -1, -1, 2 * huge]


def test_the_curve_falls_and_takes_any_shape() -> None:
    trace = zipf(5_000, 400)
    curve = miss_ratio_curve(trace)
    grid = np.linspace(0, trace.footprint_bytes, 30).reshape(5, 6)
    ratios = curve.miss_ratio(grid)
    assert ratios.shape == (5, 6)
    assert (np.diff(ratios.ravel()) <= 0).all()
    assert (np.diff(curve.byte_miss_ratio(grid).ravel()) <= 0).all()
    assert ratios[0, 0] == 1
    assert curve.misses(trace.footprint_bytes) == trace.buffer_count
    assert curve.miss_bytes(trace.footprint_bytes) == trace.footprint_bytes


def test_the_histogram_counts_every_reuse() -> None:
    trace = zipf(5_000, 400)
    found = stack_distances(trace)
    assert found.histogram.sum() == len(found.reuses) == trace.access_count - trace.buffer_count


def zipf(count: int, objects: int, *, seed: int = 0) -> Trace:
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, objects + 1)
    ids = random.permutation(objects)[random.choice(objects, count, p=weights / weights.sum())]
    sizes = np.maximum(1, random.lognormal(8, 1, objects)).astype(np.int64)
    return Trace.from_arrays(ids, sizes[ids])


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_a_sample_is_off_by_about_what_it_says(rate: float) -> None:
    trace = zipf(200_000, 40_000)
    exact = miss_ratio_curve(trace)
    grid = np.linspace(0, trace.footprint_bytes, 65)[1:]
    for seed in range(3):
        sampled = sampled_miss_ratio_curve(trace, rate=rate, seed=seed)
        off = np.abs(sampled.miss_ratio(grid) - exact.miss_ratio(grid)).mean()
        assert sampled.sampled_fraction == pytest.approx(rate, rel=0.01)
        assert 0 < sampled.standard_error < 0.05
        assert off < 4 * sampled.standard_error


def test_the_whole_sample_is_exact() -> None:
    trace = zipf(2_000, 300)
    grid = np.arange(0, trace.footprint_bytes, 999)
    for how in ({"rate": 1.0}, {"buffers": 300}, {}):
        sampled = sampled_miss_ratio_curve(trace, **how)  # type: ignore[arg-type]
        assert (sampled.sampled_fraction, sampled.standard_error) == (1, 0)
        np.testing.assert_array_equal(sampled.misses(grid), miss_ratio_curve(trace).misses(grid))


def test_a_seed_chooses_the_sample() -> None:
    trace = zipf(2_000, 300)
    first, again, other = (sampled_miss_ratio_curve(trace, buffers=60, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.hits, again.hits)
    assert not np.array_equal(first.capacity_bytes, other.capacity_bytes)


@pytest.mark.parametrize("how", [{"rate": 0.0}, {"rate": 1.5}, {"rate": 0.5, "buffers": 3}, {"buffers": -1}])
def test_a_share_that_cannot_be(how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"\[shards\]"):
        sampled_miss_ratio_curve(zipf(50, 9), **how)  # type: ignore[arg-type]


def test_an_empty_trace() -> None:
    empty = Trace.from_arrays([], [])
    assert miss_ratio_curve(empty).miss_ratio([0, 10]).tolist() == [0, 0]
    assert sampled_miss_ratio_curve(empty, rate=0.5).misses(5) == 0
