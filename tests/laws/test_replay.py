"""The law of the trace: a run's record, replayed with its own policy and capacity, gives the run's figures.

And before the run: the plan's trace is the record that the run will leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.engine import RunReport, lazy
from accelera.plan._internal import Eviction
from accelera.policy import POLICIES, EvictionPolicy, Knowledge
from accelera.simulator import simulate
from accelera.stores import open_store
from accelera.trace import Kind, Trace, TraceLog, read_trace, write_trace
from accelera.trace._internal import Access
from tests.matmul.interrupted import StopAfter, grid
from tests.matmul.products import PLACES, ROOMY, assert_as_planned, cpu, in_npy, run, values
from tests.operations.running import smallest_budget
from tests.planned import copy, evaluate, gram, matmul, transpose

NAMES = sorted(set(POLICIES) - {"learned"})
"""``learned`` must be given its scores: it has a test of its own."""


def assert_reproduced(log: TraceLog, report: RunReport, policy: EvictionPolicy | None = None) -> None:
    """Raise unless the record, replayed, gives the run's hits, misses, evictions, bytes and peak."""
    assert_replays(log.trace(), report, policy)


def assert_replays(trace: Trace, report: RunReport, policy: EvictionPolicy | None = None) -> None:
    facts = trace.meta
    found = simulate(trace, int(facts["capacity_bytes"]), policy or str(facts["policy"]))
    assert (found.hits, found.misses, found.evictions) == (report.hits, report.misses, report.evictions)
    assert found.peak_bytes == report.peak_pool_bytes
    assert (found.fetched_bytes, found.saved_bytes) == (report.fetched_bytes, report.saved_bytes)
    assert found.oversized_steps == 0
    *inputs, result = report.plan.operands
    if all(each.held_dtype.itemsize == inputs[0].held_dtype.itemsize for each in inputs):
        ratio = inputs[0].held_dtype.itemsize / inputs[0].dtype.itemsize
        assert found.fetched_bytes == ratio * sum(report.bytes_read.values())
    if result.name != "G":
        assert found.saved_bytes * result.dtype.itemsize == report.bytes_written * result.held_dtype.itemsize


def assert_foreseen(log: TraceLog, report: RunReport) -> None:
    """Raise unless a whole run's record is the plan's trace, but for the seconds that it took."""
    record, paper = log.trace(), report.plan.trace()
    for column in ("buffer", "kind", "step", "stride", "size_bytes"):
        np.testing.assert_array_equal(getattr(record, column), getattr(paper, column), column)
    assert (record.names, record.roles, record.dtypes) == (paper.names, paper.roles, paper.dtypes)
    assert record.ops == paper.ops
    np.testing.assert_array_equal(record.flops, paper.flops)
    assert {**paper.meta, "device": report.device} == record.meta
    assert (record.seconds >= 0).all()


@settings(max_examples=60)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 7, 64, 257, 300, 520])] * 3),
    dtype=st.sampled_from(["f4", "f2", "c16", "i4"]),
    extra_bytes=st.sampled_from([0, 1000, 100_000, 1_000_000]),
    prefetch=st.booleans(),
    policy=st.sampled_from(NAMES),
)
def test_a_product_with_every_policy(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: tuple[int, int, int],
    dtype: str,
    extra_bytes: int,
    prefetch: bool,
    policy: str,
) -> None:
    m, k, n = sizes
    folder, log = tmp_path_factory.mktemp("replay"), TraceLog()
    a, b = (in_npy(folder / name, np.ones(shape, dtype)) for name, shape in (("a", (m, k)), ("b", (k, n))))
    eviction = Eviction(policy)
    _, report = run(a, b, folder / "c.npy", extra_bytes, recorder=log, prefetch=prefetch, eviction=eviction)
    assert report.plan.eviction.name == policy
    assert_as_planned(report)
    assert_foreseen(log, report)
    assert_reproduced(log, report)


Arguments = tuple[Callable[..., Any], tuple[Any, ...]]


