"""Prediction of a compiled program: memory, fusion, time and budgets as figures, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accelera._text_table import text_table
from accelera.simulator.compiling.budget_fit import FITS, INFEASIBLE, Fit, TracedBudgetPlan
from accelera.simulator.compiling.figure import Figure, Source, as_json
from accelera.simulator.compiling.max_batch import BudgetLimit
from accelera.simulator.compiling.timing import StepTime, TimePrediction
from accelera.trace import Kind, Occupancy, Trace
from accelera.trace._internal import largest_op

TOP = 20


@dataclass(frozen=True)
class PeakTensor:
    """A tensor that lies in memory at the peak."""

    name: str
    role: str
    size: Figure
    made_by: str
    """The operation that wrote it last; ``""`` when it was there before."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Peak memory of the program as it was traced."""

    peak: Figure
    peak_op: str
    """The operation that runs at the peak."""
    peak_step: int
    by_role: dict[str, Figure]
    """Bytes at the peak by role, the most first."""
    top: tuple[PeakTensor, ...]
    """The largest tensors at the peak."""
    hard_floor: Figure
    """Most bytes that one step touches: with less, no schedule runs it whole."""
    hard_floor_op: str


def predict_memory(held: Occupancy) -> MemoryPrediction:
    """Return what is held at the peak of a replay."""
    trace, source = held.trace, source_of(held.trace)
    event = max(held.peak_event, 0)
    floor = largest_op(trace)
    step = int(trace.step[event]) if len(trace) else 0
    return MemoryPrediction(
        peak=Figure(held.peak_bytes, "B", source),
        peak_op=trace.ops[step] if trace.step_count else "",
        peak_step=step,
        by_role={
            role or "other": Figure(nbytes, "B", source) for role, nbytes in held.peak_by_role().items()
        },
        top=_top(held, event, source),
        hard_floor=Figure(floor.size_bytes, "B", source),
        hard_floor_op=floor.op,
    )


def source_of(trace: Trace) -> Source:
    """Return whether a trace's sizes were counted in a real run or followed from shapes."""
    return "measured" if trace.meta.get("fake") is False else "analytic"


def _top(held: Occupancy, event: int, source: Source) -> tuple[PeakTensor, ...]:
    trace = held.trace
    writer: dict[int, str] = {}
    for buffer, kind, step in zip(trace.buffer[: event + 1], trace.kind, trace.step, strict=False):
        if kind == Kind.WRITE:
            writer[int(buffer)] = trace.ops[step]
    return tuple(
        PeakTensor(
            trace.names[buffer],
            trace.roles[buffer] or "other",
            Figure(int(trace.size_bytes[buffer]), "B", source),
            writer.get(buffer, ""),
        )
        for buffer in held.largest_at_peak[:TOP].tolist()
    )


_LISTED = 8


@dataclass(frozen=True)
class Fusion:
    """Operations that become one kernel, wherever the program has them."""

    ops: tuple[str, ...]
    phase: str
    """``forward``, ``backward`` or ``optimizer``."""
    count: Figure
    """How many such kernels there are."""
    saved_bytes: Figure
    """Of all of them together."""
    saved_launches: Figure


@dataclass(frozen=True)
class FusionPrediction:
    """The compiled program beside the traced one."""

    eager_launches: Figure
    launches: Figure
    eager_traffic: Figure
    """Bytes that the traced steps read and write."""
    traffic: Figure
    """Bytes that the kernels read and write."""
    peak: Figure
    """Peak memory without what stays inside kernels."""
    fusions: tuple[Fusion, ...]
    """The largest, by bytes saved."""


