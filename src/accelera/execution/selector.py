"""Strategy selection for one manager: the strategy that was given, the seed's tree, or measured rates."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from accelera.execution.arguments import WorkloadProfile
from accelera.execution.executors.device import DeviceLane
from accelera.execution.executors.lanes import GpuExecutor, is_available
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.hardware.load import SystemLoad
from accelera.execution.kernel import Kernel
from accelera.execution.strategy.cost_model import (
    NEGLIGIBLE_S,
    DecisionInputs,
    Facts,
    cached_choice,
    choose_strategy,
    missing_samples,
    prediction,
)
from accelera.execution.strategy.history import (
    DevicePair,
    FunctionHistory,
    PerformanceModel,
    Sample,
    shared_history,
)
from accelera.execution.strategy.rates import NEEDED
from accelera.execution.strategy.strategy import (
    NO_GPU,
    PRESSURE,
    Decision,
    ExecutionStrategy,
    StrategyKind,
    rule_for,
)

_LOGGER = logging.getLogger("accelera.execution")

AGE_S = 0.25
"""A reading serves so long: asking a driver takes longer than deciding."""


@final
class GpuMemoryGauge:
    """Asks an executor for its free memory, and for all of it if it can tell, now and then.

    Parameters
    ----------
    executor
        The GPU.
    clock
        Returns seconds.
    """

    def __init__(self, executor: GpuExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._clock = clock
        self._most_bytes = 0
        self._read: tuple[float, float, bool] | None = None

    def pressure(self, elsewhere: float) -> float:
        """Return the share of the memory that is taken, from 0 to 1.

        Parameters
        ----------
        elsewhere
            What the system says of the first GPU. It counts where the executor cannot tell how much there is
            in all, and then at least what is missing of the most that was ever free.
        """
        now_s = self._clock()
        read = self._read
        if read is None or now_s - read[0] >= AGE_S:
            read = self._read = (now_s, *self._read_pressure())
        return read[1] if read[2] else max(read[1], elsewhere)

    def _read_pressure(self) -> tuple[float, bool]:
        """Return the share that is taken, and whether it is one of all there is."""
        total = getattr(self._executor, "memory_total", None)
        try:
            free_bytes = int(self._executor.memory_available())
            total_bytes = None if total is None else int(total())
        except Exception:
            _LOGGER.exception("%r does not say how full its memory is: taken for unknown", self._executor)
            return 0.0, False
        self._most_bytes = max(self._most_bytes, free_bytes)
        most_bytes = self._most_bytes if total_bytes is None else total_bytes
        return min(1.0, max(0.0, 1 - free_bytes / most_bytes)) if most_bytes > 0 else 0.0, total is not None


SLOWEST = 0.5
"""Least speed of a device beside other programs, relative to its speed alone: they take turns."""
OWN_WORK_S = 1.0
"""A GPU that we have used so lately is busy with our own work, as far as its utilisation tells."""

_UNREAD = None, (1.0, 1.0)

Fitting = Callable[[Callable[..., Any], int], "int | None"]
"""Returns how many tasks of a function, of so many bytes each, fit the GPU at once; None: any number."""


@final
class StrategySelector:
    """Selects the strategies of one manager's batches.

    Parameters
    ----------
    strategy
        What was given; ``Auto`` is decided for each batch.
    gpu
        The GPU that would be used; None: there is none.
    model
        Knows what has been measured; None: the tree decides for ever.
    fitting
        Tells how many tasks fit the GPU at once.
    """

    def __init__(
        self,
        strategy: ExecutionStrategy,
        gpu: GpuExecutor | None,
        model: PerformanceModel | None = None,
        fitting: Fitting = lambda function, memory_per_task: None,
    ) -> None:
        self._gpu = gpu
        self._memory = None if gpu is None else GpuMemoryGauge(gpu)
        self._model = model
        self._fitting = fitting
        self._gpu_used_s = -OWN_WORK_S
        self._free_shares: tuple[SystemLoad | None, tuple[float, float]] = _UNREAD
        self._fixed_decision = _fixed_decision(strategy) if gpu is not None else NO_GPU

    @classmethod
    def for_lanes(
        cls, strategy: ExecutionStrategy, cpu: object, cpu_name: str, gpu: DeviceLane | None, *, learn: bool
    ) -> StrategySelector:
        """Return the selector of a manager; with ``learn`` rates are measured, and kept from run to run."""
        if gpu is None:
            pair = DevicePair.of(cpu, cpu_name, None, "")
            return cls(strategy, None, PerformanceModel(shared_history, pair) if learn else None)
        pair = DevicePair.of(cpu, cpu_name, gpu.executor, gpu.name)
        model = PerformanceModel(shared_history, pair) if learn else None
        return cls(strategy, gpu.executor, model, lambda fn, nbytes: gpu.size_of(fn, nbytes).limit)

    def decide(
        self,
        task_count: int,
        profile: WorkloadProfile | None,
        function: Callable[..., Any] | None,
        *,
        repeats: bool = False,
    ) -> Decision:
        """Return where ``task_count`` tasks are to run; ``repeats``: a late one may be begun twice."""
        if self._fixed_decision is not None:
            if not self._fixed_decision.dynamic or self._model is None or function is None:
                return self._fixed_decision
            return self._with_rates(self._fixed_decision, task_count, profile, function)
        assert self._gpu is not None, "without a GPU everything is given"
        load, available = SystemLoad.current(), is_available(self._gpu)
        if self._model is None or function is None or not task_count or not available:
            return self._tree_decision(task_count, profile, load, available=available)
        entry = self._model.known(function, profile)
        if entry is None:
            return self._tree_decision(task_count, profile, load, available=available)
        facts = self._facts(task_count, profile, function, load, repeats=repeats)
        return cached_choice(entry, facts) or choose_strategy(
            entry, DecisionInputs(*facts), self._tree_decision(task_count, profile, load, available=available)
        )

    def explain(
        self, task_count: int, profile: WorkloadProfile, function: Callable[..., Any] | None
    ) -> Decision:
        """Return the decision with all that is known, also where it did not matter or does not suffice."""
        repeats = isinstance(function, Kernel) and function.pure
        decision = self.decide(task_count, profile, function, repeats=repeats)
        if decision.predicted_s or not task_count:
            return decision
        if self._model is None:
            return _with_reason(decision, "nothing is measured: the manager does not learn")
        if function is None:
            return _with_reason(decision, "no function was given, so nothing measured can be looked up")
        entry = self._model.known(function, profile)
        if entry is None:
            return _with_reason(
                decision, f"nothing is measured yet: predictions need {NEEDED} samples of each device"
            )
        return self._with_prediction(decision, entry, task_count, profile, function)

    def learn(
        self,
        function: Callable[..., Any],
        profile: WorkloadProfile | None,
        samples: Sequence[Sample],
        seconds: float,
    ) -> None:
        """Keep what the pieces of a batch, which took ``seconds``, tell of the devices' speed."""
        if self._model is None or seconds < NEGLIGIBLE_S:
            return
        speeds = self._speeds(SystemLoad.current())
        if self._gpu is not None and any(device == self._model.sides.gpu for device, _, _ in samples):
            self._gpu_used_s, self._free_shares = time.monotonic(), _UNREAD
        self._model.record(function, profile, samples, seconds, speeds)

    def _tree_decision(
        self, count: int, profile: WorkloadProfile | None, load: SystemLoad, *, available: bool
    ) -> Decision:
        pressure = self._memory.pressure(load.gpu_memory_pressure) if self._memory and available else 0.0
        parallel = None if profile is None else profile.parallelization
        return _decision_by_rule(count, parallel, available, pressure if pressure > PRESSURE else 0.0)

    def _with_rates(
        self, given: Decision, count: int, profile: WorkloadProfile | None, function: Callable[..., Any]
    ) -> Decision:
        assert self._model is not None, "asked only then"
        entry = self._model.known(function, profile)
        if entry is None or not count or not self._is_known(entry):
            return given
        facts = self._facts(count, profile, function, SystemLoad.current())
        pace, _ = prediction(entry, DecisionInputs(*facts))
        return replace(given, pace=pace)

    def _with_prediction(
        self,
        decision: Decision,
        entry: FunctionHistory,
        count: int,
        profile: WorkloadProfile,
        function: Callable[..., Any],
    ) -> Decision:
        assert self._model is not None, "asked only then"
        sides = self._model.sides
        models = {sides.cpu: sides.cpu_model, sides.gpu: sides.gpu_model}
        samples = {device: entry.samples(model) for device, model in models.items() if device}
        known = replace(decision, samples=samples)
        situation = DecisionInputs(*self._facts(count, profile, function, SystemLoad.current()))
        if self._is_known(entry):
            _, predicted = prediction(entry, situation)
            return replace(known, predicted_s=predicted.by_name())
        cpu = entry.estimates.get(sides.cpu_model)
        unknown = cpu is None or cpu.samples < NEEDED
        missing = missing_samples(sides, entry.samples(sides.cpu_model), entry.samples(sides.gpu_model))
        if (unknown or sides.gpu) and missing not in known.reasons:
            known = _with_reason(known, missing)
        if cpu is None or unknown:
            return known
        cpu_s = cpu.task_s / situation.speeds[0] * -(-count // sides.workers)
        return replace(known, predicted_s={"CpuOnly": cpu_s})

    def _is_known(self, entry: FunctionHistory) -> bool:
        assert self._model is not None, "asked only then"
        sides = self._model.sides
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
        """Return the fields of a ``DecisionInputs``, which is made only where it is needed."""
        assert self._model is not None, "asked only then"
        memory_per_task = 0 if profile is None else profile.memory_per_task
        begin_s, begun = self._model.beginning()
        fitting = self._fitting(function, memory_per_task)
        return count, self._model.sides, self._speeds(load), begin_s, begun, fitting, repeats

    def _speeds(self, load: SystemLoad) -> tuple[float, float]:
        """Return the shares of CPU and GPU that others leave."""
        known_load, speeds = self._free_shares
        if known_load is load:
            return speeds
        own = load.taken_at - self._gpu_used_s < OWN_WORK_S
        gpu = 0.0 if own else load.gpu_utilization
        speeds = max(SLOWEST, 1 - load.cpu_taken_by_others), max(SLOWEST, 1 - gpu)
        self._free_shares = load, speeds
        return speeds


def _fixed_decision(strategy: ExecutionStrategy) -> Decision | None:
    if strategy.kind is StrategyKind.AUTO:
        return None
    dynamic = strategy.kind is StrategyKind.HYBRID and strategy.gpu_allocation is None
    return Decision(strategy, "given", ("the manager was made with it",), dynamic)


@functools.lru_cache(maxsize=256)
def _decision_by_rule(count: int, parallel: float | None, available: bool, pressure: float) -> Decision:
    profile = WorkloadProfile(count) if parallel is None else WorkloadProfile(count, parallelization=parallel)
    hardware = HardwareCapabilities(cpu_cores=1, gpu_available=available)
    rule = rule_for(profile, hardware, SystemLoad(gpu_memory_pressure=pressure))
    return Decision(
        rule.strategy, rule.name, (rule.reason,), dynamic=rule.strategy.kind is StrategyKind.HYBRID
    )


def _with_reason(decision: Decision, reason: str) -> Decision:
    return replace(decision, reasons=(*decision.reasons, reason))
