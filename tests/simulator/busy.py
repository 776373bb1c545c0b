"""Traces and machines for Hypothesis: small, and with everything that can happen in them."""

from __future__ import annotations

from hypothesis import strategies as st

from accelera.memory import Hierarchy, Tier
from accelera.trace import Kind, Trace

BUFFERS = 7


@st.composite
def traces(draw: st.DrawFn, ends: bool = True) -> Trace:
    """Steps that read and write a few buffers of many sizes; with ``ends``, some are freed or saved.

    That happens after the step or in the middle of it.
    """
    sizes = draw(st.lists(st.integers(0, 30), min_size=BUFFERS, max_size=BUFFERS))
    buffer = st.integers(0, BUFFERS - 1)
    events: list[tuple[int, Kind, int]] = []
    seconds = []
    for step in range(draw(st.integers(1, 14))):
        reads = draw(st.lists(buffer, max_size=3))
        writes = draw(st.lists(buffer, max_size=2))
        happens = [(b, Kind.READ) for b in reads] + [(b, Kind.WRITE) for b in writes]
        seconds.append(draw(st.sampled_from([0.0, 1.0, 7.5])))
        if ends:
            kinds = st.sampled_from([Kind.FREE, Kind.FREE, Kind.SAVE, Kind.EVICT])
            happens += draw(st.lists(st.tuples(buffer, kinds), max_size=2))
            happens = draw(st.just(happens) | st.permutations(happens))
        events += [(b, kind, step) for b, kind in happens]
    return Trace.from_arrays(
        [b for b, _, _ in events],
        [sizes[b] for b, _, _ in events],
        kinds=[kind for _, kind, _ in events],
        steps=[step for _, _, step in events],
        ops=[""] * len(seconds),
        seconds=seconds,
    )


@st.composite
def machines(draw: st.DrawFn, most_tiers: int = 4) -> Hierarchy:
    """Two to four tiers, links of many kinds."""
    rates = st.sampled_from([1.0, 3.0, 10.0])
    tiers = [Tier("top", draw(st.integers(0, 90)), 1.0, access_s=draw(st.sampled_from([0.0, 0.5])))]
    for index in range(draw(st.integers(1, most_tiers - 1))):
        tiers.append(
            Tier(
                f"tier {index + 1}",
                draw(st.integers(0, 120)),
                draw(rates),
                draw(st.sampled_from([0.0, 2.0])),
                draw(st.none() | rates),
                draw(st.booleans()),
                draw(st.sampled_from([0.0, 0.25])),
            )
        )
    return Hierarchy(tuple(tiers))
