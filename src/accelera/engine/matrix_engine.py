"""The engine most people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from accelera.devices import Device
from accelera.engine.base import BaseEngine, Policy, Strategy, gibibytes
from accelera.engine.decision import Route, RouteFacts, route_by_memory
from accelera.engine.options import Amount
from accelera.engine.places import Placing, hybrid_devices, strategy_of
from accelera.execution import ExecutionStrategy

if TYPE_CHECKING:
    from accelera.simulator import Advice


@final
class MatrixEngine(BaseEngine):
    """Computes directly what fits, and in planned chunks what does not.

    Parameters
    ----------
    device
        A name such as ``"cuda:0"`` or a device. By default the accelerator, else the CPU.
    auto_detect_memory
        Choose chunk sizes from the memory there is.
    chunking_strategy
        ``"adaptive"``, ``"row"``, ``"tile"``, or a strategy of your own.
    chunk_size
        Rows per chunk when ``auto_detect_memory`` is off; 1024 by default.
    enable_progress
        Draw a progress bar for long operations when stderr is a terminal.
    budget
        Most memory an operation may add: bytes, ``"512MiB"``, or a share such as ``0.5``.
    memory_threshold_gb
        The budget in GiB, for those who count so; ``budget`` goes before it.
    policy
        Who leaves memory when it is full: a name of ``accelera.policy.POLICIES``, or what makes a policy
        of your own from its ``Knowledge``. The plan knows the future, so ``"belady"`` is the default.
    advice
        What ``accelera.advise`` said: its policy, unless ``policy`` is given, and its look-ahead.
    strategy
        Who makes the blocks of products that go by a plan: ``"cpu"``; ``"gpu"``, the CPU what the device
        fails at; ``"hybrid"``, both at once; ``"auto"``; an ``ExecutionStrategy``, or a ``StrategyManager``
        for its strategy and observers. The budget then bounds RAM, of which the CPU's blocks and what the
        device needs there take their shares; the device's own memory is used as far as it is free. None:
        the device by itself.
    """

    def __init__(
        self,
        device: str | Device | None = None,
        auto_detect_memory: bool = True,
        chunking_strategy: Strategy = "adaptive",
        chunk_size: int | None = None,
        enable_progress: bool = True,
        *,
        budget: Amount | None = None,
        memory_threshold_gb: float | None = None,
        policy: Policy | None = None,
        advice: Advice | None = None,
        strategy: Placing | None = None,
    ) -> None:
        if strategy is not None and strategy_of(strategy) == ExecutionStrategy.CpuOnly:
            device = "cpu"
        if budget is None and memory_threshold_gb is not None:
            budget = gibibytes(memory_threshold_gb)
        super().__init__(
            device, auto_detect_memory, chunking_strategy, chunk_size, enable_progress, budget, policy, advice
        )
        self.places = hybrid_devices(strategy, self.device)

    def _route(self, situation: RouteFacts | None) -> Route:
        return route_by_memory(situation)
