"""What a compiler would make of a source text: the public face of this folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from accelera.simulator.compiling.figure import Figure, as_json
from accelera.simulator.compiling.source.counting import count_keywords
from accelera.simulator.compiling.source.levels import LEVELS, LevelPrediction, checked_level, predict_level
from accelera.simulator.compiling.source.reading import ASSUMED_TRIPS, FunctionFacts, read_python
from accelera.text_table import text_table

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
    SyntaxError
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
