"""Cost model: predicted seconds of a batch by each strategy, and the choice between them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from accelera.execution.strategy.history import CachedDecision, DevicePair, FunctionHistory
from accelera.execution.strategy.rates import NEEDED, DeviceRates, RateEstimate
from accelera.execution.strategy.strategy import Decision, ExecutionStrategy, StrategyKind

MARGIN = 0.05
"""A strategy that takes a GPU along must be so much faster than the CPU alone, beyond what is uncertain."""
MOST_UNCERTAIN = 0.5
"""Uncertainty above this counts as this much, so that a GPU that is clearly faster is still chosen."""
HYBRID_UNCERTAINTY_SHARE = 0.25
"""Part of the uncertainty that counts for a hybrid, which balances a wrong estimate while it runs."""
LATE = 2.0
"""A task may well take so many standard deviations more than usual."""
HYBRID_LAUNCHES = 3
"""Pieces that the GPU gets, on the whole, where both sides pull."""


class StrategyForecast(NamedTuple):
    """Seconds by strategy."""

    cpu_s: float
    gpu_s: float
    hybrid_s: float
    gpu_needed: float
    """The part of ``cpu_s`` that the GPU alone must stay below to be chosen."""
    hybrid_needed: float
    """The same for both together."""

    def by_name(self) -> dict[str, float]:
        """Return the seconds by the strategies' names."""
        return {"CpuOnly": self.cpu_s, "GpuOnly": self.gpu_s, "Hybrid": self.hybrid_s}


def device_rates(
    cpu: RateEstimate,
    gpu: RateEstimate,
    workers: int,
    speeds: tuple[float, float] = (1.0, 1.0),
    begin_s: float = 0.0,
) -> DeviceRates:
    """Return the pace on a machine of which others leave the given shares of CPU and GPU."""
    on_cpu, on_gpu = speeds
    late_s = (cpu.task_s + LATE * cpu.spread_s) / on_cpu
    return DeviceRates(
        cpu.task_s / on_cpu, workers, gpu.task_s / on_gpu, gpu.launch_s / on_gpu, begin_s, late_s
    )


def forecast(
    count: int, pace: DeviceRates, fitting: int | None, uncertainty: float, *, repeats: bool = False
) -> StrategyForecast:
    """Return what ``count`` tasks would take.

    Parameters
    ----------
    count
        Number of tasks, at least 1.
    pace
        Seconds of a task on either side.
    fitting
        Tasks that fit the GPU at once; None: any number.
    uncertainty
        Relative standard error of the ratio of both rates. Where both sides pull, wrong rates are mended on
        the way, and a part of it counts.
    repeats
        Whether a side takes over tasks that the other is late with: then both together are never later than
        one alone.
    """
    cpu_s = _cpu_s(count, pace)
    launches = 1 if fitting is None else math.ceil(count / fitting)
    gpu_s = pace.begin_s + launches * pace.launch_s + count * pace.gpu_task_s
    gpu_needed = 1 - MARGIN - min(uncertainty, MOST_UNCERTAIN)
    if repeats:
        hybrid_s = min(cpu_s, gpu_s, _balanced_s(count, pace, fitting))
        helps = pace.begin_s + pace.gpu_s(1) < cpu_s
        return StrategyForecast(cpu_s, gpu_s, hybrid_s, gpu_needed, math.inf if helps else 0.0)
    hybrid_s = _hybrid_s(count, pace, fitting)
    hybrid_needed = 1 - MARGIN - HYBRID_UNCERTAINTY_SHARE * min(uncertainty, MOST_UNCERTAIN)
    return StrategyForecast(cpu_s, gpu_s, hybrid_s, gpu_needed, hybrid_needed)


def _hybrid_s(count: int, pace: DeviceRates, fitting: int | None) -> float:
    """Return the seconds of both, with half a long task of the CPU at the end."""
    if pace.begin_s + HYBRID_LAUNCHES * pace.launch_s >= pace.cpu_s(count):
        return _cpu_s(count, pace) + pace.launch_s
    return max(_balanced_s(count, pace, fitting) + pace.late_s / 2, pace.cpu_task_s)


