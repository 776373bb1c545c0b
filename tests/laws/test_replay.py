"""The law of the trace: replayed with the same policy and capacity, it gives the run's own figures."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.engine import RunReport
from accelera.engine.planned import matmul
from accelera.memory import Ledger, PoolStats
from accelera.policy import Knowledge, create_policy
from accelera.trace import Access, Kind, TraceLog
from tests.matmul.interrupted import StopAfter, grid
from tests.matmul.products import PLACES, ROOMY, assert_as_planned, cpu, in_npy, run, values


def replay(log: TraceLog, capacity_bytes: int, window: int) -> tuple[PoolStats, int]:
    """Replay a run's accesses; return the figures and the bytes loaded.

    All the replay knows is the trace and how many steps are under way at once: a step's pins last
    until it is retired, those of a block being computed until the trace frees it.
    """
    books = Ledger(capacity_bytes, create_policy("belady", Knowledge.of_sequence(log.buffers())))
    under_way: deque[tuple[int, list[int]]] = deque()
    begun: set[int] = set()
    loaded_bytes = 0

    def retire(up_to: int) -> None:
        while under_way and under_way[0][0] <= up_to:
            for buffer in under_way.popleft()[1]:
                books.unpin(buffer)

    for access in log:
        if not access.counts and access.kind != Kind.FREE:
            continue
        if access.kind == Kind.FREE:
            retire(access.step)
            books.free(access.buffer)
            continue
        retire(access.step - window)
        write = access.kind == Kind.WRITE
        hit, _ = books.admit(access.buffer, access.nbytes)
        loaded_bytes += 0 if hit or write else access.nbytes
        if not under_way or under_way[-1][0] != access.step:
            under_way.append((access.step, []))
        if not write or access.buffer in begun:
            under_way[-1][1].append(access.buffer)
        begun |= {access.buffer} if write else set()
    retire(1 << 62)
    return books.stats, loaded_bytes


def assert_reproduced(log: TraceLog, report: RunReport) -> None:
    stats, loaded_bytes = replay(log, report.plan.capacity_bytes, report.plan.window)
    assert (stats.hits, stats.misses, stats.evictions) == (report.hits, report.misses, report.evictions)
    assert stats.peak_bytes == report.peak_pool_bytes
    held = report.plan.operands[0].held_dtype.itemsize // report.plan.operands[0].dtype.itemsize
    assert loaded_bytes == held * sum(report.bytes_read.values())


@settings(max_examples=15)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 7, 64, 257, 300, 520])] * 3),
    dtype=st.sampled_from(["f4", "f2", "c16"]),
    extra_bytes=st.sampled_from([0, 1000, 100_000, 1_000_000]),
    prefetch=st.booleans(),
)
def test_a_runs_trace_reproduces_its_figures(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: tuple[int, int, int],
    dtype: str,
    extra_bytes: int,
    prefetch: bool,
) -> None:
    m, k, n = sizes
    folder, log = tmp_path_factory.mktemp("replay"), TraceLog()
    a, b = (in_npy(folder / name, np.ones(shape, dtype)) for name, shape in (("a", (m, k)), ("b", (k, n))))
    _, report = run(a, b, folder / "c.npy", extra_bytes, recorder=log, prefetch=prefetch)
    assert_as_planned(report)
    assert_reproduced(log, report)


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
    assert_reproduced(log, report)


def test_of_a_batch(tmp_path: Path) -> None:
    log = TraceLog()
    a, b = (
        in_npy(tmp_path / "a", values((3, 2, 40, 30), "f4")),
        in_npy(tmp_path / "b", values((2, 30, 50), "f4")),
    )
    _, report = run(a, b, tmp_path / "c.npy", recorder=log)
    assert_as_planned(report)
    assert_reproduced(log, report)


def test_of_tiles_of_many_sizes(tmp_path: Path) -> None:
    """Blocks of different sizes leave spare memory that fits nobody; the peak is still that of the plan."""
    log = TraceLog()
    edges = [0, 5, 40, 47, 130, 131, 200]
    spans = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    tiles = list(itertools.product(spans, spans))
    a, b = in_npy(tmp_path / "a", values((200, 90), "f4")), in_npy(tmp_path / "b", values((90, 200), "f4"))
    for budget_bytes in (ROOMY, None):
        log = TraceLog()
        options: dict[str, Any] = {"recorder": log, "tiles": tiles}
        if budget_bytes is None:
            _, report = run(a, b, tmp_path / "c.npy", **options)
        else:
            _, report = matmul(a, b, tmp_path / "c.npy", device=cpu(), budget_bytes=budget_bytes, **options)
        assert_as_planned(report)
        assert_reproduced(log, report)


def test_of_a_resumed_run(tmp_path: Path) -> None:
    """Only what is left to do is in the trace, and it is replayed like any other."""
    a, b = in_npy(tmp_path / "a", values((96, 50), "f4")), in_npy(tmp_path / "b", values((50, 96), "f4"))
    options: dict[str, Any] = {"device": cpu(), "budget_bytes": ROOMY, "tiles": grid(96, 96, 32)}
    with pytest.raises(KeyboardInterrupt):
        matmul(a, b, tmp_path / "c.npy", observers=[StopAfter(5, KeyboardInterrupt())], **options)
    log = TraceLog()
    _, report = matmul(a, b, tmp_path / "c.npy", recorder=log, resume=True, **options)
    assert report.steps_skipped > 0
    assert_reproduced(log, report)


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