@dataclass(frozen=True)
class CompilePrediction:
    """Everything ``predict_compile`` says of a traced program."""

    model_type: str
    machine: str
    steps: int
    memory: MemoryPrediction
    fusion: FusionPrediction
    time: TimePrediction
    fits: tuple[Fit, ...]
    limits: tuple[BudgetLimit, ...]
    plans: tuple[TracedBudgetPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; every number carries its unit and its source."""
        found: dict[str, Any] = as_json(self)
        return found

    def table(self) -> str:
        """Return the figures as text tables."""
        return _tabulated(self)

    def explain(self) -> str:
        """Return what the figures mean, in sentences."""
        return _explained(self)


def _tabulated(found: CompilePrediction) -> str:
    """Return the figures of a prediction as text tables."""
    parts = [_facts(found), _memory(found), _fusions(found), _budgets(found), _limits(found)]
    return "\n\n".join(part for part in parts if part)


def _explained(found: CompilePrediction) -> str:
    """Return a prediction in sentences."""
    return "\n".join([*_memory_sentences(found), *_budget_sentences(found), *_time_sentences(found)])


def _facts(found: CompilePrediction) -> str:
    time, fusion = found.time, found.fusion
    eager, compiled = time.eager, time.compiled
    return text_table(
        [
            (found.model_type or "program", "as traced", "compiled"),
            ("launches", fusion.eager_launches.text, fusion.launches.text),
            ("traffic", fusion.eager_traffic.text, fusion.traffic.text),
            ("peak memory", found.memory.peak.text, fusion.peak.text),
            (f"time on {found.machine}", eager.total.text, compiled.total.text),
            ("  expected from", eager.low.text, compiled.low.text),
            ("  expected to", eager.high.text, compiled.high.text),
            ("  arithmetic", eager.compute.text, compiled.compute.text),
            ("  memory", eager.bandwidth.text, compiled.bandwidth.text),
            ("  launches", eager.launches.text, compiled.launches.text),
            ("bound by", eager.bound, compiled.bound),
        ]
    )


def _memory(found: CompilePrediction) -> str:
    memory = found.memory
    roles = [(role, size.text, "") for role, size in memory.by_role.items()]
    largest = [(f"  {each.name}", each.size.text, each.role) for each in memory.top[:_LISTED]]
    head = (f"at the peak ({memory.peak_op}, step {memory.peak_step})", memory.peak.text, "")
    floor = (f"hard floor ({memory.hard_floor_op})", memory.hard_floor.text, "")
    return text_table([head, *roles, ("largest tensors", "", ""), *largest, floor])


def _fusions(found: CompilePrediction) -> str:
    rows = [
        (_shortened(each), each.phase, each.saved_bytes.text, each.saved_launches.text)
        for each in found.fusion.fusions[:_LISTED]
    ]
    return text_table([("merged", "phase", "bytes saved", "launches saved"), *rows]) if rows else ""


def _shortened(fusion: Fusion) -> str:
    ops, count = fusion.ops, fusion.count.value or 1
    names = list(ops[:6]) + ([f"… {len(ops) - 6} more"] if len(ops) > 6 else [])
    return " + ".join(names) + (f" (x{count})" if count > 1 else "")


@dataclass(frozen=True)
class _BudgetRow:
    """The quickest way to stay within one budget: moving what is not needed just now, or a plan."""

    budget: Figure
    fit: Fit | None
    plan: TracedBudgetPlan | None

    @property
    def planned(self) -> bool:
        """Whether the plan is the way, and not moving alone."""
        if self.plan is None or self.plan.added.value is None or not self.plan.feasible:
            return False
        moving_s = None if self.fit is None else self.fit.added.value
        return moving_s is None or self.plan.added.value <= moving_s

    @property
    def verdict(self) -> str:
        if self.fit is not None and (self.fit.verdict != INFEASIBLE or not self.planned):
            return self.fit.verdict
        if not self.planned or self.plan is None:
            return "no plan found"
        done = self.plan.offloaded, self.plan.recomputed, self.plan.dropped
        return "fits with a plan" if any(each.value for each in done) else FITS

    def row(self) -> tuple[str, ...]:
        bound = self.fit.bound if self.fit is not None else "–"
        if self.planned and self.plan is not None:
            plan = self.plan
            done = plan.peak.text, plan.offloaded.text, plan.recomputed.text, plan.dropped.text
            times = plan.added.text, _percent(plan.overlapped.value)
        elif self.fit is not None:
            done = "–", self.fit.traffic.text, "–", "–"
            times = self.fit.added.text, _percent(self.fit.overlapped.value)
        else:
            done, times = ("–",) * 4, ("–", "–")
        return (self.budget.text, self.verdict, *done, *times, bound)

    def sentence(self) -> str:
        if self.planned and self.plan is not None and self.verdict != FITS:
            return _plan_sentence(self.plan)
        if self.verdict == FITS:
            return f"It fits {self.budget.text}."
        if self.verdict == INFEASIBLE:
            return f"{self.budget.text} is less than one step needs: infeasible, however data is moved."
        if self.fit is not None:
            return (
                f"In {self.budget.text} it runs by moving {self.fit.traffic}, which adds {self.fit.added} to "
                f"a step; {_percent(self.fit.overlapped.value)} of the transfers are hidden behind computing."
            )
        lowest = "" if self.plan is None else f"; the lowest peak reached is {self.plan.peak.text}"
        return f"No plan was found for {self.budget.text}{lowest}."


def _budget_rows(found: CompilePrediction) -> list[_BudgetRow]:
    """Return one way per budget, in the order in which the budgets were given."""
    fits = {each.budget.value: each for each in found.fits}
    plans = {each.budget.value: each for each in found.plans}
    budgets = {
        **{size: each.budget for size, each in fits.items()},
        **{size: each.budget for size, each in plans.items()},
    }
    return [_BudgetRow(budget, fits.get(size), plans.get(size)) for size, budget in budgets.items()]


def _budgets(found: CompilePrediction) -> str:
    does = "peak", "offload", "recompute", "drop early", "added", "overlapped", "bound by"
    return text_table([("budget", "verdict", *does), *(way.row() for way in _budget_rows(found))])


def _limits(found: CompilePrediction) -> str:
    rows = [(each.budget.text, each.batch.text, each.context.text, each.how) for each in found.limits]
    return text_table([("budget", "largest batch", "largest context", "found by"), *rows]) if rows else ""


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _memory_sentences(found: CompilePrediction) -> Iterator[str]:
    memory = found.memory
    roles = ", ".join(f"{size.text} {role.replace('_', ' ')}" for role, size in memory.by_role.items())
    yield f"The peak is {memory.peak} in {memory.peak_op} (step {memory.peak_step}): {roles}."
    yield (f"No schedule needs less than {memory.hard_floor}, what {memory.hard_floor_op} touches at once.")


def _budget_sentences(found: CompilePrediction) -> Iterator[str]:
    for way in _budget_rows(found):
        yield way.sentence()
    for limit in found.limits:
        yield (
            f"Within {limit.budget.text} the largest batch is {limit.batch.text} and the largest context "
            f"{limit.context.text} ({limit.how})."
        )


def _time_sentences(found: CompilePrediction) -> Iterator[str]:
    fusion, time = found.fusion, found.time
    yield (
        f"Compiled, {fusion.eager_launches.text} launches become {fusion.launches.text} and "
        f"{fusion.eager_traffic.text} of traffic {fusion.traffic} on {found.machine}."
    )
    yield (
        f"A step takes {_ranged(time.eager)} as traced, bound by {time.eager.bound}, and "
        f"{_ranged(time.compiled)} compiled, bound by {time.compiled.bound}: {time.speedup.text} faster."
    )


def _ranged(time: StepTime) -> str:
    """Return the seconds with what is to be expected, where they were not measured."""
    if time.total.source == "measured":
        return str(time.total)
    return f"{time.total.text} ({time.total.source}; {time.low.text} to {time.high.text} is to be expected)"


def _plan_sentence(plan: TracedBudgetPlan) -> str:
    parts = (
        (plan.offloaded, "offloaded"),
        (plan.recomputed, "computed again"),
        (plan.dropped, "dropped"),
    )
    done = [f"{size.text} {what}" for size, what in parts if size.value]
    what = ", ".join(done) or "nothing to do"
    return f"Plan for {plan.budget.text}: {what}; peak {plan.peak}, {plan.added} added."
