"""Prediction from source text alone: what O0 to O3 would remove, counted; nothing is run or imported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from accelera._text_table import text_table
from accelera.errors import UnknownNameError
from accelera.simulator.compiling.figure import Figure, as_json
from accelera.simulator.compiling.source_reader import (
    ASSUMED_TRIPS,
    FunctionFacts,
    LoopFacts,
    SourceOperation,
    read_python,
)

_COMMENTS_AND_TEXTS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_WORDS = {
    "loops": r"\b(?:for|while|do|loop)\b",
    "branches": r"\b(?:if|switch|match|case)\b",
    "functions": r"\b(?:fn|func|function|def|void|int|float|double|auto)\s+\w+\s*\(",
    "operations": r"[-+*/%]=?(?![-+*/>])",
}


def count_keywords(text: str) -> dict[str, int]:
    """Return how often loops, branches, functions and arithmetic signs are written, comments left out.

    >>> count_keywords("for (int i = 0; i < n; i++) { a[i] += b[i]; } // for all")["loops"]
    1
    """
    code = _COMMENTS_AND_TEXTS.sub(" ", text)
    found = {what: len(re.findall(pattern, code)) for what, pattern in _WORDS.items()}
    return {**found, "lines": sum(bool(line.strip()) for line in code.splitlines())}


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
        Figure(sum(_is_hoistable(each) for each in written) if level >= 2 else 0, ""),
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


def _cost(each: SourceOperation, level: int) -> float:
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


def _is_hoistable(each: SourceOperation) -> bool:
    """Return whether it can be moved out of its innermost loop: nothing in the loop changes it."""
    live = each.pure and not each.constant and not each.dead
    return live and bool(each.loops) and _unchanged_in(each.loops[-1], each)


def _unchanged_in(loop: LoopFacts, each: SourceOperation) -> bool:
    return not each.names & loop.changed and not (loop.calls and each.reads_containers)


def _repeated(evaluations: Sequence[SourceOperation]) -> list[SourceOperation]:
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


_NOT_PARSED = "not parsed: keywords are counted, and nothing is said of optimisation"


@dataclass(frozen=True)
class FunctionPrediction:
    """One function in numbers."""

    name: str
    line: int
    arguments: Figure
    loops: Figure
    deepest: Figure
    """Loops within loops."""
    branches: Figure
    calls: Figure
    tensor_ops: dict[str, Figure]
    """How often each tensor operation is written."""


@dataclass(frozen=True)
class SourcePrediction:
    """Everything ``predict_compile`` says of a source text."""

    language: str
    opt_level: str
    model_type: str
    lines: Figure
    functions: tuple[FunctionPrediction, ...]
    """The module's own statements first, where there are any."""
    counts: dict[str, Figure]
    """Loops, branches, calls … of the whole text."""
    tensor_ops: dict[str, Figure]
    levels: tuple[LevelPrediction, ...]
    """O0 to O3; empty when the text was not parsed."""
    notes: tuple[str, ...]
    """What the figures rest on."""

    @property
    def level(self) -> LevelPrediction | None:
        """The prediction for ``opt_level``; None when the text was not parsed."""
        return self.levels[LEVELS.index(self.opt_level)] if self.levels else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; every number carries its unit and its source."""
        found: dict[str, Any] = as_json(self)
        return found

    def table(self) -> str:
        """Return the figures as text tables."""
        counts = text_table([(what, figure.text) for what, figure in self.counts.items()])
        return "\n\n".join(part for part in (counts, self._functions(), self._levels()) if part)

    def explain(self) -> str:
        """Return what the figures mean, in sentences."""
        ops = ", ".join(f"{figure.text} {op}" for op, figure in self.tensor_ops.items()) or "none"
        counts = ", ".join(f"{figure.text} {what}" for what, figure in self.counts.items())
        said = [f"{self.lines.text} lines of {self.language}: {counts}.", f"Tensor operations: {ops}."]
        level = self.level
        if level is not None:
            said.append(
                f"At {level.level} {level.relative_time.value:.0%} of the operations are left: "
                f"{level.folded.text} folded, {level.hoisted.text} moved out of loops, {level.shared.text} "
                f"shared, {level.vectorised_loops.text} loops vectorised, "
                f"{level.tensor_loops.text} tensor loops."
            )
        return "\n".join([*said, *(f"Note: {note}." for note in self.notes)])

    def _functions(self) -> str:
        head = ("function", "line", "loops", "deepest", "branches", "calls", "tensor ops")
        rows = [
            (
                each.name,
                str(each.line),
                *(figure.text for figure in (each.loops, each.deepest, each.branches, each.calls)),
                str(sum(int(count.value or 0) for count in each.tensor_ops.values())),
            )
            for each in self.functions
        ]
        return text_table([head, *rows]) if rows else ""

    def _levels(self) -> str:
        head = ("level", "operations", "left", "folded", "hoisted", "shared", "vectorised", "tensor loops")
        rows = [
            (
                f"{each.level}{' *' if each.level == self.opt_level else ''}",
                each.operations.text,
                f"{each.relative_time.value:.0%}",
                *(figure.text for figure in (each.folded, each.hoisted, each.shared)),
                *(figure.text for figure in (each.vectorised_loops, each.tensor_loops)),
            )
            for each in self.levels
        ]
        return text_table([head, *rows]) if rows else ""


def predict_source(
    text: str, *, opt_level: str = "O2", model_type: str = "", language: str = "python"
) -> SourcePrediction:
    """Predict from source text alone what optimising it would bring; the text is never run.

    Parameters
    ----------
    opt_level
        ``O0`` to ``O3``: which level ``explain`` speaks of; all are predicted.
    model_type
        Passed on, as the seed's callers give it.
    language
        ``python`` is parsed. Of any other only keywords are counted, and the result says so.

    Raises
    ------
    ProgramSyntaxError
        The text is no Python; the message names the line.
    UnknownNameError
        There is no such level.
    """
    level = LEVELS[checked_level(opt_level)]
    if language.lower() not in {"python", "py"}:
        return _counted(text, level, model_type, language)
    functions = [
        each for each in read_python(text) if each.name != "<module>" or each.evaluations or each.loops
    ]
    tensor_ops = sum((each.tensor_ops for each in functions), Counter[str]())
    return SourcePrediction(
        language="Python",
        opt_level=level,
        model_type=model_type,
        lines=Figure(sum(bool(line.strip()) for line in text.splitlines()), ""),
        functions=tuple(map(_function, functions)),
        counts=_totals(functions),
        tensor_ops=_figures(tensor_ops),
        levels=tuple(predict_level(functions, number) for number in range(len(LEVELS))),
        notes=_notes(functions),
    )


def _counted(text: str, level: str, model_type: str, language: str) -> SourcePrediction:
    counts = count_keywords(text)
    lines = Figure(counts.pop("lines"), "")
    figures = {what: Figure(count, "") for what, count in counts.items()}
    return SourcePrediction(language, level, model_type, lines, (), figures, {}, (), (_NOT_PARSED,))


def _function(facts: FunctionFacts) -> FunctionPrediction:
    return FunctionPrediction(
        facts.name,
        facts.line,
        Figure(facts.arguments, ""),
        Figure(facts.loops, ""),
        Figure(facts.deepest, ""),
        Figure(facts.branches, ""),
        Figure(facts.calls, ""),
        _figures(facts.tensor_ops),
    )


def _totals(functions: list[FunctionFacts]) -> dict[str, Figure]:
    counts = {
        "functions": sum(each.name != "<module>" for each in functions),
        "loops": sum(each.loops for each in functions),
        "deepest loops": max((each.deepest for each in functions), default=0),
        "branches": sum(each.branches for each in functions),
        "calls": sum(each.calls for each in functions),
    }
    return {what: Figure(count, "") for what, count in counts.items()}


def _figures(counts: Counter[str]) -> dict[str, Figure]:
    return {
        op: Figure(count, "") for op, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    }


def _notes(functions: list[FunctionFacts]) -> tuple[str, ...]:
    notes = ["seconds and energy depend on the machine and the data, which the text does not tell"]
    loops = [each[-1] for function in functions for each in function.iterations]
    unknown = sum(not loop.known for loop in loops)
    if unknown:
        notes.append(
            f"{unknown} of {len(loops)} loops do not say how often they run; {ASSUMED_TRIPS} is assumed"
        )
    return tuple(notes)