def _cpu_s(count: int, pace: DeviceRates) -> float:
    """Return the seconds of the CPU: the last task begun may be one of the long ones."""
    longer_s = (pace.late_s - pace.cpu_task_s) / (2 * LATE)
    even_s = pace.cpu_task_s * count / pace.workers
    return max(pace.cpu_task_s * math.ceil(count / pace.workers), even_s + longer_s)


def _balanced_s(count: int, pace: DeviceRates, fitting: int | None) -> float:
    """Return the seconds of both when they end together."""
    task_s = pace.gpu_task_s + (pace.launch_s / fitting if fitting is not None else 0.0)
    cpu_rate, gpu_rate = pace.workers / pace.cpu_task_s, 1 / task_s
    waiting_s = pace.begin_s + HYBRID_LAUNCHES * pace.launch_s
    return (count + waiting_s * gpu_rate) / (cpu_rate + gpu_rate)


RESAMPLED = 0.01
"""At most this part of the time goes into measuring again what was not chosen."""
UNKNOWN_BEGIN_S = 0.3
"""What a GPU is taken to need before its first piece, while nobody has seen it begin."""

NEGLIGIBLE_S = 2e-4
"""A batch that one of the CPU's workers does in so little is done before a GPU has begun."""

_BOTH = ExecutionStrategy.Hybrid()
_NEGLIGIBLE = Decision(
    ExecutionStrategy.CpuOnly, "learned rates", ("the CPU is through with it before a GPU has begun",)
)


class DecisionInputs(NamedTuple):
    """Inputs of a decision beside the measurements."""

    task_count: int
    """Tasks of the batch, at least 1."""
    sides: DevicePair
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


Facts = tuple[int, DevicePair, tuple[float, float], float, bool, "int | None", bool]
"""The fields of a ``DecisionInputs`` in their order."""


def cached_choice(entry: FunctionHistory, now: Facts) -> Decision | None:
    """Return what was decided when everything was as it is ``now``; None where something has changed."""
    choice = entry.choice
    if choice is None or choice.now != now:
        return None
    if choice.decision.strategy.kind is StrategyKind.HYBRID:
        return choice.decision
    return _resample_if_due(entry, DecisionInputs(*now), choice.decision, choice.pace)


def choose_strategy(entry: FunctionHistory, now: DecisionInputs, tree: Decision) -> Decision:
    """Return the strategy that is predicted to be the soonest; ``tree``'s while samples are missing."""
    sides = now.sides
    cpu_samples, gpu_samples = entry.samples(sides.cpu_model), entry.samples(sides.gpu_model)
    if min(cpu_samples, gpu_samples) < NEEDED:
        return _sampling_decision(entry, now, tree, cpu_samples, gpu_samples)
    if entry.estimates[sides.cpu_model].task_s * now.task_count < NEGLIGIBLE_S:
        return _NEGLIGIBLE
    choice = entry.choice = _predicted_choice(entry, now, {sides.cpu: cpu_samples, sides.gpu: gpu_samples})
    return _resample_if_due(entry, now, choice.decision, choice.pace)


def _predicted_choice(entry: FunctionHistory, now: DecisionInputs, samples: dict[str, int]) -> CachedDecision:
    estimates = entry.estimates
    pace, predicted = prediction(entry, now)
    strategy, reason = _fastest(predicted)
    decision = Decision(
        strategy,
        "learned rates",
        (reason, _rates_text(pace, now)),
        strategy.kind is StrategyKind.HYBRID,
        predicted.by_name(),
        samples,
        _batch_rates(pace, now) if strategy.kind is StrategyKind.HYBRID else None,
    )
    return CachedDecision(now, estimates, decision, pace)


