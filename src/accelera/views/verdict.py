"""Verdict on a trace in a budget: the fit, and the cost of what does not fit, in figures and words."""

from __future__ import annotations

from dataclasses import dataclass

from accelera._plotting import format_budget, format_size
from accelera.views.comparison import PLAIN
from accelera.views.facts import JsonView, MeasuredTrace, Per, workload_of
from accelera.views.presets import model_name
from accelera.views.wording import longer, policy_label, share_more


@dataclass(frozen=True)
class LoadedAhead:
    """The same budget and policy, with operands loaded before their step begins."""

    lookahead: int
    """Steps that are loaded ahead."""
    seconds: float
    """Per unit."""
    slowdown: float
    moved_bytes: int
    """Per unit; more than without loading ahead, for room is taken earlier."""


@dataclass(frozen=True)
class Verdict(JsonView):
    """Need of a trace, what is missing or left, and what that costs; figures per unit, first load aside.

    What only a schedule that runs can have is None where none runs.
    """

    fits: bool
    """Whether everything alive at once fits the budget: needs <= budget."""
    runs: bool
    """Whether the operands of every step fit the budget, so that a schedule exists: floor <= budget."""
    needs_bytes: int
    budget_bytes: int
    short_bytes: int
    """Bytes that are missing; negative or 0: bytes that are left."""
    floor_bytes: int
    floor_op: str
    """Operation of the step that has the most operands, in words."""
    per: Per
    units: int
    compute_seconds: float
    """Arithmetic alone, which is what room for everything would take."""
    best_policy: str | None = None
    """Of those compared, the one that moves the fewest bytes."""
    best_needs_schedule: bool | None = None
    moved_bytes: int | None = None
    seconds: float | None = None
    slowdown: float | None = None
    """Seconds over ``compute_seconds``; None also where arithmetic takes no time."""
    ahead: LoadedAhead | None = None
    """What loading ahead would save, where that is more than 3 %."""
    plain_policy: str = PLAIN
    plain_moved_bytes: int | None = None
    ratio: float | None = None
    """Bytes of the plain policy over those of the best; None where the best moves nothing and it does."""
    least_bytes: int | None = None
    headline: str = ""
    sentence: str = ""


_VERBS = {"training": "Training", "decode": "Generating with", "inference": "Running"}


def headline_of(facts: MeasuredTrace, verdict: Verdict) -> str:
    """Return what is needed, and what is missing or left."""
    need = f"{subject_of(facts)} needs {format_size(verdict.needs_bytes)}."
    if verdict.fits:
        left = -verdict.short_bytes
        return f"{need} It fits, with {format_size(left)} left." if left else f"{need} It just fits."
    return f"{need} You are {format_size(verdict.short_bytes)} short."


def subject_of(facts: MeasuredTrace) -> str:
    """Return what is run: ``Training a 1.3B model``; ``This trace`` where that is not known."""
    workload = workload_of(facts.trace)
    verb = _VERBS.get(str(workload.get("mode", "")))
    if verb is None:
        return "This trace"
    name = model_name({**workload, "model_type": facts.trace.model_type})
    if name is not None:
        return f"{verb} a {name} model"
    kind = {"Transformer": "a transformer", "CNN": "a CNN", "MLP": "an MLP", "MoE": "a mixture of experts"}
    weights = sum(
        size
        for size, role in zip(facts.trace.size_bytes.tolist(), facts.trace.roles, strict=True)
        if role == "weight"
    )
    parameters = weights // {"float64": 8, "float32": 4}.get(str(workload.get("dtype")), 2)
    what = kind.get(facts.trace.model_type, "a model")
    return f"{verb} {what} of {_count(parameters)} parameters"


def sentence_of(verdict: Verdict) -> str:
    """Return what the budget costs, which policy that takes, and what the plain one would cost."""
    if not verdict.runs:
        return (
            f"No schedule runs in {format_budget(verdict.budget_bytes)}: the operands of one operation "
            f"({verdict.floor_op}) take {format_size(verdict.floor_bytes)} together, and that is the least."
        )
    if verdict.fits and verdict.moved_bytes:
        return (
            f"Everything fits, but loading operations ahead takes room from what is needed: it moves "
            f"{format_size(verdict.moved_bytes)} per {verdict.per}, and nothing without loading ahead."
        )
    if verdict.fits:
        return "Nothing has to be moved after the first load, whatever the policy."
    if not verdict.moved_bytes:
        return (
            "It still runs without moving anything after the first load: what does not fit is not used again."
        )
    parts = [f"It still runs, {_time(verdict)}moving {format_size(verdict.moved_bytes)} per {verdict.per} "]
    parts.append(f"under {_best(verdict)}")
    parts.append(_plain_words(verdict))
    least = verdict.least_bytes
    if least is not None:
        parts.append(f" No schedule moves less than {format_size(least)}." if least else "")
    return "".join(parts)


def _time(verdict: Verdict) -> str:
    if verdict.slowdown is None:
        return ""
    words = longer(verdict.slowdown)
    if verdict.ahead is not None and longer(verdict.ahead.slowdown) != words:
        steps = f"{verdict.ahead.lookahead} operations" if verdict.ahead.lookahead > 1 else "one operation"
        words += f" ({longer(verdict.ahead.slowdown)} when {steps} load ahead{_more_moved(verdict)})"
    return f"{words}, "


def _more_moved(verdict: Verdict) -> str:
    """Return what loading ahead moves, where that is not what the sentence says anyway."""
    assert verdict.ahead is not None
    moved = format_size(verdict.ahead.moved_bytes)
    return "" if moved == format_size(verdict.moved_bytes or 0) else f", which moves {moved}"


def _best(verdict: Verdict) -> str:
    label = policy_label(verdict.best_policy or "")
    return f"{label}, which must know the schedule" if verdict.best_needs_schedule else label


def _plain_words(verdict: Verdict) -> str:
    if verdict.best_policy == verdict.plain_policy or verdict.plain_moved_bytes is None:
        return ", the best of those compared."
    label, moved = policy_label(verdict.plain_policy), format_size(verdict.plain_moved_bytes)
    if verdict.ratio is None or verdict.ratio < 1.005:
        return f"; {label} moves as much."
    return f"; {label} would move {moved}, {share_more(verdict.ratio)}."


def _count(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
