"""Which strategy a batch gets: the one that was given, the seed's tree, or what has been measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from accelera.execution.capabilities import HardwareCapabilities
from accelera.execution.decision import Decision
from accelera.execution.executors.availability import is_available
from accelera.execution.executors.contract import GpuExecutor
from accelera.execution.executors.gpu_memory import GpuMemory
from accelera.execution.kernel import Kernel
from accelera.execution.learning.choosing import (
    TRIFLE_S,
    Facts,
    Situation,
    choose,
    missing_of,
    prediction,
    standing,
)
from accelera.execution.learning.entry import Entry
from accelera.execution.learning.learner import Learner, Sample
from accelera.execution.learning.rates import NEEDED
from accelera.execution.load import SystemLoad
from accelera.execution.profile import WorkloadProfile
from accelera.execution.selection import PRESSURE, rule_for
from accelera.execution.strategy import ExecutionStrategy, Kind

SLOWEST = 0.5
"""Whatever others do, a device is taken to do half of what it does alone: they take turns."""
OWN_WORK_S = 1.0
"""A GPU that we have used so lately is busy with our own work, as far as its utilisation tells."""

_ALONE = Decision(ExecutionStrategy.CpuOnly, "no GPU", ("the manager was given no GPU",))

_UNREAD = None, (1.0, 1.0)

Fitting = Callable[[Callable[..., Any], int], "int | None"]
"""Returns how many tasks of a function, of so many bytes each, fit the GPU at once; None: any number."""


@final
class Decider:
    """Decides for one manager.

    Parameters
    ----------
    strategy
        What was given; ``Auto`` is decided for each batch.
    gpu
        The GPU that would be used; None: there is none.
    learner
        Knows what has been measured; None: the tree decides for ever.
    fitting
        Tells how many tasks fit the GPU at once.
    """

    def __init__(
        self,
        strategy: ExecutionStrategy,
        gpu: GpuExecutor | None,
        learner: Learner | None = None,
        fitting: Fitting = lambda function, memory_per_task: None,
    ) -> None:
        self._gpu = gpu
        self._memory = None if gpu is None else GpuMemory(gpu)
        self._learner = learner
        self._fitting = fitting
        self._gpu_used_s = -OWN_WORK_S
        self._left: tuple[SystemLoad | None, tuple[float, float]] = _UNREAD
        self._given = _given(strategy) if gpu is not None else _ALONE

    def decide(
        self,
        task_count: int,
        profile: WorkloadProfile | None,
        function: Callable[..., Any] | None,
        *,
        repeats: bool = False,
    ) -> Decision:
        """Return where ``task_count`` tasks are to run; ``repeats``: a late one may be begun twice."""
        if self._given is not None:
            if not self._given.dynamic or self._learner is None or function is None:
                return self._given
            return self._paced(self._given, task_count, profile, function)
        assert self._gpu is not None, "without a GPU everything is given"
        load, available = SystemLoad.current(), is_available(self._gpu)
        if self._learner is None or function is None or not task_count or not available:
            return self._by_the_tree(task_count, profile, load, available=available)
        entry = self._learner.known(function, profile)
        if entry is None:
            return self._by_the_tree(task_count, profile, load, available=available)
        facts = self._facts(task_count, profile, function, load, repeats=repeats)
        return standing(entry, facts) or choose(
            entry, Situation(*facts), self._by_the_tree(task_count, profile, load, available=available)
        )

    def explain(
        self, task_count: int, profile: WorkloadProfile, function: Callable[..., Any] | None
    ) -> Decision:
        """Return the decision with all that is known, also where it did not matter or does not suffice."""
        repeats = isinstance(function, Kernel) and function.pure
        decision = self.decide(task_count, profile, function, repeats=repeats)
        if decision.predicted_s or not task_count:
            return decision
        if self._learner is None:
            return _saying(decision, "nothing is measured: the manager does not learn")
        if function is None:
            return _saying(decision, "no function was given, so nothing measured can be looked up")
        entry = self._learner.known(function, profile)
        if entry is None:
            return _saying(
                decision, f"nothing is measured yet: predictions need {NEEDED} samples of each device"
            )
        return self._predicted(decision, entry, task_count, profile, function)

    def learn(
        self,
        function: Callable[..., Any],
        profile: WorkloadProfile | None,
        samples: Sequence[Sample],
        seconds: float,
    ) -> None:
        """Keep what the pieces of a batch, which took ``seconds``, tell of the devices' speed."""
        if self._learner is None or seconds < TRIFLE_S:
            return
        speeds = self._speeds(SystemLoad.current())
        if self._gpu is not None and any(device == self._learner.sides.gpu for device, _, _ in samples):
            self._gpu_used_s, self._left = time.monotonic(), _UNREAD
        self._learner.record(function, profile, samples, seconds, speeds)

    def _by_the_tree(
        self, count: int, profile: WorkloadProfile | None, load: SystemLoad, *, available: bool
    ) -> Decision:
        pressure = self._memory.pressure(load.gpu_memory_pressure) if self._memory and available else 0.0
        parallel = None if profile is None else profile.parallelization
        return _of_the_tree(count, parallel, available, pressure if pressure > PRESSURE else 0.0)

    def _paced(
        self, given: Decision, count: int, profile: WorkloadProfile | None, function: Callable[..., Any]
    ) -> Decision:
        assert self._learner is not None, "asked only then"
        entry = self._learner.known(function, profile)
        if entry is None or not count or not self._is_known(entry):
            return given
        facts = self._facts(count, profile, function, SystemLoad.current())
        pace, _ = prediction(entry, Situation(*facts))
        return replace(given, pace=pace)

    def _predicted(
        self,
        decision: Decision,
        entry: Entry,
        count: int,
        profile: WorkloadProfile,
        function: Callable[..., Any],
    ) -> Decision:
        assert self._learner is not None, "asked only then"
        sides = self._learner.sides
        models = {sides.cpu: sides.cpu_model, sides.gpu: sides.gpu_model}
        samples = {device: entry.samples(model) for device, model in models.items() if device}
        told = replace(decision, samples=samples)
        situation = Situation(*self._facts(count, profile, function, SystemLoad.current()))
        if self._is_known(entry):
            _, said = prediction(entry, situation)
            return replace(told, predicted_s=said.by_name())
        cpu = entry.estimates.get(sides.cpu_model)
        unknown = cpu is None or cpu.samples < NEEDED
        missing = missing_of(sides, entry.samples(sides.cpu_model), entry.samples(sides.gpu_model))
        if (unknown or sides.gpu) and missing not in told.reasons:
            told = _saying(told, missing)
        if cpu is None or unknown:
            return told
        cpu_s = cpu.task_s / situation.speeds[0] * -(-count // sides.workers)
        return replace(told, predicted_s={"CpuOnly": cpu_s})

    def _is_known(self, entry: Entry) -> bool:
        assert self._learner is not None, "asked only then"
        sides = self._learner.sides
        return min(entry.samples(sides.cpu_model), entry.samples(sides.gpu_model)) >= NEEDED

    def _facts(
        self,
        count: int,
        profile: WorkloadProfile | None,
        function: Callable[..., Any],
        load: SystemLoad,
        *,
        repeats: bool = False,
    ) -> Facts:
        """Return the fields of a ``Situation``, which is made only where it is needed."""
        assert self._learner is not None, "asked only then"
        memory_per_task = 0 if profile is None else profile.memory_per_task
        begin_s, begun = self._learner.beginning()
        fitting = self._fitting(function, memory_per_task)
        return count, self._learner.sides, self._speeds(load), begin_s, begun, fitting, repeats

    def _speeds(self, load: SystemLoad) -> tuple[float, float]:
        """Return the shares of CPU and GPU that others leave."""
        known_load, speeds = self._left
        if known_load is load:
            return speeds
        own = load.taken_at - self._gpu_used_s < OWN_WORK_S
        gpu = 0.0 if own else load.gpu_utilization
        speeds = max(SLOWEST, 1 - load.cpu_taken_by_others), max(SLOWEST, 1 - gpu)
        self._left = load, speeds
        return speeds


def _given(strategy: ExecutionStrategy) -> Decision | None:
    if strategy.kind is Kind.AUTO:
        return None
    dynamic = strategy.kind is Kind.HYBRID and strategy.gpu_allocation is None
    return Decision(strategy, "given", ("the manager was made with it",), dynamic)


@functools.lru_cache(maxsize=256)
def _of_the_tree(count: int, parallel: float | None, available: bool, pressure: float) -> Decision:
    profile = WorkloadProfile(count) if parallel is None else WorkloadProfile(count, parallelization=parallel)
    hardware = HardwareCapabilities(cpu_cores=1, gpu_available=available)
    rule = rule_for(profile, hardware, SystemLoad(gpu_memory_pressure=pressure))
    return Decision(rule.strategy, rule.name, (rule.reason,), dynamic=rule.strategy.kind is Kind.HYBRID)


def _saying(decision: Decision, reason: str) -> Decision:
    return replace(decision, reasons=(*decision.reasons, reason))