def prediction(entry: FunctionHistory, now: DecisionInputs) -> tuple[DeviceRates, StrategyForecast]:
    """Return the pace of both sides and what a batch would take; both sides have been measured."""
    cpu, gpu = entry.estimates[now.sides.cpu_model], entry.estimates[now.sides.gpu_model]
    pace = device_rates(cpu, gpu, now.sides.workers, now.speeds, now.begin_s)
    uncertainty = (cpu.uncertainty**2 + gpu.uncertainty**2) ** 0.5
    return pace, forecast(now.task_count, pace, now.fitting, uncertainty, repeats=now.repeats)


def _batch_rates(pace: DeviceRates, now: DecisionInputs) -> DeviceRates:
    """Return the rates for the batch: late tasks do no harm where the GPU may run backup copies of them."""
    return pace._replace(late_s=0.0) if now.repeats else pace


def _fastest(predicted: StrategyForecast) -> tuple[ExecutionStrategy, str]:
    both = predicted.hybrid_s <= predicted.gpu_s or predicted.hybrid_needed > 1
    name, strategy = ("GPU and CPU", _BOTH) if both else ("the GPU alone", ExecutionStrategy.GpuOnly)
    seconds, needed = (
        (predicted.hybrid_s, predicted.hybrid_needed) if both else (predicted.gpu_s, predicted.gpu_needed)
    )
    share = seconds / predicted.cpu_s
    share_text = f"{name} should take {share:.0%} of the CPU's time"
    if needed > 1:
        return strategy, f"{share_text}, and whoever is late is relieved of tasks"
    if share < needed:
        return strategy, f"{share_text}, less than {needed:.0%}"
    return ExecutionStrategy.CpuOnly, f"{share_text}, not less than {needed:.0%}"


def _rates_text(pace: DeviceRates, now: DecisionInputs) -> str:
    begin = f", {pace.begin_s:.3g} s before the first" if pace.begin_s else ""
    return (
        f"a task takes {1e3 * pace.cpu_task_s:.3g} ms on one of {pace.workers} workers of {now.sides.cpu},"
        f" {1e3 * pace.gpu_task_s:.3g} ms on {now.sides.gpu} and {1e3 * pace.launch_s:.3g} ms a piece{begin}"
    )


def _resample_if_due(
    entry: FunctionHistory, now: DecisionInputs, chosen: Decision, pace: DeviceRates
) -> Decision:
    """Return ``chosen``, or both sides where one has not been measured for long enough to afford it."""
    if chosen.strategy.kind is StrategyKind.HYBRID:
        return chosen
    if chosen.strategy.kind is StrategyKind.CPU_ONLY:
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


def _sampling_decision(
    entry: FunctionHistory, now: DecisionInputs, tree: Decision, cpu_samples: int, gpu_samples: int
) -> Decision:
    """Return the tree's decision, or both sides where the tree would never measure one of them."""
    kind = tree.strategy.kind
    if kind is StrategyKind.GPU_ONLY and cpu_samples < NEEDED:
        due = entry.batches % 2 == 1
    elif kind is StrategyKind.GPU_ONLY:
        due = True  # the CPU is known, and pulls what a GPU that may be slow by now does not
    elif kind is StrategyKind.CPU_ONLY and gpu_samples < NEEDED and now.task_count > 1:
        unknown_s = 0.0 if now.begun else now.begin_s or UNKNOWN_BEGIN_S
        since_s = entry.since.get(now.sides.gpu_model, entry.seconds)
        due = RESAMPLED * since_s >= max(unknown_s, NEGLIGIBLE_S)
    else:
        due = False
    if not due:
        return tree
    reasons = (*tree.reasons, missing_samples(now.sides, cpu_samples, gpu_samples))
    return replace(tree, strategy=_BOTH, rule="gathering samples", reasons=reasons, dynamic=True)


def missing_samples(sides: DevicePair, cpu_samples: int, gpu_samples: int) -> str:
    """Return in words what there is too little of."""
    have = [f"{sides.cpu} has {cpu_samples}"] + ([f"{sides.gpu} has {gpu_samples}"] if sides.gpu else [])
    what = "compare the devices" if sides.gpu else "predict"
    return f"too little is measured to {what}: {', '.join(have)} of {NEEDED} samples"
