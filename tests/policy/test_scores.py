"""Scores against their definitions, worked out the slow way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.policy import Knowledge, create_policy
from accelera.policy._internal import heuristic_scores, prepare, replay_next_uses
from accelera.policy.iteration_replay import iteration_starts
from accelera.simulator import simulate_cache
from accelera.trace import Kind, Trace
from accelera.trace._internal import NEVER

sequences = st.lists(st.integers(0, 6), max_size=40)


def training(iterations: int, layers: int = 5, *, warm_up: int = 0, named: bool = False) -> Trace:
    """Return a loop: weights forward and backward, activations made, read once and freed, then an update.

    The first iteration makes ``warm_up`` buffers more.
    """
    events: list[tuple[int, int, Kind, int, str]] = []
    starts, step, fresh = [], 0, 1000
    for iteration in range(iterations):
        starts.append(step)
        activations = range(fresh, fresh + layers)
        fresh += layers
        work = [("embed", [(500, 8, Kind.READ)])]
        for layer in range(layers):
            work.append(("forward", [(layer, 64, Kind.READ), (activations[layer], 32, Kind.WRITE)]))
        work.append(("loss", [(activations[-1], 32, Kind.READ)]))
        for layer in reversed(range(layers)):
            used = [(layer, 64, Kind.READ), (activations[layer], 32, Kind.READ)]
            work.append(("backward", [*used, (activations[layer], 32, Kind.FREE)]))
        work.append(("clip", [(501, 4, Kind.READ)]))
        for layer in range(layers):
            work.append(("update", [(layer, 64, Kind.READ), (layer, 64, Kind.WRITE)]))
        if iteration == 0:
            work += [("state", [(600 + each, 16, Kind.WRITE)]) for each in range(warm_up)]
        for op, accesses in work:
            events += [(*access, step, op) for access in accesses]
            step += 1
    ops = {event[3]: event[4] for event in events}
    return Trace.from_arrays(
        [event[0] for event in events],
        [event[1] for event in events],
        kinds=[event[2] for event in events],
        steps=[event[3] for event in events],
        ops=[ops[each] for each in range(step)],
        meta={"iterations": starts} if named else None,
    )


@given(sequence=sequences, sizes=st.lists(st.integers(0, 9), min_size=7, max_size=7))
def test_the_formula_is_the_seeds(sequence: list[int], sizes: list[int]) -> None:
    strides = [(-1) ** each * (each + 1) for each in sequence]
    trace = Trace.from_arrays(sequence, [sizes[each] for each in sequence], strides=strides)
    reuse, last = [], {}
    for time, each in enumerate(sequence):
        reuse.append(len(set(sequence[last[each] + 1 : time])) if each in last else 0)
        last[each] = time
    parts = [np.array([sizes[each] for each in sequence]), np.array(reuse), np.abs(strides)]
    scaled = [part / max(part.max(initial=0), 1) for part in parts]
    expected = 0.4 * scaled[0] + 0.5 * scaled[1] + 0.1 * scaled[2]
    np.testing.assert_allclose(heuristic_scores(trace), expected, atol=1e-12)
    assert ((heuristic_scores(trace) >= 0) & (heuristic_scores(trace) <= 1)).all()


@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("named", [True, False])
def test_a_loop_is_predicted_from_its_second_iteration_on(warm_up: int, named: bool) -> None:
    """From the third on every prediction is the truth: the second has learned from a longer one."""
    trace = training(5, warm_up=warm_up, named=named)
    predicted, truth = replay_next_uses(trace), trace.next_use
    starts = iteration_starts(trace)
    assert len(starts) == 4
    step = trace.step[trace.is_access]
    settled = (step >= starts[1]) & (step < starts[3])
    np.testing.assert_array_equal(predicted[settled], truth[settled].astype(float))


def test_the_first_iteration_goes_by_recency() -> None:
    trace = training(1)
    predicted = replay_next_uses(trace)
    assert (np.diff(predicted) < 0).all()
    capacity = trace.footprint_bytes // 2
    replayed = simulate_cache(trace, capacity_bytes=capacity, policy="iteration_replay")
    assert replayed == simulate_cache(trace, capacity_bytes=capacity, policy="lru")


@given(length=st.integers(0, 80))
def test_no_prediction_looks_ahead(length: int) -> None:
    """The predictions for the beginning of a trace are the same whatever follows."""
    whole = training(4, named=True)
    accesses = np.flatnonzero(whole.is_access)[:length]
    events = int(accesses[-1]) + 1 if length else 0
    ids = whole.buffer[:events]
    beginning = Trace.from_arrays(
        ids,
        whole.size_bytes[ids],
        kinds=whole.kind[:events],
        steps=whole.step[:events],
        ops=whole.ops[: int(whole.step[:events].max(initial=-1)) + 1],
        meta=whole.meta,
    )
    np.testing.assert_array_equal(replay_next_uses(beginning), replay_next_uses(whole)[:length])


def test_replay_beats_recency_on_a_loop_and_nears_the_future() -> None:
    trace = training(6, layers=12)
    capacity = trace.footprint_bytes // 6
    misses = {
        name: simulate_cache(trace, capacity_bytes=capacity, policy=name).misses
        for name in ("lru", "iteration_replay", "belady")
    }
    assert misses["iteration_replay"] < 0.95 * misses["lru"]
    assert misses["iteration_replay"] < 1.05 * misses["belady"]


def test_iterations_are_found_where_they_are_not_named() -> None:
    for warm_up in (0, 4):
        named = training(4, warm_up=warm_up, named=True)
        assert len(iteration_starts(replace(named, meta={}))) == len(iteration_starts(named)) == 3


def test_chance_is_no_loop() -> None:
    draw = np.random.default_rng(0)
    assert len(iteration_starts(Trace.from_arrays(draw.integers(0, 500, 3000), 1))) == 0
    assert len(iteration_starts(training(1))) == 0


def test_plain_repetition_is_a_loop() -> None:
    assert iteration_starts(Trace.from_arrays([4, 7, 9] * 4, 1)).tolist() == [3, 6, 9]
    assert replay_next_uses(Trace.from_arrays([4, 7, 9] * 3, 1)).tolist()[3:] == [6, 7, 8, 9, 10, 11]


def test_what_was_not_used_again_is_predicted_never_to_be() -> None:
    trace = training(3, named=True)
    starts = iteration_starts(trace)
    kinds = trace.kind[trace.is_access]
    steps = trace.step[trace.is_access]
    last_reads = (kinds == Kind.READ) & (trace.next_use == NEVER) & (steps >= starts[0]) & (steps < starts[1])
    assert last_reads.any()
    assert (replay_next_uses(trace)[last_reads] == NEVER).all()


def test_a_score_is_worked_out_once_per_trace_and_read_only() -> None:
    trace = training(2)
    assert heuristic_scores(trace) is heuristic_scores(trace)
    assert not replay_next_uses(trace).flags.writeable
    assert prepare("scored", trace, 100).knowledge.score is heuristic_scores(trace)


def test_a_given_score_goes_before_the_own_one() -> None:
    trace = training(2)
    mine = np.arange(trace.access_count, dtype=float)
    known = prepare("iteration_replay", trace, 100, score=mine)
    assert known.native_name == "scored"
    np.testing.assert_array_equal(known.knowledge.score, mine)
    assert known.at(7).knowledge.capacity_bytes == 7


@pytest.mark.parametrize("name", ["scored", "iteration_replay"])
def test_a_policy_that_knows_the_trace_makes_its_score(name: str) -> None:
    trace = training(3)
    capacity = trace.footprint_bytes // 3
    told = create_policy(name, Knowledge.of(trace, capacity))
    expected = simulate_cache(trace, capacity_bytes=capacity, policy=name)
    assert simulate_cache(trace, capacity_bytes=capacity, policy=told) == expected
