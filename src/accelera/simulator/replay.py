"""Replay of a trace in a hierarchy of memories, with what it moves and waits for, or in a plain cache.

The plain cache is the loop of oracles and miss-ratio curves, without time, tiers or write-back. For tensors
its figures mislead (a created tensor counts as a miss, a dead one as a resident): ``simulate`` is the one to
trust for traffic and time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera import _native
from accelera._native import PreparedTrace
from accelera.errors import ArgumentError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.policy import EvictionPolicy, Knowledge
from accelera.policy._internal import native_knowledge, next_reads, prepare
from accelera.simulator.presets import capacity_of, hierarchy_of
from accelera.simulator.report import LinkReport, Report, TierReport, timeline_of
from accelera.trace import Trace


def step_seconds(trace: Trace, compute: Compute | None) -> NDArray[np.float64]:
    """Return the seconds of arithmetic per step, shape (steps,).

    A trace's own seconds go first; where they are unknown ``compute`` estimates, and without it a step
    takes no time.
    """
    if compute is None:
        return np.nan_to_num(trace.seconds, nan=0.0)
    estimated = compute.seconds(trace.flops, touched_bytes(trace))
    return np.where(np.isnan(trace.seconds), estimated, trace.seconds)


def touched_bytes(trace: Trace) -> NDArray[np.float64]:
    """Return the bytes that each step reads and writes in the first tier, shape (steps,)."""
    sizes = trace.size_bytes[trace.accessed]
    counted = np.bincount(trace.step[trace.is_access], weights=sizes, minlength=trace.step_count)
    return counted.astype(np.float64)


class Replayable:
    """A trace as the compiled loop takes it."""

    def __init__(self, trace: Trace) -> None:
        self.native = PreparedTrace(
            trace.buffer, None if _only_reads(trace) else trace.kind, trace.step, trace.size_bytes
        )
        self._seconds: dict[Compute | None, NDArray[np.float64]] = {}

    def seconds(self, trace: Trace, compute: Compute | None) -> NDArray[np.float64] | None:
        """Return the seconds of each step, None when they all are nothing."""
        if compute not in self._seconds:
            self._seconds[compute] = step_seconds(trace, compute)
        seconds = self._seconds[compute]
        return seconds if seconds.any() else None


_KEPT: WeakKeyDictionary[Trace, Replayable] = WeakKeyDictionary()
_SEQUENTIAL: WeakKeyDictionary[Trace, Trace] = WeakKeyDictionary()


def replayable(trace: Trace) -> Replayable:
    """Return what the compiled loop takes for ``trace``."""
    if trace not in _KEPT:
        _KEPT[trace] = Replayable(trace)
    return _KEPT[trace]


def one_by_one(trace: Trace) -> Trace:
    """Return the accesses of ``trace``, all reads, each a step of its own."""
    if trace not in _SEQUENTIAL:
        count = trace.access_count
        _SEQUENTIAL[trace] = replace(
            trace,
            buffer=trace.accessed,
            kind=np.zeros(count, np.uint8),
            step=np.arange(count, dtype=np.int32),
            stride=trace.stride[trace.is_access],
            ops=("",) * count,
            flops=np.zeros(count),
            seconds=np.zeros(count),
        )
    return _SEQUENTIAL[trace]


def _only_reads(trace: Trace) -> bool:
    return not trace.kind.any()


Maker = Callable[[Knowledge], EvictionPolicy]
Policies = str | EvictionPolicy | Sequence[EvictionPolicy] | Maker
SEED_NAMES = {"ml": "scored"}
"""What the seed calls a policy, where its name is another here."""


def simulate(
    trace: Trace,
    hierarchy: Hierarchy | int | float | str,
    policy: Policies = "lru",
    *,
    lookahead: int = 0,
    recompute: bool = False,
    score: ArrayLike | None = None,
    seed: int = 0,
    timeline: bool = False,
) -> Report:
    """Replay ``trace`` and return what was moved, evicted and waited for.

    Parameters
    ----------
    trace
        The accesses, in order.
    hierarchy
        Tiers, fastest first; or a name of ``HIERARCHIES``; or the capacity of the first of two tiers, as
        bytes, text, or a share of the trace's peak such as ``"50%"``.
    policy
        A name of ``accelera.policy.POLICIES`` in any case (``"ML"`` is ``scored``), used in every tier but
        the last; or a fresh ``EvictionPolicy`` of your own, one for each of these tiers; or what makes one
        from its ``Knowledge``, such as a class, as the engine takes it.
    lookahead
        How many further steps are admitted while one computes. A trace that records its own releases
        says so itself, and this has no effect.
    recompute
        Whether a buffer may be dropped and made again when that is faster than moving it.
    score
        Per access, for the policies that follow a score: the highest is given up first.
    seed
        Seed of policies that choose at random.
    timeline
        Whether ``Report.timeline`` tells when every step computes and every transfer goes on. It changes
        nothing else, and takes some 50 bytes per access.

    Raises
    ------
    UnknownNameError
        No hierarchy or policy has this name.
    ValueError
        A negative ``lookahead``, fewer than two tiers, or not one policy object for each tier but the last.
    TypeError
        A policy that is neither a name, nor such an object, nor what makes one.
    """
    machine = hierarchy_of(hierarchy, trace)
    _require(machine, lookahead)
    if machine.sequential:
        trace = one_by_one(trace)
    prepared = replayable(trace)
    caches = machine.tiers[:-1]
    name, policies, known = _policies(trace, caches, policy, score, seed)
    history = _native.ReplayHistory() if timeline else None
    figures = _native.simulate_hierarchy(
        policies,
        known,
        prepared.native,
        [tier.capacity_bytes for tier in caches],
        [_link(tier) for tier in machine.tiers[1:]],
        machine.tiers[0].access_s,
        prepared.seconds(trace, machine.compute),
        next_reads(trace) if recompute else None,
        lookahead + 1,
        history,
    )
    report = _report(name, machine, lookahead, trace, prepared.native, figures)
    return report if history is None else replace(report, timeline=timeline_of(history))


def _require(machine: Hierarchy, lookahead: int) -> None:
    if len(machine) < 2:
        raise ArgumentError(
            f"[simulate] the hierarchy has {len(machine)} tiers; a cache and a home are needed"
        )
    if lookahead < 0:
        raise ArgumentError(f"[simulate] lookahead={lookahead} must not be negative")


def _policies(
    trace: Trace, caches: Sequence[Tier], policy: Policies, score: ArrayLike | None, seed: int
) -> tuple[str, str | list[EvictionPolicy], list[_native.PolicyKnowledge]]:
    """Return the name for the report, what the loop takes, and what compiled policies know per tier."""
    if isinstance(policy, str):
        name = SEED_NAMES.get(policy.lower(), policy.lower())
        prepared = prepare(name, trace, caches[0].capacity_bytes, score=score, seed=seed)
        known = [native_knowledge(prepared.at(tier.capacity_bytes).knowledge) for tier in caches]
        return name, prepared.native_name, known
    objects = _objects(policy, trace, caches)
    if len(objects) != len(caches):
        raise ArgumentError(
            f"[simulate] {len(objects)} policy objects are given for {len(caches)} tiers above the home; "
            "give a list with a fresh one for each"
        )
    return type(objects[0]).__name__, objects, []


def _objects(
    policy: EvictionPolicy | Sequence[EvictionPolicy] | Maker, trace: Trace, caches: Sequence[Tier]
) -> list[EvictionPolicy]:
    if callable(policy):
        objects = [policy(Knowledge.of(trace, tier.capacity_bytes)) for tier in caches]
    else:
        objects = list(policy) if isinstance(policy, Sequence) else [policy]
    for each in objects:
        if isinstance(each, type) or not hasattr(each, "victim"):
            raise ArgumentError(
                f"[simulate] {each!r} is no policy; give a name, an object with EvictionPolicy's methods, or "
                "what makes one from its Knowledge"
            )
    return objects


def _link(tier: Tier) -> tuple[float, float, float, bool]:
    return tier.towards_s_per_byte, tier.away_s_per_byte, tier.latency_s, tier.duplex


def _report(
    policy: str,
    machine: Hierarchy,
    lookahead: int,
    trace: Trace,
    prepared: _native.PreparedTrace,
    figures: _native.HierarchyFigures,
) -> Report:
    return Report(
        policy=policy,
        hierarchy=machine,
        lookahead=lookahead,
        tiers=tuple(map(_tier_report, machine.tiers, figures.tiers)),
        links=tuple(map(_link_report, machine.tiers, machine.tiers[1:], figures.links)),
        compute_s=figures.compute_s,
        stall_s=figures.stall_s,
        tail_s=figures.tail_s,
        oversized_steps=figures.oversized_steps,
        streamed_bytes=figures.streamed_bytes,
        largest_step_bytes=prepared.largest_step_bytes,
        recomputed_steps=figures.recomputed_steps,
        recomputed_s=figures.recomputed_s,
        trace=trace,
    )


def _tier_report(tier: Tier, figures: _native.TierFigures) -> TierReport:
    return TierReport(
        tier.name,
        tier.capacity_bytes,
        figures.hits,
        figures.misses,
        figures.evictions,
        figures.evicted_bytes,
        figures.fetched_bytes,
        figures.created_bytes,
        figures.saved_bytes,
        figures.peak_bytes,
    )


def _link_report(upper: Tier, lower: Tier, figures: _native.LinkFigures) -> LinkReport:
    towards, away = figures.towards, figures.away
    return LinkReport(
        f"{upper.name} - {lower.name}",
        towards.bytes,
        towards.moves,
        towards.busy_s,
        away.bytes,
        away.moves,
        away.busy_s,
    )


@dataclass(frozen=True)
class CacheResult:
    """Figures of a simulated cache; sizes in bytes."""

    hits: int
    misses: int
    miss_bytes: int
    evictions: int
    evicted_bytes: int
    peak_bytes: int
    """Most bytes in the cache at any time."""

    @property
    def miss_ratio(self) -> float:
        """Misses over accesses; 0 for an empty trace."""
        return self.misses / max(self.hits + self.misses, 1)


def simulate_cache(
    trace: Trace,
    *,
    capacity_bytes: int | float | str,
    policy: str | EvictionPolicy | Callable[[Knowledge], EvictionPolicy] = "lru",
    score: ArrayLike | None = None,
    seed: int = 0,
) -> CacheResult:
    """Run a trace's accesses through a cache of ``capacity_bytes``, or ``"64MiB"``, or ``"50%"`` of its peak.

    Every access is let go at once; reads and writes are alike; what is larger than the cache passes by;
    freed buffers leave without an eviction.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Size of the cache: bytes, text, or a share of the trace's peak.
    policy
        A name of ``accelera.policy.POLICIES`` in any case, a fresh ``EvictionPolicy`` of your own, or what
        makes one from its ``Knowledge``, such as a class.
    score
        Per access, for the policies that follow a score: the highest is given up first.
    seed
        Seed of policies that choose at random.

    Raises
    ------
    UnknownNameError
        A name that there is not.
    ValueError
        For a negative capacity or a score that is not a number.
    ShapeError
        For a score of the wrong length.
    """
    capacity = capacity_of(capacity_bytes, trace)
    known = Knowledge(capacity)
    chosen = policy(Knowledge.of(trace, capacity)) if callable(policy) else policy
    if isinstance(policy, str):
        prepared = prepare(policy.lower(), trace, capacity, score=score, seed=seed)
        chosen, known = prepared.native_name, prepared.knowledge
    kinds = None if trace.is_access.all() else trace.kind
    figures = _native.simulate_cache(chosen, native_knowledge(known), trace.buffer, kinds, trace.size_bytes)
    return CacheResult(
        figures.hits,
        figures.misses,
        figures.miss_bytes,
        figures.evictions,
        figures.evicted_bytes,
        figures.peak_bytes,
    )
