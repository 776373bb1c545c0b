"""The compiled policies miss exactly what those written down from the papers miss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera import Trace, simulate_cache
from tests.policy.textbook import TEXTBOOK, Arc, misses


def accesses(chance: np.random.Generator, buffers: int) -> list[int]:
    """Return favourites, a loop, and chance, one after the other."""
    favourites = chance.zipf(1.3, 250) % buffers
    loop = np.arange(150) % buffers
    found: list[int] = np.concatenate([favourites, loop, chance.integers(0, buffers, 150)]).tolist()
    return found


@pytest.mark.parametrize("name", sorted(TEXTBOOK))
@given(
    seed=st.integers(0, 2**32 - 1),
    buffers=st.integers(3, 40),
    share=st.floats(0.05, 0.95),
    even=st.booleans(),
)
def test_misses_are_those_of_the_paper(name: str, seed: int, buffers: int, share: float, even: bool) -> None:
    chance = np.random.default_rng(seed)
    # Powers of two: their reciprocals add up without rounding, whatever the order.
    sizes = np.full(buffers, 64) if even else 2 ** chance.integers(0, 10, buffers)
    capacity = int(share * sizes.sum())
    sequence = accesses(chance, buffers)
    found = simulate_cache(Trace.from_arrays(sequence, sizes[sequence]), capacity_bytes=capacity, policy=name)
    assert found.misses == misses(TEXTBOOK[name](capacity), sequence, sizes.tolist(), capacity)


@given(seed=st.integers(0, 2**32 - 1), buffers=st.integers(3, 40), share=st.floats(0.05, 0.95))
def test_arc_misses_what_the_paper_says_for_one_size(seed: int, buffers: int, share: float) -> None:
    capacity = max(1, int(share * buffers))
    sequence = accesses(np.random.default_rng(seed), buffers)
    found = simulate_cache(Trace.from_arrays(sequence, 1), capacity_bytes=capacity, policy="arc")
    assert found.misses == misses(Arc(capacity), sequence, [1] * buffers, capacity)
