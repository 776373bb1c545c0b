"""What an optimiser at O0 to O3 would remove from what was read: counted, not guessed.

    O0  everything as it stands
    O1  literals folded, code that is never reached left out
    O2  what a loop does not change computed once before it, what was computed before in the same run of
        statements used again, runs of tensor operations merged into one loop
    O3  plain innermost loops done ``LANES`` elements at a time

Each level does what the ones before it do. A loop's iteration costs one operation; a loop whose number of
iterations the text does not tell counts as ``ASSUMED_TRIPS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accelera.errors import UnknownNameError
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.source.reading import Evaluation, FunctionFacts, LoopFacts

LEVELS = ("O0", "O1", "O2", "O3")
LANES = 4
"""Elements that a vector instruction does at once: 256 bits of float64."""


@dataclass(frozen=True)
class LevelPrediction:
    """What is left to do at one level."""

    level: str
    operations: Figure
    """Evaluations of arithmetic, calls and subscripts, and iterations."""
    relative_time: Figure
    """Operations as a share of those at O0."""
    folded: Figure
    """Operations on literals and in dead code, as written, that O1 removes."""
    hoisted: Figure
    """Operations as written that O2 moves out of a loop."""
    shared: Figure
    """Operations as written that repeat an earlier one."""
    vectorised_loops: Figure
    tensor_loops: Figure
    """Loops over tensors: one per operation, or one per run of operations where they merge."""


def checked_level(level: str) -> int:
    """Return the number of ``level``; raises UnknownNameError."""
    name = str(level).upper().lstrip("-")
    if name not in LEVELS:
        raise UnknownNameError.among("opt_level", level, LEVELS)
    return LEVELS.index(name)


def predict_level(functions: Sequence[FunctionFacts], level: int) -> LevelPrediction:
    """Return what is left at ``level``, 0 to 3."""
    whole, left = _operations(functions, 0), _operations(functions, level)
    repeated = [each for function in functions for each in _repeated(function.evaluations)]
    written = [each for function in functions for each in function.evaluations]
    plain = sum(loops[-1].plain for function in functions for loops in function.iterations)
    return LevelPrediction(
        LEVELS[level],
        Figure(left, ""),
        Figure(left / whole if whole else 1.0, ""),
        Figure(sum(each.constant or each.dead for each in written) if level >= 1 else 0, ""),
        Figure(sum(_moves(each) for each in written) if level >= 2 else 0, ""),
        Figure(len(repeated) if level >= 2 else 0, ""),
        Figure(plain if level >= 3 else 0, ""),
        Figure(_tensor_loops(functions, merged=level >= 2), ""),
    )


def _operations(functions: Iterable[FunctionFacts], level: int) -> float:
    total = 0.0
    for function in functions:
        gone = {id(each) for each in _repeated(function.evaluations)} if level >= 2 else set()
        total += sum(_cost(each, level) for each in function.evaluations if id(each) not in gone)
        total += sum(_iterations(loops, level) for loops in function.iterations)
    return total


def _cost(each: Evaluation, level: int) -> float:
    if level >= 1 and (each.constant or each.dead):
        return 0.0
    loops = list(each.loops)
    if level >= 2 and each.pure:
        while loops and _unchanged_in(loops[-1], each):
            loops.pop()
    cost = 1.0
    for loop in loops:
        cost *= loop.trips
    return cost / LANES if level >= 3 and loops and loops[-1].plain else cost


def _iterations(loops: Sequence[LoopFacts], level: int) -> float:
    count = 1.0
    for loop in loops:
        count *= loop.trips
    return count / LANES if level >= 3 and loops[-1].plain else count


def _moves(each: Evaluation) -> bool:
    """Whether the innermost loop around it does not change it."""
    live = each.pure and not each.constant and not each.dead
    return live and bool(each.loops) and _unchanged_in(each.loops[-1], each)


def _unchanged_in(loop: LoopFacts, each: Evaluation) -> bool:
    return not each.names & loop.changed and not (loop.calls and each.reads_containers)


def _repeated(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return pure operations that the same run of statements has evaluated before, nothing changed since."""
    seen: set[tuple[int, str]] = set()
    repeated = []
    for each in evaluations:
        key = each.block, each.key
        if each.pure and not each.constant and not each.dead and key in seen:
            repeated.append(each)
        seen.add(key)
    return repeated


def _tensor_loops(functions: Iterable[FunctionFacts], *, merged: bool) -> int:
    total = 0
    for function in functions:
        total += sum(function.tensor_ops.values())
        if merged:
            total -= sum(length - 1 for length in function.chains if length > 1)
    return total
