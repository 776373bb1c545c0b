"""What ``StrategyManager.auto`` takes where it is told nothing: the machine's own."""

from __future__ import annotations

from typing import Final

from accelera.errors import UnknownNameError
from accelera.execution.capabilities import HardwareCapabilities
from accelera.execution.checking import described
from accelera.execution.executors.contract import GpuExecutor
from accelera.execution.strategy import ExecutionStrategy
from accelera.settings import StrategyName, current_value

_STRATEGIES: Final = {
    "auto": ExecutionStrategy.Auto,
    "cpu": ExecutionStrategy.CpuOnly,
    "gpu": ExecutionStrategy.GpuOnly,
    "hybrid": ExecutionStrategy.Hybrid(),
}


def default_strategy(strategy: ExecutionStrategy | StrategyName | None = None) -> ExecutionStrategy:
    """Return the strategy of a name; None stands for ``ACCELERA_STRATEGY``.

    Raises UnknownNameError when no strategy is called so, TypeError for what is neither.
    """
    return named_strategy(current_value("strategy") if strategy is None else strategy)


def named_strategy(strategy: ExecutionStrategy | StrategyName) -> ExecutionStrategy:
    """Return a strategy, or the one of a name; raises as ``default_strategy`` does."""
    if isinstance(strategy, ExecutionStrategy):
        return strategy
    if not isinstance(strategy, str):
        raise TypeError(
            f"[strategy] {described(strategy)} is no strategy: give an ExecutionStrategy, such as"
            f" ExecutionStrategy.Hybrid(70, 30), or one of {', '.join(map(repr, _STRATEGIES))}"
        )
    name = strategy.strip().lower()
    if name not in _STRATEGIES:
        raise UnknownNameError.among("strategy", name, _STRATEGIES)
    return _STRATEGIES[name]


def default_gpu(device: str | None = None, budget_bytes: int | None = None) -> GpuExecutor | None:
    """Return what computes on a device, or on the first accelerator there is; None where there is none.

    None stands for ``ACCELERA_DEVICE``; torch is loaded only where there is an accelerator. Raises
    UnknownNameError for a name that is none, DeviceError when the machine has no such device, ValueError for
    a simulated one without memory.
    """
    named = current_value("device") if device is None else device
    if named is None and not HardwareCapabilities.detect().gpu_available:
        return None
    from accelera.devices import SimulatedDevice, get_device
    from accelera.execution.executors.simulated import SimulatedExecutor
    from accelera.execution.executors.torch_device import TorchDeviceExecutor

    found = get_device(named)
    if isinstance(found, SimulatedDevice):
        if not found.total_bytes():
            raise ValueError(f"[device] {named!r} has no memory: give it some, such as 'sim:256MiB'")
        return SimulatedExecutor(found.total_bytes(), name=found.name)
    if found.host_memory:
        return None
    return TorchDeviceExecutor(found.name, budget=budget_bytes)
