"""The largest batch and context: against a search of all sizes."""

from __future__ import annotations

from typing import Any

import pytest

from accelera.memory import Compute, Hierarchy, Tier
from accelera.simulator import largest_batch, largest_context
from accelera.trace import Kind, Trace


def layers(batch: int, count: int = 5) -> Trace:
    """Return weights of 100 bytes each and activations of 10 bytes per sample, there and back."""
    events = []
    for n in range(count):
        events += [(n, Kind.READ, n, 100), (100 + n, Kind.WRITE, n, 10 * batch)]
    for index, n in enumerate(reversed(range(count))):
        step = count + index
        events += [(n, Kind.READ, step, 100), (100 + n, Kind.READ, step, 10 * batch)]
        events.append((100 + n, Kind.FREE, step, 10 * batch))
    buffers, kinds, steps, sizes = zip(*events, strict=True)
    return Trace.from_arrays(buffers, sizes, kinds=kinds, steps=steps, seconds=[1.0] * 2 * count)


def test_everything_resident() -> None:
    limit = largest_batch(layers, 1000)
    assert limit.largest == (1000 - 5 * 100) // (5 * 10) == 10
    assert (limit.peak_bytes, limit.floor_bytes, limit.capacity_bytes) == (1000, 200, 1000)


def test_each_step_by_itself() -> None:
    assert largest_batch(layers, 1000, need="runs").largest == (1000 - 100) // 10 == 90


def test_a_slow_link_makes_wait_what_a_fast_one_hides() -> None:
    def machine(rate: float) -> Hierarchy:
        return Hierarchy((Tier("fast", 1000, float("inf")), Tier("slow", 2**40, rate)), Compute(1, 1))

    slow = largest_batch(layers, machine(1.0), need="no_stalls").largest
    fast = largest_batch(layers, machine(1e9), need="no_stalls").largest
    assert largest_batch(layers, 1000).largest <= slow < fast <= 90


def test_contexts_are_multiples() -> None:
    assert largest_context(lambda tokens: layers(tokens // 64), 1000).largest == 640
    assert largest_context(lambda tokens: layers(tokens), 1000, multiple=4).largest == 8


def test_none_fits_and_no_more_than_asked() -> None:
    nothing = largest_batch(layers, 100)
    assert (nothing.largest, nothing.peak_bytes) == (0, 0)
    assert largest_batch(layers, 1000, most=7).largest == 7


@pytest.mark.parametrize("wrong", [{"multiple": 0}, {"most": 0}, {"multiple": 8, "most": 7}])
def test_no_size_to_try(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no size to try"):
        largest_batch(layers, 1000, **wrong)
