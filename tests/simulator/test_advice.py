"""Advice: what is recommended is what simulations find best, and it says so where nothing can be gained."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from accelera import advise
from accelera.cli import app
from accelera.engine import MatrixEngine, MemoryEfficientEngine
from accelera.errors import AcceleraError, UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.policy import POLICIES
from accelera.simulator import Advice, simulate
from accelera.simulator.advice_search import moved_with_kept, with_lookahead
from accelera.trace import Kind, Trace, TraceLog, write_trace
from accelera.units import format_bytes

MIB = 1 << 20


def loop(buffers: int, turns: int, **more: Any) -> Trace:
    """Read ``buffers`` of a MiB one after the other, again and again: what LRU is worst at."""
    return Trace.from_arrays(list(range(buffers)) * turns, MIB, **more)


def activations(layers: int) -> Trace:
    """Make activations, then read them in the reverse order and free them, as backward passes do."""
    ids = [*range(layers), *[each for layer in reversed(range(layers)) for each in (layer, layer)]]
    kinds = [Kind.WRITE] * layers + [Kind.READ, Kind.FREE] * layers
    steps = [*range(layers), *[layers + place // 2 for place in range(2 * layers)]]
    return Trace.from_arrays(ids, MIB, kinds=kinds, steps=steps)


def machine(bandwidth: float, flops_per_s: float = 1e9) -> Hierarchy:
    return Hierarchy((Tier("memory", MIB, math.inf), Tier("home", 1 << 40, bandwidth)), Compute(flops_per_s))


def test_a_loop_wants_another_policy_than_lru() -> None:
    found = advise(loop(10, 20), "8MiB")
    lru, best = found.ranked("lru"), found.ranking[0]
    assert lru.moved_bytes == 200 * MIB
    assert best.moved_bytes < lru.moved_bytes / 2
    assert best.needs_future
    assert not found.ranked(found.causal_policy).needs_future
    assert any(word.startswith(f"at 8.0 MiB use {best.policy}: it moves") for word in found.words)
    assert found.floor_bytes == MIB
    assert found.ample_bytes == 10 * MIB


def test_an_activation_stack_gains_nothing() -> None:
    found = advise(activations(20), "10MiB")
    assert any("the policy will not help you here" in word for word in found.words)
    assert found.ranked("lru").moved_bytes <= found.ranking[0].moved_bytes * 1.05


def test_what_fits_needs_nothing() -> None:
    found = advise(activations(20), "20MiB")
    assert found.ranking[0].moved_bytes == 0
    assert any("nothing need be moved" in word for word in found.words)
    assert found.resident == ()


@settings(max_examples=20)
@given(
    ids=st.lists(st.integers(0, 9), min_size=5, max_size=60),
    share=st.sampled_from([0.3, 0.5, 1.0]),
    bandwidth=st.sampled_from([1e8, 1e12]),
)
def test_the_ranking_is_what_simulations_say(ids: list[int], share: float, bandwidth: float) -> None:
    trace = Trace.from_arrays(ids, MIB, flops=np.full(len(ids), 1e6))
    found = advise(trace, share, machine(bandwidth))
    tiers = machine(bandwidth).with_capacity(found.capacity_bytes)
    fastest = min(each.total_s for each in found.ranking)
    for each in found.ranking:
        report = simulate(trace, tiers, each.policy, lookahead=found.lookahead)
        assert (each.moved_bytes, each.stall_s) == (report.moved_bytes, report.stall_s)
        assert each.regret is not None
        assert each.regret >= 1
    assert found.ranking[0].total_s <= fastest * 1.01
    assert {each.policy for each in found.ranking} == set(POLICIES) - {"learned"}
    assert found.floor_bytes <= found.knee_bytes <= found.ample_bytes


def test_looking_ahead_hides_moves_behind_arithmetic() -> None:
    """One fetch takes as long as a step: alone they alternate, one step ahead they overlap."""
    trace = Trace.from_arrays(range(50), MIB, flops=np.full(50, 1e6))
    found = advise(trace, "8MiB", machine(MIB / 1e-3), policies=["lru"])
    stalls = {each.lookahead: each.stall_s for each in found.depths}
    assert stalls[0] > 10 * stalls[1]
    assert found.lookahead == 1
    assert found.offload.slowdown < 1.05
    assert any("offloading pays" in word for word in found.words)


def test_slow_links_do_not_pay() -> None:
    trace = Trace.from_arrays(range(50), MIB, flops=np.full(50, 1e6))
    found = advise(trace, "8MiB", machine(MIB / 0.1))
    assert found.offload.slowdown > 50
    assert any("does not pay" in word for word in found.words)


def test_a_buffer_read_between_scans_is_kept() -> None:
    """LRU loses the one in use all the time to those used once; keeping it is worth its room."""
    ids = [each for turn in range(20) for each in (0, *range(1 + 9 * turn, 10 + 9 * turn))]
    trace = Trace.from_arrays(ids, MIB)
    found = advise(trace, "4MiB")
    assert [(each.name, each.saved_bytes) for each in found.resident] == [("0", 19 * MIB)]
    assert found.resident[0].saved_per_byte == 19
    assert found.resident_moved_bytes == found.ranked("lru").moved_bytes - 19 * MIB
    assert moved_with_kept(trace, list(range(181)), 200 * MIB, "lru") == 181 * MIB


def test_the_table_says_who_knows_the_future_and_lists_the_largest_first() -> None:
    """Two small buffers and a large one are read between scans, the small ones more often."""
    events = [(each, 1 << 10) for turn in range(20) for each in ("s1", "s2", *(["large"] * (turn % 2)))]
    scans = iter(range(1000))
    ids, sizes = [], []
    for name, size in events:
        for each, nbytes in (
            (name, MIB if name == "large" else size),
            *((next(scans), MIB) for _ in "123456"),
        ):
            ids.append(each)
            sizes.append(nbytes)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(ids))}
    trace = Trace.from_arrays([numbers[each] for each in ids], sizes, names=list(map(str, numbers)))
    lines = advise(trace, "4MiB").table().splitlines()
    assert lines[0].startswith("policy (* knows the future)")
    assert any(line.startswith("belady *") for line in lines)
    assert any(line.startswith("lru  ") for line in lines)
    kept = [line for line in lines if line.startswith("keep ")]
    assert kept == [
        "keep large: 1.0 MiB, saves 9.0 MiB",
        "keep s1, s2 (x2): 1.0 KiB each, saves 19.0 KiB each",
    ]


def test_a_step_over_the_budget_is_said() -> None:
    trace = Trace.from_arrays([0, 1, 2, 0, 1, 2], 4 * MIB, steps=[0, 0, 0, 1, 1, 1])
    found = advise(trace, "8MiB")
    assert found.words[0].startswith("the operands of the largest step need 12.0 MiB, more than 8.0 MiB")


def test_it_survives_json() -> None:
    found = advise(loop(10, 5), 0.5)
    assert found.capacity_bytes == 5 * MIB
    assert Advice.from_json(found.to_json()) == found
    assert Advice.from_dict(found.to_dict()) == found


def test_without_the_bound_there_is_no_regret() -> None:
    found = advise(loop(10, 5), "50%", bound=False)
    assert found.lower_bound_bytes is None
    assert {each.regret for each in found.ranking} == {None}
    assert "no schedule" not in found.table()


def test_learned_is_tried_when_it_is_given_scores() -> None:
    trace = loop(10, 5)
    found = advise(trace, "5MiB", scores={"learned": trace.next_use.astype(np.float64)})
    assert found.ranked("learned").moved_bytes == found.ranked("belady").moved_bytes


def test_a_trace_without_releases_is_not_retimed() -> None:
    trace = loop(3, 2)
    assert with_lookahead(trace, 4) is trace


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no budget"),
        ({"budget": 1 << 20, "policies": []}, "no policies"),
        ({"budget": 1 << 20, "lookaheads": []}, "no lookaheads"),
        ({"budget": "much"}, "much"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advise(loop(3, 2), **options)


@pytest.mark.parametrize("policies", ["LRU", ["LRU", "lru"]])
def test_policies_are_named_as_for_a_sweep(policies: Any) -> None:
    found = advise(loop(3, 2), "1MiB", policies=policies)
    assert [each.policy for each in found.ranking] == ["lru"]


def test_unknown_policies_are_near_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="lru"):
        advise(loop(3, 2), "1MiB", policies=["lrru"])


def test_an_engine_follows_advice_to_the_byte(tmp_path: Path) -> None:
    for name, shape in (("a", (900, 700)), ("b", (700, 800))):
        np.save(tmp_path / f"{name}.npy", np.ones(shape, np.float32))
    operands, out, budget = (tmp_path / "a.npy", tmp_path / "b.npy"), tmp_path / "c.npy", "33MiB"
    engine = MatrixEngine("cpu", enable_progress=False)
    advice = engine.advise(engine.plan(*operands, out=out, budget=budget), policies=["lru", "mru", "fifo"])
    assert advice.policy in ("lru", "mru", "fifo")
    following, log = MatrixEngine("cpu", enable_progress=False, advice=advice), TraceLog()
    assert following.policy == advice.policy
    following.matmul(*operands, out=out, budget=budget, recorder=log)
    report = following.last_report
    assert report is not None
    assert report.evictions > 0
    said = report.plan.forecast
    assert (report.hits, report.misses, report.evictions) == (said.hits, said.misses, said.evictions)
    assert report.fetched_bytes == said.fetched_bytes
    found = simulate(log.trace(), report.plan.capacity_bytes, advice.policy)
    assert (found.moved_bytes, found.peak_bytes) == (said.moved_bytes, report.peak_pool_bytes)
    rows = {name: (predicted, measured) for name, predicted, measured in report.rows()}
    assert rows["evictions"][0] == rows["evictions"][1] == str(report.evictions)
    assert "waiting" in rows
    assert report.table().startswith(f"policy {advice.policy}")


def test_engines_take_policies() -> None:
    engine = MatrixEngine("cpu", policy="sieve")
    assert engine.policy == "sieve"
    engine.policy = "lru"
    assert engine.policy == "lru"
    advice = advise(loop(10, 5), "5MiB")
    both = MemoryEfficientEngine(device="cpu", policy="fifo", advice=advice)
    assert both.policy == "fifo"
    assert both.window == advice.lookahead + 1
    with pytest.raises(UnknownNameError, match="sieve"):
        MatrixEngine("cpu", policy="siev")


def test_advice_wider_than_the_budget_falls_back(tmp_path: Path) -> None:
    """A look-ahead for which the budget has no room is not insisted on."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((800, 800), np.float32))
    operands, out = (tmp_path / "a.npy", tmp_path / "b.npy"), tmp_path / "c.npy"
    engine = MatrixEngine("cpu", enable_progress=False)
    with pytest.raises(MemoryError) as refusal:
        engine.plan(*operands, out=out, budget=1)
    budget = refusal.value.needed_bytes  # type: ignore[attr-defined]
    deep = advise(loop(10, 5), "5MiB", lookaheads=[30])
    engine.follow(deep)
    assert engine.plan(*operands, out=out, budget=budget).window == 3
    assert engine.plan(*operands, out=out, budget="1GiB").window == 31


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "loop.parquet"
    write_trace(loop(10, 20), path)
    ran = CliRunner().invoke(app, ["advise", str(path), "--budget", "80%"])
    assert ran.exit_code == 0, ran.output
    assert "at 8.0 MiB use" in ran.output
    ran = CliRunner().invoke(app, ["advise", str(path), "--budget", "8MiB", "--json"])
    assert json.loads(ran.output)["capacity_bytes"] == 8 * MIB
    ran = CliRunner().invoke(app, ["advise", str(path)])
    assert ran.exit_code == 2
    assert "--budget" in ran.output


