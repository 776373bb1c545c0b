"""The planner of Gram matrices: ``G = Aᴴ A`` at half the products, and a little over half the reads.

Only the tiles of the upper triangle are computed, and each goes to its place and, conjugated and
transposed, to the mirrored one:

    for tile (rows, cols), rows <= cols:  for slab of the depth:  for strip of rows:
        G[strip, cols] += A[slab, strip]ᴴ A[slab, cols]

A tile on the diagonal is made of squares a strip wide, those on or above its own diagonal. Strips are
written as soon as they are complete, so two tiles never need room at once. Every other tile runs its
slabs backwards, and the tiles of one band go to and fro, so that what the pool still holds at a turn
is used again. A matrix with few columns is one tile: A is read once, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from accelera.plan.cost import WHOLE_STEPS, CostModel, overhead_bytes, overhead_limit, pass_lengths
from accelera.plan.dry_run import forecast
from accelera.plan.gram_steps import GramChoice, GramProblem, GramSteps
from accelera.plan.limits import WINDOW, Eviction, PlanLimits
from accelera.plan.partition import Cuts
from accelera.plan.plan import Plan
from accelera.plan.saved_choices import require_known_choices, whole_choice, window_choice
from accelera.plan.types import Alternative, Forecast
from accelera.plan.walk import Pattern

LONGEST_EDGE = 1 << 16
"""Longest edge of a tile: a row of one fits any staging buffer."""
_DEPTHS = (8192, 4096, 2048, 1024, 512, 256, 128, 64)
_SHORTEST_EDGE = 64
_STRIPS = (1, 2, 4, 8)
_MOST_WALKED = 6
_PASS_STEPS = 1024
"""Most steps of a pass: one of each kind is walked for every choice that is."""
_BYTES_WEIGHT = 0.25


@dataclass(frozen=True)
class _GramEstimate:
    """Closed forms of one choice."""

    choice: GramChoice
    need_bytes: int
    """Bytes of the blocks, and of the bookkeeping where it lies in the same memory."""
    overhead_bytes: int
    """RAM for the run's records of its steps, where they are many; besides the blocks."""
    seconds: float
    moved_bytes: float

    @property
    def score(self) -> float:
        """Its time, weighted by the bytes it moves; lower is better."""
        return _score(self.seconds, self.moved_bytes)


