"""Planner of products of matrices: enumerate schedules on an integer grid, forecast the best, keep one.

No formula alone decides. Closed forms rank the enumeration; the best of it are simulated (the exact
pool, the exact policy, a timeline), and among those near the fastest the plan is the one that moves
the fewest bytes.

The least bytes that any schedule of ``C = A @ B`` must move through a fast memory of S words are, with
dimensions m, k, n, the largest of

* ``mk + kn + mn``: every operand is read and the result written at least once (compulsory);
* ``2mnk/sqrt(S) - 2S``: Smith, Lowery, Langou, van de Geijn (2019);
* ``2mnk/sqrt(S) + mn``: Kwasniewski et al. (2019), only for ``k > 2 sqrt(S)``: below that a
  panel kept over the full depth moves less, because nothing of C is read back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.plan.cost import CostModel, pass_lengths
from accelera.plan.dry_run import forecast
from accelera.plan.limits import Eviction, PlanLimits
from accelera.plan.matmul_search import (
    FLOOR,
    Candidates,
    bookkeeping_of,
    enumerate_choices,
    need_of,
)
from accelera.plan.matmul_steps import MatmulChoice, MatmulProblem, matmul_pattern
from accelera.plan.partition import Partition, Span
from accelera.plan.plan import Plan
from accelera.plan.saved_choices import require_exact_cover
from accelera.plan.types import Alternative, Forecast
from accelera.plan.walk import Pattern
from accelera.units import format_bytes


def compulsory_words(m: int, k: int, n: int) -> int:
    """Return the words of A, B and C together."""
    return m * k + k * n + m * n


def matmul_lower_bound_words(m: int, k: int, n: int, fast_words: int) -> float:
    """Return the least words moved between slow memory and a fast one of ``fast_words``.

    >>> matmul_lower_bound_words(100, 100, 100, 1_000_000)
    30000.0
    """
    if 0 in (m, k, n):
        return float(m * n)
    root = math.sqrt(max(fast_words, 1))
    product = 2.0 * m * n * k / root
    bounds = [float(compulsory_words(m, k, n)), product - 2.0 * fast_words]
    if k > 2 * root:
        bounds.append(product + m * n)
    return max(bounds)


Objective = Literal["time", "bytes"]

_MOST_WALKED = 8
_MOST_WALKED_STEPS = 6_000
_BYTES_WEIGHT = {"time": 0.1, "bytes": 10.0}
"""Weight of the logarithm of the bytes beside that of the time, by objective."""
_NEAR = 1.03


@dataclass(frozen=True)
class _MatmulRoom:
    """Memory that a plan may fill, and the rules by which it is filled."""

    capacity_bytes: int
    eviction: Eviction
    holds_bookkeeping: bool
    """Whether the run's bookkeeping lies in the same memory as the blocks: in RAM."""
    cost: CostModel

    def charged(self, bookkeeping_bytes: int) -> int:
        """Return the bytes of ``bookkeeping_bytes`` that are taken from the blocks' memory."""
        return bookkeeping_bytes if self.holds_bookkeeping else 0


@dataclass(frozen=True)
class _WalkedMatmul:
    """A choice with its passes and their forecast."""

    choice: MatmulChoice
    pattern: Pattern
    forecast: Forecast
    bookkeeping_bytes: int
    """RAM for the run's records of its steps, where they are many; besides the blocks."""


def plan_matmul(
    problem: MatmulProblem,
    limits: PlanLimits,
    cost: CostModel,
    *,
    tiles: Iterable[tuple[Span, Span]] | None = None,
    spec: Mapping[str, Any] | None = None,
    objective: Objective = "time",
) -> Plan:
    """Return the plan that computes ``problem`` within ``limits``.

    ``tiles`` fixes the (row, column) spans of the result's tiles; ``spec`` repeats the choices of
    an earlier plan where they still fit. ``objective`` says what to save first: time (bytes count a
    little), or bytes (time counts a little), for a disk that others need too. Raises BudgetExceededError,
    naming the smallest budget that would do, when nothing fits, and UnknownNameError for another objective.
    """
    if objective not in _BYTES_WEIGHT:
        raise UnknownNameError.among("objective", objective, _BYTES_WEIGHT)
    given = None if tiles is None else tuple(tiles)
    room = _MatmulRoom(limits.capacity_bytes, limits.eviction, limits.in_ram, cost.nominal())
    chosen = _choice_from_spec(spec)
    if chosen is not None:
        if chosen.tiles is not None and not problem.is_empty:
            require_exact_cover(chosen.tiles, (problem.m, problem.n))
        walked, need = _walk_given(problem, chosen, room)
    else:
        walked, need = _choose(problem, room, given, limits.window, objective)
    if not walked:
        shapes = f"{list(problem.a.shape)} @ {list(problem.b.shape)} in {problem.c.held_dtype}"
        smallest = "even its smallest tiles" if chosen is None else "the tiles of the plan to repeat"
        limits.refuse("matmul", shapes, smallest, need)
    nominal = min(
        walked, key=lambda each: _score(each.forecast.seconds, each.forecast.moved_bytes, objective)
    )
    best = nominal if cost == room.cost else _walk(problem, nominal.choice, replace(room, cost=cost))
    capacity_bytes = limits.capacity_bytes - room.charged(best.bookkeeping_bytes)
    bound, compulsory = least_bytes(problem, capacity_bytes)
    return Plan(
        operation="matmul",
        operands=problem.operands,
        schedule=_schedule_name(problem, best),
        shape_note=_shape_note(problem, best.choice),
        budget_bytes=limits.budget_bytes,
        capacity_bytes=capacity_bytes,
        reserved={**limits.reserved, **({"books": best.bookkeeping_bytes} if best.bookkeeping_bytes else {})},
        tier=limits.tier,
        window=best.choice.window,
        forecast=best.forecast,
        lower_bound_bytes=bound,
        compulsory_bytes=compulsory,
        pattern=best.pattern,
        spec=best.choice.spec(),
        alternatives=_alternatives(problem, walked, nominal, best.forecast.seconds),
        host_staging_bytes=limits.host_staging_bytes,
        eviction=limits.eviction,
    )


