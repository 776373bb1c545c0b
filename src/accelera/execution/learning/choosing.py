"""The strategy for a batch of which something has been measured."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from accelera.execution.decision import Decision
from accelera.execution.learning.entry import Choice, Entry
from accelera.execution.learning.forecast import Forecast, forecast, pace_of
from accelera.execution.learning.learner import Sides
from accelera.execution.learning.rates import NEEDED
from accelera.execution.pace import Pace
from accelera.execution.strategy import ExecutionStrategy, Kind

RESAMPLED = 0.01
"""At most this part of the time goes into measuring anew what was not chosen."""
UNKNOWN_BEGIN_S = 0.3
"""What a GPU is taken to need before its first piece, while nobody has seen it begin."""

TRIFLE_S = 2e-4
"""A batch that one of the CPU's workers does in so little is done before a GPU has begun."""

_BOTH = ExecutionStrategy.Hybrid()
_TRIFLE = Decision(
    ExecutionStrategy.CpuOnly, "learned rates", ("the CPU is through with it before a GPU has begun",)
)


class Situation(NamedTuple):
    """Everything that matters beside the measurements."""

    task_count: int
    """Tasks of the batch, at least 1."""
    sides: Sides
    """Who could run them."""
    speeds: tuple[float, float] = (1.0, 1.0)
    """Shares of CPU and GPU that others leave."""
    begin_s: float = 0.0
    """Seconds until the GPU is usable, as far as is known."""
    begun: bool = True
    """Whether it has run something in this process."""
    fitting: int | None = None
    """Tasks that fit it at once; None: any number."""
    repeats: bool = False
    """Whether a side may take over tasks that the other is late with."""


Facts = tuple[int, Sides, tuple[float, float], float, bool, "int | None", bool]
"""The fields of a ``Situation`` in their order."""


def standing(entry: Entry, now: Facts) -> Decision | None:
    """Return what was decided when everything was as it is ``now``; None where something has changed."""
    choice = entry.choice
    if choice is None or choice.now != now:
        return None
    if choice.decision.strategy.kind is Kind.HYBRID:
        return choice.decision
    return _sampled_anew(entry, Situation(*now), choice.decision, choice.pace)


def choose(entry: Entry, now: Situation, tree: Decision) -> Decision:
    """Return the strategy that is predicted to be the soonest; ``tree``'s while samples are missing."""
    sides = now.sides
    cpu_samples, gpu_samples = entry.samples(sides.cpu_model), entry.samples(sides.gpu_model)
    if min(cpu_samples, gpu_samples) < NEEDED:
        return _gathering(entry, now, tree, cpu_samples, gpu_samples)
    if entry.estimates[sides.cpu_model].task_s * now.task_count < TRIFLE_S:
        return _TRIFLE
    choice = entry.choice = _chosen(entry, now, {sides.cpu: cpu_samples, sides.gpu: gpu_samples})
    return _sampled_anew(entry, now, choice.decision, choice.pace)


def _chosen(entry: Entry, now: Situation, samples: dict[str, int]) -> Choice:
    estimates = entry.estimates
    pace, said = prediction(entry, now)
    strategy, reason = _soonest(said)
    decision = Decision(
        strategy,
        "learned rates",
        (reason, _described(pace, now)),
        strategy.kind is Kind.HYBRID,
        said.by_name(),
        samples,
        _handed_on(pace, now) if strategy.kind is Kind.HYBRID else None,
    )
    return Choice(now, estimates, decision, pace)


def prediction(entry: Entry, now: Situation) -> tuple[Pace, Forecast]:
    """Return the pace of both sides and what a batch would take; both sides have been measured."""
    cpu, gpu = entry.estimates[now.sides.cpu_model], entry.estimates[now.sides.gpu_model]
    pace = pace_of(cpu, gpu, now.sides.workers, now.speeds, now.begin_s)
    uncertainty = (cpu.uncertainty**2 + gpu.uncertainty**2) ** 0.5
    return pace, forecast(now.task_count, pace, now.fitting, uncertainty, repeats=now.repeats)