def plan_gram(
    problem: GramProblem,
    limits: PlanLimits,
    cost: CostModel,
    *,
    spec: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan that computes ``problem`` within ``limits``.

    ``spec`` repeats the choices of an earlier plan. Raises BudgetExceededError, naming the smallest
    budget that would do, when nothing fits.
    """
    measured, cost = cost, cost.nominal()
    choices = [_choice_from_spec(spec)] if spec is not None else _choices(problem, limits.window)
    found = [_estimate(problem, each, limits, cost, again=spec is not None) for each in choices]
    fitting = sorted(
        (each for each in found if each.need_bytes <= limits.capacity_bytes), key=lambda each: each.score
    )
    if not fitting and spec is None and limits.window > 1:
        narrower = replace(limits, window=WINDOW if limits.window > WINDOW else 1)
        return plan_gram(problem, narrower, measured)
    if not fitting:
        of = f"of {list(problem.a.shape)} in {problem.g.held_dtype}"
        limits.refuse("gram", of, "its smallest tiles", min(each.need_bytes for each in found))

    def walk(each: _GramEstimate, cost: CostModel) -> _WalkedGram:
        steps = GramSteps(problem, each.choice, cost)
        room = limits.capacity_bytes - limits.charged(each.overhead_bytes)
        window = each.choice.window
        pattern = steps.pattern()
        found = forecast(pattern, problem.operands, room, window, cost, limits.eviction, operation="gram")
        return _WalkedGram(each, steps, pattern, found)

    walked = [walk(each, cost) for each in fitting[:_MOST_WALKED]]
    nominal = min(walked, key=lambda each: _score(each.forecast.seconds, each.forecast.moved_bytes))
    best = nominal if measured == cost else walk(nominal.figures, measured)
    steps, bookkeeping = best.steps, best.figures.overhead_bytes
    compulsory = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    return Plan(
        operation="gram",
        operands=problem.operands,
        schedule="single tile" if len(steps.edges) <= 1 else "G-stationary",
        shape_note=_shape_note(steps),
        budget_bytes=limits.budget_bytes,
        capacity_bytes=limits.capacity_bytes - limits.charged(bookkeeping),
        reserved={**limits.reserved, **({"books": bookkeeping} if bookkeeping else {})},
        tier=limits.tier,
        window=steps.choice.window,
        forecast=best.forecast,
        lower_bound_bytes=compulsory,
        compulsory_bytes=compulsory,
        pattern=best.pattern,
        spec=vars(steps.choice),
        alternatives=_alternatives(walked, nominal, best.forecast.seconds),
        host_staging_bytes=limits.host_staging_bytes,
        eviction=limits.eviction,
    )


def _choice_from_spec(spec: Mapping[str, Any]) -> GramChoice:
    lower_bounds = {"parts": 1, "slab": 1, "strips": 1, "pass_steps": 0}
    require_known_choices(spec, [*lower_bounds, "window"])
    choices = {name: whole_choice(spec, name, bound) for name, bound in lower_bounds.items()}
    return GramChoice(window=window_choice(spec), **choices)


@dataclass(frozen=True)
class _WalkedGram:
    """A choice with its steps and their forecast."""

    figures: _GramEstimate
    steps: GramSteps
    pattern: Pattern
    forecast: Forecast


def _choices(problem: GramProblem, window: int) -> list[GramChoice]:
    """Return the choices: all combinations of tile count, strip count and slab depth."""
    size, depth = problem.size, problem.depth
    most = max(1, math.ceil(size / _SHORTEST_EDGE))
    least = max(1, math.ceil(size / LONGEST_EDGE))
    counts = [*range(least, min(most, least + 24) + 1)]
    while counts[-1] < most:
        counts.append(min(most, (counts[-1] * 5 + 3) // 4))
    depths = sorted({max(depth, 1), *[each for each in _DEPTHS if each < depth]})
    return [
        GramChoice(parts, slab, strips, window)
        for parts in counts
        for strips in _STRIPS
        if strips == 1 or size >= parts * strips * _SHORTEST_EDGE
        for slab in depths
    ]


def _bookkeeping(problem: GramProblem, choice: GramChoice, eviction: Eviction) -> int:
    """Return an upper bound of the bytes of the run's records of a pass's steps and blocks."""
    parts, strips = choice.parts, choice.strips
    slabs = max(1, math.ceil(problem.depth / choice.slab))
    tiles = parts * (parts - 1) // 2 * strips + parts * strips * (strips + 1) // 2
    batches = math.prod(problem.batch)
    blocks = batches * (tiles + slabs * parts * (strips + 1))
    steps, most = batches * tiles * slabs, choice.pass_steps
    if most:
        steps, blocks = min(steps, most), min(blocks, 3 * most)
    return int(overhead_bytes(3 * steps, blocks, eviction))


def _estimate(
    problem: GramProblem,
    choice: GramChoice,
    limits: PlanLimits,
    cost: CostModel,
    *,
    again: bool = False,
) -> _GramEstimate:
    lead, capacity = (1,) * len(problem.batch), limits.capacity_bytes
    edge, strip = (
        Cuts(problem.size, parts, problem.align(-1)).longest
        for parts in (choice.parts, choice.parts * choice.strips)
    )
    slabs = max(1, math.ceil(problem.depth / choice.slab))
    slab = Cuts(problem.depth, slabs, problem.align(-2)).longest
    batches = math.prod(problem.batch)
    tiles = choice.parts * (choice.parts + 1) // 2 * batches
    need = _blocks_bytes(problem, choice, tiles, edge, strip, slab)
    panel = problem.a.held_bytes((*lead, problem.depth, edge))
    kept = min(1.0, max(capacity - need, 0) / panel) if panel else 1.0
    passes = choice.parts - kept * (choice.parts - 1) / 2
    read = 0.0 if problem.a.in_place else problem.a.nbytes * passes
    written = 0 if problem.g.in_place else problem.g.nbytes
    across = strip if choice.parts == 1 else edge
    reads = cost.read_s(int(read), problem.a.run_bytes((*lead, slab, across)), problem.a.tier)
    writes = cost.write_s(written, problem.g.run_bytes((*lead, strip, across)), problem.g.tier)
    flops = batches * 0.5 * (1 + 1 / (choice.parts * choice.strips)) * problem.flops_scale
    compute = cost.gemm_s(problem.size, problem.depth, problem.size, flops)
    compute *= 1 + 10 / max(slab, 1) + 32 / max(strip, 1)
    steps = tiles * slabs * choice.strips
    compute += steps * cost.step_s
    seconds = compute + reads + writes if choice.window == 1 else max(compute, reads, writes)
    bookkeeping = _bookkeeping(problem, choice, limits.eviction)
    if not again and (bookkeeping or steps > WHOLE_STEPS):
        for longest in pass_lengths(capacity, limits.eviction):
            length = min(longest, _PASS_STEPS)
            fits = min(overhead_limit(capacity), capacity - need if limits.in_ram else capacity)
            if bookkeeping > fits or (not choice.pass_steps and steps > WHOLE_STEPS):
                choice = replace(choice, pass_steps=length)
                bookkeeping = _bookkeeping(problem, choice, limits.eviction)
    need += limits.charged(bookkeeping)
    return _GramEstimate(
        choice, need, bookkeeping, seconds + 2 * reads / max(tiles * slabs, 1), read + written
    )


def _blocks_bytes(
    problem: GramProblem, choice: GramChoice, tiles: int, edge: int, strip: int, slab: int
) -> int:
    """Return the bytes in which every step fits with those under way, and no block is read twice."""
    lead, ahead = (1,) * len(problem.batch), choice.window - 1
    strips = math.ceil(edge / strip) if strip else 1
    rights = min(choice.window, -(-ahead // strips) + 1)
    tall = edge + (min(ahead, strips) * strip if tiles > 1 else 0)
    if choice.slab >= problem.depth and tiles > 1:  # every step writes another block
        tall = max(tall, choice.window * strip)
    lefts = 0 if choice.parts == 1 and choice.strips == 1 else choice.window * strip
    g = problem.g.held_bytes((*lead, tall, edge))
    return g + problem.a.held_bytes((*lead, slab, rights * edge + lefts))


def _score(seconds: float, moved_bytes: float) -> float:
    return seconds * math.exp(_BYTES_WEIGHT * math.log(max(moved_bytes, 1.0)))


def _shape_note(steps: GramSteps) -> str:
    edge, depth = steps.edges.longest, steps.slabs.longest
    tiles = len(steps.edges) * (len(steps.edges) + 1) // 2
    return f"{tiles} tiles of G, edges up to {edge}, {steps.choice.strips} strips; A {depth} deep at a time"


def _alternatives(walked: list[_WalkedGram], best: _WalkedGram, seconds: float) -> tuple[Alternative, ...]:
    """Return rejected choices; forecasts use nominal rates, scaled so that the best takes ``seconds``."""
    found, scale = best.forecast, seconds / max(best.forecast.seconds, 1e-12)
    others = [(each.steps, each.forecast) for each in walked if each is not best]
    return tuple(
        Alternative(
            _shape_note(steps),
            other.moved_bytes,
            other.seconds * scale,
            f"{other.seconds / max(found.seconds, 1e-9):.2f} x the time, "
            f"{other.moved_bytes / max(found.moved_bytes, 1):.2f} x the bytes",
        )
        for steps, other in others[:3]
    )
