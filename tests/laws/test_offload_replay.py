"""The law of the trace for offloaded models: the record, replayed, gives the run's figures.

And before the run: the same uses on paper give them, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.offload._internal import OffloadReport
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.policy import POLICIES
from accelera.policy.policies import FOLLOWERS, NEEDS
from accelera.simulator import simulate
from accelera.trace import Trace
from tests.offload.language_model import generate, language_model, train
from tests.offload.streamed import BLOCK_BYTES, Paper, Run, Step
from tests.offload.taking import taken

ONLINE = sorted(name for name in POLICIES if name not in FOLLOWERS and set(NEEDS[name]) <= {"capacity_bytes"})
"""Policies that know nothing of the future."""

LOOP = [
    *(Step(reads=(number,), sets=(10 + number,)) for number in range(5)),
    *(Step(reads=(number, 10 + number), frees=(10 + number,)) for number in reversed(range(5))),
    *(Step(changes=(number, 20 + number)) for number in range(5)),
]
"""A training step: forward with activations, backward, optimizer."""


def assert_replays(trace: Trace, report: OffloadReport) -> None:
    """Raise unless the record gives the hits, misses, evictions, bytes and peak that were reported."""
    facts = trace.meta
    found = simulate(trace, int(facts["capacity_bytes"]), str(facts["policy"]))
    assert (found.hits, found.misses, found.evictions) == (report.hits, report.misses, report.evictions)
    assert (found.fetched_bytes, found.saved_bytes) == (report.fetched_bytes, report.saved_bytes)
    assert found.peak_bytes == report.peak_bytes
    assert found.oversized_steps == 0


def assert_law(cache: BlockCache) -> None:
    """Raise unless a cache's record replays, and the bytes that moved are those of the books."""
    report = cache.report()
    assert_replays(cache.trace(), report)
    cache.flush()
    report = cache.report()
    assert (report.bytes_read, report.bytes_written) == (report.fetched_bytes, report.saved_bytes)
    assert report.peak_bytes <= report.capacity_bytes


numbers = st.lists(st.integers(0, 11), max_size=2, unique=True).map(tuple)
some_steps = st.lists(
    st.builds(Step, reads=numbers, changes=numbers, sets=numbers, frees=numbers), min_size=1, max_size=8
)


@settings(max_examples=60)
@given(
    parts=st.lists(st.tuples(some_steps, st.integers(1, 4)), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    room=st.integers(18, 40),
    window=st.sampled_from([0, 1, 3, 8]),
    policy=st.sampled_from(["loop", "lru", *ONLINE]),
)
def test_any_uses(parts: Any, sizes: list[int], room: int, window: int, policy: str) -> None:
    """Loops that change into others, with writes and frees."""
    sizes = [size * BLOCK_BYTES for size in sizes]
    options: dict[str, Any] = {"policy": policy, "prefetch_bytes": window * BLOCK_BYTES}
    run = Run(sizes, room * BLOCK_BYTES, **options)
    paper = Paper(sizes, room * BLOCK_BYTES, **options)
    try:
        for steps, rounds in parts:
            for step in steps * rounds:
                run.step(step)
                paper.step(step)
        report = run.cache.report()
        foreseen = paper.books.stats
        assert (foreseen.hits, foreseen.misses, foreseen.evictions) == (
            report.hits,
            report.misses,
            report.evictions,
        )
        assert (foreseen.fetched_bytes, foreseen.saved_bytes) == (report.fetched_bytes, report.saved_bytes)
        assert_law(run.cache)
        run.check_homes()
    finally:
        run.cache.close()


@pytest.mark.parametrize("policy", ONLINE)
def test_a_training_loop_with_every_online_policy(policy: str) -> None:
    run = Run([BLOCK_BYTES] * 25, 9 * BLOCK_BYTES, policy=policy, prefetch_bytes=2 * BLOCK_BYTES)
    for step in LOOP * 4:
        run.step(step)
    assert_law(run.cache)
    run.check_homes()
    run.cache.close()


@pytest.mark.parametrize("policy", ["loop", "lru"])
@pytest.mark.parametrize(("block_kib", "activations"), [(80, "offload"), (16, "recompute"), (16, "keep")])
def test_training_a_language_model(policy: str, block_kib: int, activations: str) -> None:
    """Forward, backward, clipping and optimizer, with saved activations, weights whole and in parts."""
    cache = BlockCache(
        (340 if block_kib == 80 else 100) << 10,
        OffloadConfig(policy=policy, block_bytes=block_kib << 10, least_bytes=1024, record=True),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(taken(language_model(blocks=2), cache, activations), 2, micro_batches=2)
        assert cache.report().evictions > 20
        assert_law(cache)
    finally:
        torch.set_num_threads(threads)
        cache.close()


@pytest.mark.parametrize("activations", ["offload", "recompute", "keep"])
def test_a_language_model_in_training(activations: str) -> None:
    """Forward, backward, optimizer, with activations in the pool, and text generated in between."""
    cache = BlockCache(340 << 10, OffloadConfig(least_bytes=1024, block_bytes=80 << 10, record=True))
    model = taken(language_model(), cache, activations)
    train(model, 3)
    generate(model, torch.tensor([3, 1, 4]), 3)
    train(model, 1)
    assert cache.report().evictions > 20
    assert_law(cache)
    cache.close()


def test_a_language_model_in_parts() -> None:
    """Weights bigger than a block."""
    cache = BlockCache(160 << 10, OffloadConfig(least_bytes=1024, block_bytes=16 << 10, record=True))
    model = taken(language_model().eval(), cache)
    with torch.no_grad():
        generate(model, torch.tensor([3, 1, 4]), 4)
    assert cache.report().evictions > 20
    assert_law(cache)
    cache.close()