def _handed_on(pace: Pace, now: Situation) -> Pace:
    """Return the pace for the batch: a long task does no harm where the GPU may take it over."""
    return pace._replace(late_s=0.0) if now.repeats else pace


def _soonest(said: Forecast) -> tuple[ExecutionStrategy, str]:
    both = said.hybrid_s <= said.gpu_s or said.hybrid_needed > 1
    name, strategy = ("GPU and CPU", _BOTH) if both else ("the GPU alone", ExecutionStrategy.GpuOnly)
    seconds, needed = (said.hybrid_s, said.hybrid_needed) if both else (said.gpu_s, said.gpu_needed)
    share = seconds / said.cpu_s
    told = f"{name} should take {share:.0%} of the CPU's time"
    if needed > 1:
        return strategy, f"{told}, and whoever is late is relieved of tasks"
    if share < needed:
        return strategy, f"{told}, less than {needed:.0%}"
    return ExecutionStrategy.CpuOnly, f"{told}, not less than {needed:.0%}"


def _described(pace: Pace, now: Situation) -> str:
    begin = f", {pace.begin_s:.3g} s before the first" if pace.begin_s else ""
    return (
        f"a task takes {1e3 * pace.cpu_task_s:.3g} ms on one of {pace.workers} workers of {now.sides.cpu},"
        f" {1e3 * pace.gpu_task_s:.3g} ms on {now.sides.gpu} and {1e3 * pace.launch_s:.3g} ms a piece{begin}"
    )


def _sampled_anew(entry: Entry, now: Situation, chosen: Decision, pace: Pace) -> Decision:
    """Return ``chosen``, or both sides where one has not been measured for long enough to afford it."""
    if chosen.strategy.kind is Kind.HYBRID:
        return chosen
    if chosen.strategy.kind is Kind.CPU_ONLY:
        device, model = now.sides.gpu, now.sides.gpu_model
        cost_s = pace.begin_s + pace.gpu_s(max(1, now.task_count // 16))
    else:
        device, model, cost_s = now.sides.cpu, now.sides.cpu_model, pace.cpu_task_s
    since_s = entry.since.get(model, 0.0)
    if RESAMPLED * since_s < cost_s:
        return chosen
    reason = (
        f"{device} was last measured {since_s:.3g} s of work ago: {RESAMPLED:.0%} of that pays for a look"
    )
    return replace(
        chosen, strategy=_BOTH, rule="sampling anew", reasons=(reason, *chosen.reasons), dynamic=True
    )


def _gathering(entry: Entry, now: Situation, tree: Decision, cpu_samples: int, gpu_samples: int) -> Decision:
    """Return the tree's decision, or both sides where the tree would never measure one of them."""
    kind = tree.strategy.kind
    if kind is Kind.GPU_ONLY and cpu_samples < NEEDED:
        due = entry.batches % 2 == 1
    elif kind is Kind.GPU_ONLY:
        due = True  # the CPU is known, and pulls what a GPU that may be slow by now does not
    elif kind is Kind.CPU_ONLY and gpu_samples < NEEDED and now.task_count > 1:
        unknown_s = 0.0 if now.begun else now.begin_s or UNKNOWN_BEGIN_S
        since_s = entry.since.get(now.sides.gpu_model, entry.seconds)
        due = RESAMPLED * since_s >= max(unknown_s, TRIFLE_S)
    else:
        due = False
    if not due:
        return tree
    reasons = (*tree.reasons, missing_of(now.sides, cpu_samples, gpu_samples))
    return replace(tree, strategy=_BOTH, rule="gathering samples", reasons=reasons, dynamic=True)


def missing_of(sides: Sides, cpu_samples: int, gpu_samples: int) -> str:
    """Return in words what there is too little of."""
    have = [f"{sides.cpu} has {cpu_samples}"] + ([f"{sides.gpu} has {gpu_samples}"] if sides.gpu else [])
    what = "compare the devices" if sides.gpu else "predict"
    return f"too little is measured to {what}: {', '.join(have)} of {NEEDED} samples"