def operations(folder: Path) -> dict[str, Arguments]:
    """Return operations that evict in a small budget, and some that only pass their operands by."""
    a, b = (
        in_npy(folder / "a", values((400, 300), "f4", 1)),
        in_npy(folder / "b", values((400, 300), "f4", 2)),
    )
    row = in_npy(folder / "row", values((1, 300), "f4", 3))
    half = in_npy(folder / "half", values((300, 200), "f2", 4))
    x, y, z, out = lazy(a), lazy(b), lazy(row), folder / "out.npy"
    return {
        "expression": (evaluate, (x * y + z, out)),
        "into memory": (evaluate, (x - y,)),
        "reduction": (evaluate, ((x * z).sum(axis=0), out)),
        "row reduction": (evaluate, (x.max(axis=1, keepdims=True), out)),
        "gram": (gram, (open_store(a.name), out)),
        "gram of halves": (gram, (open_store(half.name), out)),
        "transpose": (transpose, (a.name, None, out)),
        "copy": (copy, (a.name, out, "f8")),
    }


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize(
    "name",
    [
        "expression",
        "into memory",
        "reduction",
        "row reduction",
        "gram",
        "gram of halves",
        "transpose",
        "copy",
    ],
)
def test_other_operations_with_every_policy(name: str, policy: str, tmp_path: Path) -> None:
    operation, arguments = operations(tmp_path)[name]
    budget = smallest_budget(operation, *arguments)
    for extra_bytes, prefetch in ((0, True), (50_000, False)):
        log = TraceLog()
        _, report = operation(
            *arguments,
            device=cpu(),
            budget_bytes=budget + extra_bytes,
            prefetch=prefetch,
            recorder=log,
            eviction=Eviction(policy),
        )
        assert len(log) > 0
        assert_as_planned(report)
        assert_foreseen(log, report)
        assert_reproduced(log, report)


class Youngest(EvictionPolicy):
    """A policy of one's own: gives up what was admitted last, and remembers nothing."""

    def __init__(self, known: Knowledge) -> None:
        self.capacity_bytes = known.capacity_bytes
        self._order: list[int] = []

    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        self._order.append(buffer)

    def touch(self, buffer: int, time: int, write: bool) -> None:
        pass

    def remove(self, buffer: int) -> None:
        self._order.remove(buffer)

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        return next((each for each in reversed(self._order) if evictable(each)), None)


def test_with_a_policy_of_ones_own(tmp_path: Path) -> None:
    log = TraceLog()
    a, b = in_npy(tmp_path / "a", values((300, 300), "f4")), in_npy(tmp_path / "b", values((300, 300), "f4"))
    _, report = run(a, b, tmp_path / "c.npy", recorder=log, eviction=Eviction(Youngest))
    assert report.plan.eviction.name == "Youngest"
    assert report.evictions > 0
    assert_as_planned(report)
    capacity_bytes = report.plan.capacity_bytes
    assert_reproduced(log, report, Youngest(Knowledge.of(log.trace(), capacity_bytes)))


def test_with_given_scores(tmp_path: Path) -> None:
    """``learned`` follows whatever its scorer says of the plan's trace; here: the largest id goes first."""
    log = TraceLog()
    a, b = in_npy(tmp_path / "a", values((300, 300), "f4")), in_npy(tmp_path / "b", values((300, 300), "f4"))

    def score(trace: Trace) -> np.ndarray[Any, np.dtype[np.float64]]:
        return trace.accessed.astype(np.float64)

    _, report = run(a, b, tmp_path / "c.npy", recorder=log, eviction=Eviction("learned", score))
    assert_as_planned(report)
    trace = log.trace()
    found = simulate(trace, report.plan.capacity_bytes, "learned", score=score(trace))
    assert report.evictions > 0
    assert (found.misses, found.evictions) == (report.misses, report.evictions)


