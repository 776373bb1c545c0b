"""A recorded pool, replayed with its own policy and capacity, gives the pool's own figures."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera import simulate
from accelera.errors import BudgetExceededError
from accelera.memory import Hierarchy
from accelera.memory._internal import BufferPool, PoolStats
from accelera.policy import POLICIES, EvictionPolicy, create_policy
from accelera.policy._internal import prepare
from accelera.simulator import Report
from accelera.trace import Kind, Trace, TraceLog
from tests.matmul.products import in_npy, run
from tests.simulator.busy import machines
from tests.simulator.oracle import Slowly
from tests.simulator.test_simulate import assert_as_slowly

SIZES = (1, 3, 3, 4, 6, 9, 14)
ACTIONS = ("read", "read", "write", "unpin", "unpin", "free", "save", "write_back", "evict")
Action = tuple[str, int]


class Memory:
    """Hands out nothing: only the books matter here."""

    def allocate(self, nbytes: int) -> Any:
        return object()

    def release(self, buffer: Any) -> None:
        pass


def driven(
    actions: list[Action], sizes: Sequence[int], capacity_bytes: int, policy: EvictionPolicy
) -> tuple[Trace, PoolStats]:
    """Do to a pool what can be done of ``actions``, a step for each three, and return what it recorded.

    What is accessed and freed, and what is refused, does not depend on the policy.
    """
    log = TraceLog()
    pool = BufferPool(capacity_bytes, policy, Memory(), recorder=log)
    pins: Counter[int] = Counter()
    for count, (action, buffer) in enumerate(actions):
        if action in ("read", "write"):
            with contextlib.suppress(BudgetExceededError):
                pool.pin(buffer, sizes[buffer], lambda memory: 0, step=count // 3, write=action == "write")
                pins[buffer] += 1
        elif action == "unpin" and pins[buffer]:
            pool.unpin(buffer, save=lambda memory: 0)
            pins[buffer] -= 1
        elif action == "free" and pins[buffer]:
            pool.free(buffer)
            pins[buffer] = 0
        elif action == "save" and buffer in pool:
            pool.note_saved(buffer)
        elif action == "write_back":
            pool.write_back(buffer)
        elif action == "evict" and buffer in pool and not pins[buffer]:
            pool.evict(buffer)
    return log.trace(), pool.stats


def assert_exact(report: Report, stats: PoolStats) -> None:
    assert (report.hits, report.misses, report.evictions) == (stats.hits, stats.misses, stats.evictions)
    assert report.tiers[0].evicted_bytes == stats.evicted_bytes
    assert (report.fetched_bytes, report.saved_bytes) == (stats.fetched_bytes, stats.saved_bytes)
    assert report.fetched_bytes + report.created_bytes == stats.miss_bytes
    assert (report.peak_bytes, report.oversized_steps) == (stats.peak_bytes, 0)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, len(SIZES) - 1)), max_size=60),
    capacity_bytes=st.integers(1, 40),
)
def test_a_recorded_pool_is_reproduced(name: str, actions: list[Action], capacity_bytes: int) -> None:
    foreseen, _ = driven(actions, SIZES, capacity_bytes, create_policy("fifo"))
    numbered = [*map(int, foreseen.names), *sorted(set(range(len(SIZES))) - set(map(int, foreseen.names)))]
    again = [(action, numbered.index(buffer)) for action, buffer in actions]
    score = np.arange(foreseen.access_count) % 5 if name == "learned" else None
    policy = prepare(name, foreseen, capacity_bytes, score=score, seed=3).policy()
    trace, stats = driven(again, [SIZES[each] for each in numbered], capacity_bytes, policy)
    assert trace.access_count == foreseen.access_count
    report = simulate(trace, capacity_bytes, name, score=score, seed=3)
    if Kind.RELEASE in trace.kind:
        assert_exact(report, stats)


@given(
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, len(SIZES) - 1)), max_size=60),
    tiers=machines(),
)
def test_a_record_under_other_conditions_is_replayed_as_by_hand(
    actions: list[Action], tiers: Hierarchy
) -> None:
    trace, _ = driven(actions, SIZES, 40, create_policy("lru"))
    assert_as_slowly(simulate(trace, tiers, "fifo"), Slowly(trace, tiers, "fifo").run())


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_product_is_reproduced(tmp_path: Path, prefetch: bool) -> None:
    a, b = (in_npy(tmp_path / name, np.ones((300, 300), "f4")) for name in "ab")
    log = TraceLog()
    _, run_report = run(a, b, tmp_path / "c.npy", recorder=log, prefetch=prefetch)
    replayed = simulate(log.trace(), run_report.plan.capacity_bytes, "belady")
    assert run_report.evictions > 0
    assert (replayed.hits, replayed.misses) == (run_report.hits, run_report.misses)
    assert (replayed.evictions, replayed.peak_bytes) == (run_report.evictions, run_report.peak_pool_bytes)
    assert replayed.fetched_bytes == sum(run_report.bytes_read.values())
    assert replayed.saved_bytes == run_report.bytes_written
