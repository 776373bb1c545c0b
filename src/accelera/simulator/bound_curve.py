"""The lower bound at many capacities from few linear programs.

Above the hard floor the bound is a convex function of the capacity. Each solution gives a tangent, which
lies below it everywhere, and each pair of solutions a chord, which lies above: where the two are close
nothing more need be solved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.bounds import ResidencyPlan, plan_residency
from accelera.simulator.moments import Moments
from accelera.trace import Trace


def bound_curve(
    trace: Trace, capacities: Sequence[int], *, tolerance: float = 0.02, most_solved: int = 8
) -> NDArray[np.int64]:
    """Return a lower bound in bytes at each capacity, shape (capacities,).

    Parameters
    ----------
    trace
        The accesses, in order.
    capacities
        Bytes of the first tier, one or more.
    tolerance
        Share of the sharpest bound that may be given away at a capacity to save time.
    most_solved
        Capacities above the floor that are solved at most, whatever the tolerance.
    """
    floor = Moments.of(trace).resident_bytes
    solved = {each: plan_residency(trace, each) for each in capacities if each < floor}
    above = np.array(sorted({each for each in capacities if each >= floor}), dtype=np.int64)
    bounds = {each: plan.lower_bound_bytes for each, plan in solved.items()}
    bounds.update(zip(above.tolist(), _convex(trace, above, tolerance, most_solved).tolist(), strict=True))
    return np.array([bounds[each] for each in capacities], dtype=np.int64)


def _convex(
    trace: Trace, capacities: NDArray[np.int64], tolerance: float, most_solved: int
) -> NDArray[np.int64]:
    plans: dict[int, ResidencyPlan] = {}
    wanted = [0, len(capacities) - 1] if len(capacities) else []
    proven = np.zeros(len(capacities), dtype=np.int64)
    while wanted and len(plans) < most_solved:
        for index in wanted:
            plans[index] = plan_residency(trace, int(capacities[index]))
        proven = _tangents(plans, capacities)
        chord = _chord(plans, capacities)
        given_away = (chord - proven) / np.maximum(chord, 1.0)
        given_away[list(plans)] = 0.0
        wanted = [int(np.argmax(given_away))] if given_away.max() > tolerance else []
    return proven


def _tangents(plans: dict[int, ResidencyPlan], capacities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the highest tangent at each capacity, and the bound itself where it is solved."""
    found = np.zeros(len(capacities), dtype=np.int64)
    for plan in plans.values():
        tangent = plan.proven_bytes + plan.slope * (capacities - plan.capacity_bytes)
        found = np.maximum(found, np.maximum(tangent, plan.compulsory_bytes).astype(np.int64))
    for index, plan in plans.items():
        found[index] = plan.lower_bound_bytes
    return found


def _chord(plans: dict[int, ResidencyPlan], capacities: NDArray[np.int64]) -> NDArray[np.float64]:
    known = sorted(plans)
    chord: NDArray[np.float64] = np.interp(
        capacities, capacities[known], [plans[index].lower_bound_bytes for index in known]
    )
    return chord