@lru_cache(maxsize=32)
def _choose(
    problem: MatmulProblem,
    room: _MatmulRoom,
    tiles: tuple[tuple[Span, Span], ...] | None,
    window: int,
    objective: Objective,
) -> tuple[tuple[_WalkedMatmul, ...], int]:
    """Return the best choices with their forecasts, and the least memory; no choices when there is less."""
    if problem.is_empty:
        length = pass_lengths(room.capacity_bytes, room.eviction)[0]
        choice = replace(_zero_choice(problem, tiles, window), pass_steps=length)
        zero_walked = _walk(problem, choice, replace(room, capacity_bytes=sys.maxsize))
        need = zero_walked.forecast.peak_pool_bytes + room.charged(zero_walked.bookkeeping_bytes)
        return ((zero_walked,) if need <= room.capacity_bytes else ()), need
    found = enumerate_choices(
        problem,
        room.capacity_bytes,
        room.cost,
        tiles,
        window,
        room.eviction,
        holds_bookkeeping=room.holds_bookkeeping,
    )
    if found.floor_bytes > room.capacity_bytes:
        return (), found.floor_bytes
    chosen = _front_runners(found, room.capacity_bytes, objective)
    return tuple(_walk(problem, choice, room) for choice in chosen), found.floor_bytes


def _choice_from_spec(spec: Mapping[str, Any] | None) -> MatmulChoice | None:
    """Return the choice in an earlier plan's ``spec``; None without one, or where it is of another kind."""
    return None if spec is None or "bands" not in spec else MatmulChoice.from_spec(dict(spec))


def _walk_given(
    problem: MatmulProblem, choice: MatmulChoice, room: _MatmulRoom
) -> tuple[tuple[_WalkedMatmul, ...], int]:
    """Return the given choice with its forecast, or, where it does not fit, the memory it needs."""
    try:
        return (_walk(problem, choice, room),), 0
    except BudgetExceededError:
        return (), need_of(problem, choice, room.cost) + room.charged(_bookkeeping(problem, choice, room))


def least_bytes(problem: MatmulProblem, capacity_bytes: int) -> tuple[int, int]:
    """Return (lower bound, compulsory traffic) in bytes; operands used in place cost nothing."""
    if problem.is_empty:
        written = 0 if problem.c.in_place else problem.c.nbytes
        return written, written
    compulsory = sum(0 if o.in_place else o.nbytes for o in problem.operands)
    batches = math.prod(problem.batch)
    broadcast = any(math.prod(o.shape[:-2]) < batches for o in (problem.a, problem.b))
    if broadcast or any(operand.in_place for operand in problem.operands):
        return compulsory, compulsory
    words = capacity_bytes // problem.c.held_dtype.itemsize
    bound = batches * matmul_lower_bound_words(problem.m, problem.k, problem.n, words)
    return max(int(bound * problem.c.dtype.itemsize), compulsory), compulsory


def _front_runners(found: Candidates, capacity_bytes: int, objective: Objective) -> list[MatmulChoice]:
    """Return the choices to forecast: the best of each partition by closed form, and a full-depth one."""
    rows = np.flatnonzero(found.need_bytes <= capacity_bytes)
    ranked = rows[np.argsort(_score(found.seconds[rows], found.moved_bytes[rows], objective))]
    deep = ranked[found.sub[ranked] == found.sub.max()][:1]
    firsts: dict[int, int] = {}
    for row in ranked[:4000]:
        firsts.setdefault(int(found.shape[row]), int(row))
    chosen: list[MatmulChoice] = []
    steps = 0.0
    for row in (*list(firsts.values())[:_MOST_WALKED], *deep):
        steps += found.walked_steps(int(row))
        if not chosen or steps < _MOST_WALKED_STEPS:
            chosen.append(found.choice(int(row)))
    return list(dict.fromkeys(chosen))