@pytest.mark.parametrize("policy", ["belady", "lru", "planner"])
def test_a_record_survives_its_file(tmp_path: Path, policy: str) -> None:
    log = TraceLog()
    a, b = in_npy(tmp_path / "a", values((300, 300), "f4")), in_npy(tmp_path / "b", values((300, 300), "f4"))
    _, report = run(a, b, tmp_path / "c.npy", recorder=log, eviction=Eviction(policy))
    write_trace(log.trace(), tmp_path / "run.parquet")
    assert_replays(read_trace(tmp_path / "run.parquet"), report)


@pytest.mark.parametrize("place", ["ram", "ram-f", "npy-f", "zarr", "safetensors"])
def test_from_every_place(tmp_path: Path, place: str) -> None:
    """Operands that lie in memory are pinned only where they must be converted."""
    log, dtype = TraceLog(), "f2"
    a, b = (
        PLACES[place](tmp_path / name, values(shape, dtype))
        for name, shape in (("a", (300, 90)), ("b", (90, 280)))
    )
    _, report = run(a, b, recorder=log)
    assert len(log) > 10
    assert_foreseen(log, report)
    assert_reproduced(log, report)


def test_of_a_batch(tmp_path: Path) -> None:
    log = TraceLog()
    a, b = (
        in_npy(tmp_path / "a", values((3, 2, 40, 30), "f4")),
        in_npy(tmp_path / "b", values((2, 30, 50), "f4")),
    )
    _, report = run(a, b, tmp_path / "c.npy", recorder=log)
    assert_as_planned(report)
    assert_foreseen(log, report)
    assert_reproduced(log, report)


@pytest.mark.parametrize("policy", ["belady", "lru", "arc"])
def test_of_tiles_of_many_sizes(tmp_path: Path, policy: str) -> None:
    """Blocks of different sizes leave spare memory that fits nobody; the peak is still that of the plan."""
    edges = [0, 5, 40, 47, 130, 131, 200]
    spans = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    tiles = list(itertools.product(spans, spans))
    a, b = in_npy(tmp_path / "a", values((200, 90), "f4")), in_npy(tmp_path / "b", values((90, 200), "f4"))
    for budget_bytes in (ROOMY, None):
        log = TraceLog()
        options: dict[str, Any] = {"recorder": log, "tiles": tiles, "eviction": Eviction(policy)}
        if budget_bytes is None:
            _, report = run(a, b, tmp_path / "c.npy", **options)
        else:
            _, report = matmul(a, b, tmp_path / "c.npy", device=cpu(), budget_bytes=budget_bytes, **options)
        assert_as_planned(report)
        assert_foreseen(log, report)
        assert_reproduced(log, report)


@pytest.mark.parametrize(("before", "after"), [("belady", "belady"), ("lru", "lru"), ("belady", "fifo")])
def test_of_a_resumed_run(tmp_path: Path, before: str, after: str) -> None:
    """Only what is left to do is in the record; it may go on with another policy, for the same bits."""
    a, b = in_npy(tmp_path / "a", values((96, 50), "f4")), in_npy(tmp_path / "b", values((50, 96), "f4"))
    options: dict[str, Any] = {"device": cpu(), "budget_bytes": ROOMY, "tiles": grid(96, 96, 32)}
    with pytest.raises(KeyboardInterrupt):
        matmul(
            a,
            b,
            tmp_path / "c.npy",
            observers=[StopAfter(5, KeyboardInterrupt())],
            eviction=Eviction(before),
            **options,
        )
    log, eviction = TraceLog(), Eviction(after)
    _, report = matmul(a, b, tmp_path / "c.npy", recorder=log, resume=True, eviction=eviction, **options)
    assert report.steps_skipped > 0
    assert log.trace().meta["policy"] == after
    assert_reproduced(log, report)
    matmul(a, b, tmp_path / "whole.npy", **options)
    assert (tmp_path / "c.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_the_same_run_leaves_the_same_trace(tmp_path: Path) -> None:
    """Timing of threads decides nothing."""
    a, b = in_npy(tmp_path / "a", values((300, 300), "f4")), in_npy(tmp_path / "b", values((300, 300), "f4"))
    traces: list[list[Access]] = []
    for readers in (2, 2, 2):
        log = TraceLog()
        _, report = run(a, b, tmp_path / "c.npy", recorder=log, readers=readers)
        assert report.evictions > 0
        traces.append(list(log))
    assert traces[0] == traces[1] == traces[2]


def test_a_log_keeps_the_latest_run(tmp_path: Path) -> None:
    a, b, log = values((40, 30), "f4"), values((30, 50), "f4"), TraceLog()
    stores = in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)
    run(*stores, tmp_path / "c.npy", recorder=log)
    once = log.trace()
    run(*stores, tmp_path / "c.npy", recorder=log)
    again = log.trace()
    np.testing.assert_array_equal(once.buffer, again.buffer)
    assert set(again.kind.tolist()) <= {Kind.READ, Kind.WRITE, Kind.RELEASE, Kind.SAVE, Kind.FREE}


