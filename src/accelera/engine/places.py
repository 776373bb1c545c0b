"""Who makes the blocks of a product: CPU and accelerator under a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, final

from accelera.devices import Device
from accelera.errors import ArgumentError, DeviceError, UnknownNameError
from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor, WorkloadProfile
from accelera.logs import logger

Placing = str | ExecutionStrategy | StrategyManager
"""A word, a strategy, or a manager whose strategy and observers are used."""

WORDS: Final[Mapping[str, ExecutionStrategy]] = MappingProxyType(
    {
        "auto": ExecutionStrategy.Auto,
        "cpu": ExecutionStrategy.CpuOnly,
        "gpu": ExecutionStrategy.GpuOnly,
        "hybrid": ExecutionStrategy.Hybrid(),
    }
)


@final
class AcceleratorExecutor:
    """A device as the strategy executor sees it: a block after the other, in the device's memory."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name = device.name

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return what the kernel's form for this device returns; raises what the device raises."""
        batch = getattr(process_fn, "batch", None)
        if batch is None:
            raise DeviceError(f"[{self.name}] {process_fn!r} has no form for a device; give a Kernel")
        found: Sequence[Any] = batch(tasks, self.name)
        return found

    def is_available(self) -> bool:
        """Return whether the device has memory left."""
        return self.device.available_bytes() > 0

    def memory_available(self) -> int:
        """Return the bytes of its memory that are free."""
        return self.device.available_bytes()

    def empty_cache(self) -> None:
        """Return cached memory to the system."""
        self.device.empty_cache()


@final
class HybridDevices:
    """CPU and accelerator, and the strategy by which they share blocks; measures nothing.

    Parameters
    ----------
    placing
        The strategy. Of a ``StrategyManager`` its strategy and its observers count; its executors do not: the
        devices are the engine's, one block at a time each, which takes all cores or the whole accelerator.
    device
        The accelerator.
    """

    def __init__(self, placing: Placing, device: Device) -> None:
        strategy = strategy_of(placing)
        observers = placing.observers if isinstance(placing, StrategyManager) else ()
        accelerator = AcceleratorExecutor(device)
        self.device = device
        self.strategy = strategy
        self.manager = StrategyManager(
            ThreadsExecutor(1), accelerator, strategy, observers=observers, learn=False
        )

    def profile(self, blocks: int) -> WorkloadProfile:
        """Return so many blocks as a batch of work; each takes what memory the device has."""
        memory = max(1, self.device.available_bytes())
        return WorkloadProfile(blocks, memory_per_task=memory, complexity=1.0, parallelization=1.0)

    @property
    def always(self) -> bool:
        """Whether even what fits in one piece is to be shared."""
        return self.strategy.uses_gpu and self.strategy != ExecutionStrategy.GpuOnly


def strategy_of(placing: Placing) -> ExecutionStrategy:
    """Return the strategy that is meant.

    Raises
    ------
    UnknownNameError
        When a word is none of ``WORDS``.
    TypeError
        When it is none of a word, a strategy and a manager.
    """
    if isinstance(placing, StrategyManager):
        return placing.strategy
    if isinstance(placing, ExecutionStrategy):
        return placing
    if not isinstance(placing, str):
        raise ArgumentError(
            f"[engine] strategy={placing!r}: give {', '.join(map(repr, WORDS))}, an ExecutionStrategy or a"
            f" StrategyManager"
        )
    if placing.lower() not in WORDS:
        raise UnknownNameError.among("strategy", placing, WORDS)
    return WORDS[placing.lower()]


def hybrid_devices(placing: Placing | None, device: Device) -> HybridDevices | None:
    """Return who shares products on an engine that computes on ``device``; None when it works by itself.

    A strategy that needs an accelerator where there is none is said so once, and everything runs on the CPU.
    """
    if placing is None:
        return None
    strategy = strategy_of(placing)
    if not device.host_memory:
        return HybridDevices(placing, device)
    if strategy.uses_gpu:
        logger.warning(
            "[engine] strategy %s asks for an accelerator, and the engine computes on %s, which is none:"
            " all runs on the CPU; give device='cuda:0', or strategy='cpu'",
            strategy,
            device.name,
        )
    return None
