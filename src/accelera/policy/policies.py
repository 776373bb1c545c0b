"""Policies by name: the compiled ones, and those that are a score with a compiled follower.

Each compiled policy is one file of ``csrc/policy`` and one line of its registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera._native import Policy, PolicyKnowledge, policy_needs
from accelera.errors import ArgumentError, ShapeError, UnknownNameError
from accelera.policy.contract import EvictionPolicy, Knowledge, next_reads, once_per_trace
from accelera.policy.iteration_replay import replay_next_uses
from accelera.trace import Trace
from accelera.trace._internal import stack_distances


@once_per_trace
def heuristic_scores(trace: Trace) -> NDArray[np.float64]:
    """Return ``0.4 * size + 0.5 * reuse_distance + 0.1 * stride`` per access, shape (accesses,).

    Each part is divided by its largest value in the trace, so that it lies in 0..1; a part that is 0
    throughout stays 0. The reuse distance is the true stack distance: how many distinct buffers were
    accessed since this one's last access. A first access has none and counts as 0: what was just made is
    kept, which moved fewer bytes on 8 of 9 training runs than 1 did. Strides count by magnitude. The score
    of an access uses nothing after it but the three scales.
    """
    reuse = np.maximum(stack_distances(trace).buffers, 0)
    size = trace.size_bytes[trace.accessed]
    stride = np.abs(trace.stride[trace.is_access])
    scores: NDArray[np.float64] = 0.4 * _share(size) + 0.5 * _share(reuse) + 0.1 * _share(stride)
    return scores


def _share(values: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return ``values``, none negative, divided by the largest."""
    return values / max(int(values.max(initial=0)), 1)


NEEDS = {name: tuple(needs) for name, needs in policy_needs().items()}
"""Per compiled policy, the fields of ``Knowledge`` that it cannot do without."""

FOLLOWERS = {"iteration_replay": "scored", "learned": "scored"}
"""Policies that are a score: their name, and the compiled policy that follows it."""

SCORES: dict[str, Callable[[Trace], NDArray[np.float64]]] = {
    "scored": heuristic_scores,
    "iteration_replay": replay_next_uses,
}
"""The score that a policy follows when it is given none."""

POLICIES: tuple[str, ...] = tuple(sorted({*NEEDS, *FOLLOWERS}))
"""Names that ``create_policy``, ``prepare``, the simulator and the engine know."""


def native_name(name: str) -> str:
    """Return the compiled policy behind ``name``; raises UnknownNameError with the near names."""
    if name not in POLICIES:
        raise UnknownNameError.among("policy", name, POLICIES)
    return FOLLOWERS.get(name, name)


def needs(name: str) -> tuple[str, ...]:
    """Return the fields of ``Knowledge`` that ``name`` cannot do without; raises UnknownNameError."""
    return NEEDS[native_name(name)]


def create_policy(name: str, known: Knowledge | None = None) -> EvictionPolicy:
    """Return a fresh policy.

    ``known`` is needed by those that look ahead, follow a score or share out the capacity.

    Raises UnknownNameError with the near names, ValueError that says what ``name`` needs to know.
    """
    known = known or Knowledge()
    if known.score is None and known.trace is not None and name in SCORES:
        known = replace(known, score=SCORES[name](known.trace))
    require_needs(name, known, *NEEDS[native_name(name)])
    return Policy(native_name(name), native_knowledge(known))


def require_needs(name: str, known: Knowledge, *needs: str) -> None:
    """Raise ValueError when ``known`` lacks one of ``needs``, saying where it comes from."""
    for need in needs:
        if getattr(known, need) is None or (need == "capacity_bytes" and not known.capacity_bytes):
            raise ArgumentError(f"[policy] {name} needs {need}, which is not given: {_REMEDIES[need]}")


def native_knowledge(known: Knowledge) -> PolicyKnowledge:
    """Return ``known`` as the compiled half takes it."""
    return PolicyKnowledge(
        known.capacity_bytes, known.buffers, known.next_use, known.next_read, known.score, known.seed
    )


_REMEDIES = {
    "capacity_bytes": "set Knowledge.capacity_bytes to the bytes of its tier",
    "next_use": "build its Knowledge with Knowledge.of(trace, capacity_bytes)",
    "next_read": "build its Knowledge with Knowledge.of(trace, capacity_bytes)",
    "score": "give one number per access as score=, or use prepare(name, trace, capacity_bytes)",
}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A compiled policy and what it knows."""

    native_name: str
    """Its name in the compiled registry."""
    knowledge: Knowledge
    """Only what this policy needs; the rest is left out."""

    def at(self, capacity_bytes: int) -> Prepared:
        """Return the same for a tier of ``capacity_bytes``."""
        return replace(self, knowledge=replace(self.knowledge, capacity_bytes=capacity_bytes))

    def policy(self) -> EvictionPolicy:
        """Return a fresh policy."""
        return create_policy(self.native_name, self.knowledge)


def prepare(
    name: str,
    trace: Trace,
    capacity_bytes: int,
    *,
    score: ArrayLike | None = None,
    seed: int = 0,
) -> Prepared:
    """Return the compiled policy behind ``name`` and what it needs to know of ``trace``.

    Parameters
    ----------
    name
        One of ``POLICIES``.
    capacity_bytes
        Bytes of the policy's tier.
    score
        Per access of ``trace``, the highest is given up first, shape (accesses,). ``scored`` and
        ``iteration_replay`` make their own when none is given; ``learned`` must be given one; ``planner``
        drops first what is given a half or more, as ``accelera.simulator.plan_residency`` finds it.
    seed
        Seed of policies that choose at random.

    Raises
    ------
    UnknownNameError
        No policy has this name; near names are in the message.
    ValueError
        A negative capacity, a score that is not a number, or ``learned`` without a score.
    ShapeError
        A score of another length than the trace's accesses.
    """
    native = native_name(name)
    if capacity_bytes < 0:
        raise ArgumentError(f"[policy] capacity_bytes={capacity_bytes} must not be negative")
    needs = NEEDS[native]
    return Prepared(
        native,
        Knowledge(
            capacity_bytes,
            trace.buffer_count,
            next_use=trace.next_use if "next_use" in needs else None,
            next_read=next_reads(trace) if "next_read" in needs else None,
            score=_score(name, trace, score) if "score" in needs or score is not None else None,
            seed=seed,
        ),
    )


def _score(name: str, trace: Trace, given: ArrayLike | None) -> NDArray[np.float64]:
    if given is not None:
        return _checked_score(given, trace.access_count)
    if name not in SCORES:
        raise ArgumentError(
            f"[policy] {name} follows a score and none is given: pass score=, one number per access, "
            "as a trained scorer returns it"
        )
    return SCORES[name](trace)


def _checked_score(given: ArrayLike, count: int) -> NDArray[np.float64]:
    score = np.ascontiguousarray(given, dtype=np.float64)
    if score.shape != (count,):
        raise ShapeError(f"[policy] score has shape {score.shape}; ({count},), one per access, is needed")
    bad = np.flatnonzero(np.isnan(score))
    if len(bad):
        raise ArgumentError(f"[policy] score is not a number at access {bad[0]}; give every access a number")
    return score