PINNED: Any = {
    "product": lambda at: (matmul, (open_store(at / "a.npy"), open_store(at / "b.npy"), at / "out.npy")),
    "thin product": lambda at: (
        matmul,
        (open_store(at / "a.npy")[:3], open_store(at / "b.npy"), at / "out.npy"),
    ),
    "batch": lambda at: (matmul, (open_store(at / "d.npy"), open_store(at / "b.npy")[:40], at / "out.npy")),
    "gram": lambda at: (gram, (open_store(at / "a.npy"), at / "out.npy")),
    "expression": lambda at: (evaluate, (lazy(at / "a.npy") * lazy(at / "row.npy"), at / "out.npy")),
    "sum": lambda at: (evaluate, (lazy(at / "a.npy").sum(axis=0), at / "out.npy")),
    "whole sum": lambda at: (evaluate, (lazy(at / "a.npy").sum(), at / "out.npy")),
    "transpose": lambda at: (transpose, (at / "a.npy", None, at / "out.npy")),
}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "belady") for name in PINNED),
        *(("product", policy) for policy in ("belady_size", "fifo", "largest", "lru", "mru", "planner")),
    ],
)
def test_of_a_run_in_passes(name: str, policy: str, tmp_path: Path) -> None:
    """Very long runs clear the pool now and then; the law holds there, too, and a kill costs no more."""
    for seed, (file, shape) in enumerate(
        {"a": (500, 430), "b": (430, 470), "d": (5, 3, 60, 40), "row": (1, 430)}.items()
    ):
        in_npy(tmp_path / file, values(shape, "f4", seed))
    operation, arguments = PINNED[name](tmp_path)
    out, eviction = tmp_path / "out.npy", Eviction(policy)
    budget = smallest_budget(operation, *arguments) + 40_000
    options: dict[str, Any] = {"device": cpu(), "budget_bytes": budget, "eviction": eviction}
    _, whole = operation(*arguments, **options)
    assert whole.plan.forecast.passes == 1
    wanted = np.load(out)
    saved = whole.plan.saved()
    for pass_steps in (1, 4) if policy == "belady" else (4,):
        log = TraceLog()
        pinned = replace(saved, spec={**saved.spec, "pass_steps": pass_steps})
        _, report = operation(*arguments, recorder=log, pinned=pinned, **options)
        assert report.plan.forecast.passes > 1
        assert_as_planned(report)
        assert_foreseen(log, report)
        assert_reproduced(log, report)
        np.testing.assert_allclose(np.load(out), wanted, rtol=1e-4, atol=1e-4)
        undisturbed = out.read_bytes()
        if report.plan.forecast.steps > 4 and "sum" not in name and name != "thin product":
            stop = StopAfter(1, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                operation(*arguments, pinned=pinned, observers=[stop], **options)
            log = TraceLog()
            _, report = operation(*arguments, pinned=pinned, resume=True, recorder=log, **options)
            assert report.steps_skipped + report.steps_run == report.plan.forecast.steps
            assert_reproduced(log, report)
            assert out.read_bytes() == undisturbed
