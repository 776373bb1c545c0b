"""Traces for tests: any that can be, and one small enough to check by eye."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from accelera.trace import Kind, Trace
from accelera.trace._internal import ROLES

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)


def step_by_step() -> Trace:
    """Every kind of thing that a trace may have: frees, idle steps, names that repeat, odd characters."""
    return Trace.from_arrays(
        [5, 3, 5, 7, 3, 9],
        [10, 20, 10, 30, 20, 5],
        kinds=[Kind.READ, Kind.WRITE, Kind.READ, Kind.READ, Kind.FREE, Kind.WRITE],
        steps=[0, 0, 2, 2, 2, 4],
        strides=[1, 2, 1, 1, 1, 1],
        names=["a", "b", 'b,"x"', "b"],
        roles=["weight", "activation", "", "gradient"],
        dtypes=["float32", "", "bfloat16", ""],
        ops=["matmul", "idle", "add", "", "naïve", "tail"],
        flops=[1, 2, 3, 4, 5, 6.5],
        seconds=[0.1, np.nan, 0.3, 0.4, np.nan, 0.7],
        model_type="CNN",
        meta={"capacity_bytes": 64, "window": [1, 2]},
    )


@st.composite
def traces(draw: st.DrawFn, *, kinds: tuple[Kind, ...] = tuple(Kind), equal: bool = False) -> Trace:
    """Any trace of up to 60 events over up to 10 buffers."""
    count = draw(st.integers(0, 60))
    ids = np.array(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), np.int64)
    sizes = draw(st.lists(st.integers(0, 20), min_size=10, max_size=10))
    table = np.full(10, 7) if equal else np.array(sizes)
    steps = np.sort(draw(st.lists(st.integers(0, 40), min_size=count, max_size=count)))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    return Trace.from_arrays(ids, table[ids], kinds=np.array(chosen, np.int64), steps=steps.astype(np.int64))


@st.composite
def described_traces(draw: st.DrawFn) -> Trace:
    """Any trace with everything that is known of buffers and steps."""
    bare = draw(traces())
    steps = bare.step_count + draw(st.integers(0, 3))
    numbers = st.floats(0, 1e18)

    def some(of: st.SearchStrategy[Any], count: int) -> list[Any]:
        return draw(st.lists(of, min_size=count, max_size=count))

    described = Trace.from_arrays(
        bare.buffer,
        bare.size_bytes[bare.buffer],
        kinds=bare.kind,
        steps=bare.step,
        strides=np.array(some(st.integers(-5, 2**40), len(bare)), np.int64),
        names=some(TEXTS, bare.buffer_count),
        roles=some(st.sampled_from(ROLES), bare.buffer_count),
        dtypes=some(st.sampled_from(["", "float32", "int8"]), bare.buffer_count),
        ops=some(TEXTS, steps),
        flops=some(numbers, steps),
        seconds=some(numbers | st.just(float("nan")), steps),
        model_type=draw(TEXTS),
        meta=draw(st.dictionaries(TEXTS, st.integers(0, 9) | TEXTS, max_size=3)),
    )
    return described
