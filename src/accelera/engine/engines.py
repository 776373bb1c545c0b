"""The two engines, and the one behind ``A @ B``: made when it is first needed, one per process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from accelera.chunking import RowChunking
from accelera.devices import Device
from accelera.engine.base_engine import BaseEngine, MatmulRequest, Operand, Policy, Strategy, gibibytes
from accelera.engine.hybrid import StrategyChoice, hybrid_devices, strategy_of
from accelera.engine.options import Amount
from accelera.engine.routing import (
    GIB,
    TINY_THRESHOLD_GB,
    Route,
    RouteFacts,
    route_by_fallback,
    route_by_memory,
)
from accelera.errors import UnknownNameError
from accelera.execution import ExecutionStrategy
from accelera.memory import MemoryManager
from accelera.stores import Store

if TYPE_CHECKING:
    from accelera.engine.matrix import Matrix
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
        The policy that evicts when memory is full: a name of ``accelera.policy.POLICIES``, or what makes one
        of your own from its ``Knowledge``. The plan knows the future, so ``"belady"`` is the default.
    advice
        What ``accelera.advise`` said: its policy, unless ``policy`` is given, and its look-ahead.
    strategy
        Devices that make the blocks of products that go by a plan: ``"cpu"``; ``"gpu"``, the CPU what that
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
        strategy: StrategyChoice | None = None,
    ) -> None:
        if strategy is not None and strategy_of(strategy) == ExecutionStrategy.CpuOnly:
            device = "cpu"
        if budget is None and memory_threshold_gb is not None:
            budget = gibibytes(memory_threshold_gb)
        super().__init__(
            device, auto_detect_memory, chunking_strategy, chunk_size, enable_progress, budget, policy, advice
        )
        self.places = hybrid_devices(strategy, self.device)

    def _route(self, facts: RouteFacts | None) -> Route:
        return route_by_memory(facts)


FALLBACKS = ("cpu", "default_chunk")


@final
class MemoryEfficientEngine(BaseEngine):
    """Computes as ``MatrixEngine`` does, with a memory threshold and a fallback below 0.05 GiB.

    Parameters
    ----------
    memory_threshold_gb
        Most memory an operation may add, GiB. Below 0.05 the fallback is used and the threshold
        bounds nothing any more.
    enable_progress
        Draw a progress bar for long operations when stderr is a terminal.
    chunk_size
        Rows per chunk, fixed; None lets the engine choose.
    fallback_strategy
        ``"cpu"`` computes on the CPU, ``"default_chunk"`` on the device in chunks of
        ``default_chunk_size`` rows.
    device, chunking_strategy
        As for ``MatrixEngine``.
    default_chunk_size
        Rows per chunk of the second fallback.
    policy, advice
        As for ``MatrixEngine``.
    """

    def __init__(
        self,
        memory_threshold_gb: float = 1.0,
        enable_progress: bool = False,
        chunk_size: int | None = None,
        fallback_strategy: str = "cpu",
        *,
        device: str | Device | None = None,
        chunking_strategy: Strategy = "adaptive",
        default_chunk_size: int = 1000,
        policy: Policy | None = None,
        advice: Advice | None = None,
    ) -> None:
        if fallback_strategy not in FALLBACKS:
            raise UnknownNameError.among("fallback strategy", fallback_strategy, FALLBACKS)
        threshold = gibibytes(memory_threshold_gb)
        budget = None if memory_threshold_gb < TINY_THRESHOLD_GB else threshold
        super().__init__(
            device,
            chunk_size is None,
            chunking_strategy,
            chunk_size,
            enable_progress,
            budget,
            policy,
            advice,
        )
        self.memory_threshold_gb = memory_threshold_gb
        """The threshold, GiB."""
        self.fallback_strategy = fallback_strategy
        """``"cpu"`` or ``"default_chunk"``."""
        self.default_chunk_size = default_chunk_size
        """Rows per chunk of the second fallback."""

    def _should_use_fallback(self, total_memory_gb: float) -> bool:
        """Return whether the threshold is too low for chunks, whatever the operation needs."""
        return self.memory_threshold_gb < TINY_THRESHOLD_GB

    def _use_default_chunking(self, a: Operand, b: Operand) -> Matrix | Store:
        """Return ``a @ b`` computed on the device in chunks of ``default_chunk_size`` rows."""
        route = route_by_fallback("default_chunk", self.default_chunk_size, fits_in_ram=True)
        request = MatmulRequest(a, b, None, RowChunking(), False, None, self._defaults())
        return self._matmul_by_plan(request, route)

    def _route(self, facts: RouteFacts | None) -> Route:
        total_bytes = 0 if facts is None else facts.total_bytes
        if not self._should_use_fallback(total_bytes / GIB):
            return route_by_memory(facts)
        fits = facts is not None and MemoryManager().can_allocate(facts.needed_bytes)
        return route_by_fallback(self.fallback_strategy, self.default_chunk_size, fits)


_lock = threading.Lock()
_engine: MatrixEngine | None = None


def default_engine() -> MatrixEngine:
    """Return the process's engine: every setting at its default, or as ``set_default_engine`` said."""
    global _engine
    with _lock:
        if _engine is None:
            _engine = MatrixEngine()
        return _engine


def set_default_engine(engine: MatrixEngine | None) -> None:
    """Use ``engine`` behind ``A @ B`` from now on; None goes back to a new one with the defaults.

    Parameters
    ----------
    engine
        The engine to use; None: a new one with the defaults.
    """
    global _engine
    with _lock:
        _engine = engine
