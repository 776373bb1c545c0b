"""From a policy's name and a trace to what its compiled half is told: one way for everybody."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera.errors import ShapeError
from accelera.policy.contract import EvictionPolicy
from accelera.policy.knowledge import Knowledge, next_reads
from accelera.policy.names import NEEDS, SCORES, create_policy, native_name
from accelera.trace import Trace


@dataclass(frozen=True, eq=False)
class Prepared:
    """A compiled policy and what it is to know."""

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
        For policies that throw dice.

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
        raise ValueError(f"[policy] capacity_bytes={capacity_bytes} must not be negative")
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
        return _checked(given, trace.access_count)
    if name not in SCORES:
        raise ValueError(
            f"[policy] {name} follows a score and none is given: pass score=, one number per access, "
            "as a trained scorer returns it"
        )
    return SCORES[name](trace)


def _checked(given: ArrayLike, count: int) -> NDArray[np.float64]:
    score = np.ascontiguousarray(given, dtype=np.float64)
    if score.shape != (count,):
        raise ShapeError(f"[policy] score has shape {score.shape}; ({count},), one per access, is needed")
    bad = np.flatnonzero(np.isnan(score))
    if len(bad):
        raise ValueError(f"[policy] score is not a number at access {bad[0]}; give every access a number")
    return score