def test_an_engine_evicts_by_trained_scores(tmp_path: Path) -> None:
    """What the scorer says of the plan's trace on paper is what it says of the run's."""
    pytest.importorskip("lightgbm", reason="the extra learned is not installed")
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((900, 900), np.float32))
    engine = MatrixEngine("cpu", enable_progress=False, policy="learned")
    engine.matmul(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", budget="33MiB")
    report = engine.last_report
    assert report is not None
    said = report.plan.forecast
    assert report.evictions > 0
    assert (report.hits, report.misses, report.evictions) == (said.hits, said.misses, said.evictions)


def test_words_tell_how_far_ahead_to_load_and_how_much_memory_does() -> None:
    found = advise(loop(10, 20), "8MiB")
    assert any(word.startswith(f"load {found.lookahead or 'no'} step") for word in found.words)
    memory = next(word for word in found.words if word.startswith("the largest step needs"))
    for size in (found.floor_bytes, found.knee_bytes, found.without_stalls_bytes, found.ample_bytes):
        assert format_bytes(size) in memory


def test_without_times_it_says_that_a_machine_must_be_named() -> None:
    timeless = Trace.from_arrays([0, 1, 2] * 5, MIB, flops=[1e9] * 15)
    assert any("name a hierarchy" in word for word in advise(timeless, "2MiB").words)
    assert not any("name a hierarchy" in word for word in advise(timeless, "2MiB", "gpu-24gb").words)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '"text"', '{"ranking": 3}', "null", "1e999", "[" * 10**5]
)
def test_advice_from_other_text_is_refused(text: str) -> None:
    with pytest.raises(AcceleraError, match=r"to_json"):
        Advice.from_json(text)


@given(st.data())
@settings(max_examples=200)
def test_advice_with_a_changed_value_is_refused_or_complete(data: st.DataObject) -> None:
    values = json.loads(ADVICE.to_json())
    holder = data.draw(st.sampled_from(containers(values)))
    keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = data.draw(st.sampled_from(keys))
    holder[key] = data.draw(st.sampled_from([None, "two", -1, 1.5, [], {}, [[]], True]))
    try:
        advice = Advice.from_dict(values)
    except AcceleraError:
        return
    advice.table()
    assert Advice.from_json(advice.to_json()) == advice


def containers(value: Any) -> list[Any]:
    """Return the non-empty objects and lists in a JSON value."""
    if not isinstance(value, (dict, list)) or not value:
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(each for part in inner for each in containers(part))]


ADVICE = advise(loop(6, 4), 3 * MIB)