def _zero_choice(
    problem: MatmulProblem, tiles: tuple[tuple[Span, Span], ...] | None, window: int
) -> MatmulChoice:
    """Return the choice for a product with nothing to multiply: small tiles of zeros, or no tiles."""
    bands = (math.ceil(problem.m / FLOOR), math.ceil(problem.n / FLOOR))
    return MatmulChoice(Partition((bands,), True), FLOOR, 1, 1, window, tiles=tiles)


def _score(seconds: Any, moved_bytes: Any, objective: Objective) -> Any:
    """Return the score of a choice, lower is better, from its time and the bytes it moves.

    Even with the objective ``"time"``, twice the bytes weigh like seven per cent more time: moves compete
    with the arithmetic for the memory bus, and with other processes for the disk, which no timeline shows.
    """
    return seconds * np.maximum(moved_bytes, 1.0) ** _BYTES_WEIGHT[objective]


def _walk(problem: MatmulProblem, choice: MatmulChoice, room: _MatmulRoom) -> _WalkedMatmul:
    pattern = matmul_pattern(problem, choice, room.cost)
    bookkeeping = _bookkeeping(problem, choice, room)
    capacity_bytes = room.capacity_bytes - room.charged(bookkeeping)
    found = forecast(
        pattern,
        problem.operands,
        capacity_bytes,
        choice.window,
        room.cost,
        room.eviction,
        operation="matmul",
    )
    return _WalkedMatmul(choice, pattern, found, bookkeeping)


def _bookkeeping(problem: MatmulProblem, choice: MatmulChoice, room: _MatmulRoom) -> int:
    return 0 if problem.is_empty else bookkeeping_of(problem, choice, room.eviction, room.cost)


def _schedule_name(problem: MatmulProblem, walked: _WalkedMatmul) -> str:
    choice = walked.choice
    bands = choice.partition.bands
    single = len(choice.tiles) == 1 if choice.tiles is not None else bands == ((1, 1),)
    if single:
        return "single-pass" if choice.sub >= problem.k else "single-tile"
    for operand in (problem.a, problem.b):
        once = walked.forecast.bytes_read[operand.name] == operand.nbytes
        if once and choice.slab >= problem.k and not operand.in_place:
            return f"{operand.name}-panel-stationary"
    return "C-stationary"


def _shape_note(problem: MatmulProblem, choice: MatmulChoice) -> str:
    left, right = ("B", "A") if choice.swap else ("A", "B")
    strip = "columns" if choice.swap else "rows"
    return (
        f"C in {_grid(choice)}, strips of {choice.strip} {strip}; {left} blocks {choice.slab} deep, "
        f"{right} blocks {choice.sub} deep of k = {problem.k}"
    )


def _grid(choice: MatmulChoice) -> str:
    if choice.tiles is not None:
        return f"{len(choice.tiles)} tiles as given"
    bands = " and ".join(f"{count} x {parts}" for count, parts in choice.partition.bands)
    return f"{bands} tiles ({'row' if choice.partition.by_rows != choice.swap else 'column'} bands x parts)"


def _label(problem: MatmulProblem, walked: _WalkedMatmul) -> str:
    return f"{_schedule_name(problem, walked)} with {_grid(walked.choice)}"


def _alternatives(
    problem: MatmulProblem, walked: Iterable[_WalkedMatmul], best: _WalkedMatmul, seconds: float
) -> tuple[Alternative, ...]:
    """Return rejected choices with other labels than ``best`` and the reasons; best first, one per partition.

    All forecasts use nominal rates; times are scaled so that the best takes ``seconds``.
    """
    alternatives: dict[tuple[tuple[int, int], ...], Alternative] = {}
    chosen, scale = _label(problem, best), seconds / max(best.forecast.seconds, 1e-12)
    for each in sorted(walked, key=lambda each: each.forecast.seconds):
        label = _label(problem, each)
        if label != chosen:
            reason = _reason(each.forecast, best.forecast)
            other = Alternative(label, each.forecast.moved_bytes, each.forecast.seconds * scale, reason)
            alternatives.setdefault(each.choice.partition.bands, other)
    return tuple(alternatives.values())[:4]


def _reason(other: Forecast, found: Forecast) -> str:
    if other.seconds > found.seconds * _NEAR:
        return f"{other.seconds / found.seconds:.2f} x the time"
    if other.moved_bytes < found.moved_bytes:
        return "moves less, but takes too long for that"
    if other.moved_bytes > found.moved_bytes:
        return f"no faster, and moves {format_bytes(other.moved_bytes - found.moved_bytes)} more"
    return "moves as much and is no faster"
