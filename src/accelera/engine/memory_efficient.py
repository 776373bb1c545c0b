"""The engine with a threshold: below 0.05 GiB it falls back instead of cutting ever smaller chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from accelera.chunking import RowChunking
from accelera.devices import Device
from accelera.engine.base import BaseEngine, MatmulRequest, Operand, Policy, Strategy, gibibytes
from accelera.engine.decision import (
    GIB,
    TINY_THRESHOLD_GB,
    Route,
    RouteFacts,
    route_by_fallback,
    route_by_memory,
)
from accelera.errors import UnknownNameError
from accelera.memory import MemoryManager
from accelera.stores import Store

if TYPE_CHECKING:
    from accelera.engine.matrix import Matrix
    from accelera.simulator import Advice

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
        return self._by_plan(request, route)

    def _route(self, situation: RouteFacts | None) -> Route:
        total_bytes = 0 if situation is None else situation.total_bytes
        if not self._should_use_fallback(total_bytes / GIB):
            return route_by_memory(situation)
        fits = situation is not None and MemoryManager().can_allocate(situation.needed_bytes)
        return route_by_fallback(self.fallback_strategy, self.default_chunk_size, fits)
