"""Ladder of routes for a call that may not fit: direct, in tiles, into a file, on the CPU.

``route`` takes the first rung within the budget, and the next one each time memory runs out. Below it a tile
is halved (``TileRunner``) or a whole computation gets half the scratch (``with_less_scratch``) until only the
CPU is left. Every step is counted and logged.
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from accelera.devices._internal import is_out_of_memory
from accelera.errors import BudgetExceededError
from accelera.interceptor.config import InterceptionConfig, Route, active_config
from accelera.interceptor.hooks import original
from accelera.interceptor.spill import SpilledResult, spill_folder
from accelera.interceptor.statistics import statistics
from accelera.interceptor.tiling import MemoryTarget, Region, ResultLayout, TileTarget, halved
from accelera.memory._internal import LEDGER, Budget
from accelera.units import format_bytes

logger = logging.getLogger("accelera.interceptor")

Kernel = Callable[..., Any]
Handler = Callable[..., Any]
_Computed = TypeVar("_Computed")


class InterceptedCall(abc.ABC):
    """One call of an operator, understood: what it adds, and how it is computed within a budget.

    Subclasses set the attributes.
    """

    op: str
    """The operator, as aten names it."""
    device: torch.device
    """Where the operands are."""
    looked_bytes: int
    """Size of operands and result."""
    result_bytes: int
    """New memory for the result; 0 when the caller gave it."""
    temporary_bytes: int
    """Bytes that torch's kernel takes besides in one piece: copies of operands it cannot read in place."""
    counts_direct = True
    """Whether a direct call is counted; not where all that it is composed of is."""

    @property
    def added_bytes(self) -> int:
        """Bytes that torch's kernel adds in one piece."""
        return self.result_bytes + self.temporary_bytes

    def wants_pieces(self, config: InterceptionConfig) -> bool:
        """Return whether the call goes in pieces even when it would fit."""
        return config.override.least != "direct"

    def unsupported_reason(self) -> str | None:
        """Return why only torch's kernel can compute the call; None if it can be computed in pieces."""
        return None

    @abc.abstractmethod
    def bounded(self, config: InterceptionConfig, budget_bytes: int) -> tuple[Any, Route]:
        """Compute within ``budget_bytes``; return the result and the route taken.

        Raises
        ------
        BudgetExceededError
            No route fits the budget.
        StoreError
            The spill folder cannot take the result.
        """


class TiledCall(InterceptedCall):
    """A call that fills a result tile by tile, wherever that lies."""

    given: torch.Tensor | None = None
    """The caller's own result, of ``out=`` and in-place forms."""

    @abc.abstractmethod
    def result(self) -> ResultLayout:
        """Return what a new result will be; raises what torch raises for operands that do not fit."""

    @abc.abstractmethod
    def fill(self, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
        """Compute in pieces into ``target``, adding at most ``budget_bytes``; return the fallbacks taken.

        Raises BudgetExceededError before anything is computed, DeviceMemoryError or torch's own error when
        memory runs out whatever the size of the pieces.
        """

    def bounded(self, config: InterceptionConfig, budget_bytes: int) -> tuple[Any, Route]:
        """Compute with the result in memory, or else in a file."""
        needed = [self.added_bytes]
        routes = self._routes(config, budget_bytes)
        for way in routes:
            try:
                if way == "chunked":
                    return self._in_memory(config, budget_bytes), way
                return self._in_file(config, budget_bytes), way
            except BudgetExceededError as refusal:
                needed.append(refusal.needed_bytes + (self.result_bytes if way == "chunked" else 0))
            except (RuntimeError, MemoryError) as error:
                if way == routes[-1] or not is_out_of_memory(error, of_python=True):
                    raise
                fall_back(self.op, "into a file after running out of memory", error)
        raise self._refusal(config, budget_bytes, min(needed))

    def _routes(self, config: InterceptionConfig, budget_bytes: int) -> list[Route]:
        """Return the routes that may do, the cheaper first."""
        routes: list[Route] = []
        if self.given is not None or (
            config.override.least != "spilled" and self.result_bytes < budget_bytes
        ):
            routes.append("chunked")
        if self.given is None and config.spill is not None and self.device.type == "cpu":
            routes.append("spilled")
        return routes

    def _in_memory(self, config: InterceptionConfig, budget_bytes: int) -> torch.Tensor:
        memory = self.given
        host_bytes = self.result_bytes if self.device.type == "cpu" else 0
        with LEDGER.reserve(self.op, "interception", host_bytes):
            if memory is None:
                layout = self.result()
                strides = layout.strides
                memory = torch.empty_strided(layout.shape, strides, dtype=layout.dtype, device=self.device)
            self._note(self.fill(MemoryTarget(memory.detach()), config, budget_bytes - self.result_bytes))
        return memory

    def _in_file(self, config: InterceptionConfig, budget_bytes: int) -> torch.Tensor:
        spill = SpilledResult(self.op, spill_folder(self.op, config), self.result())
        try:
            self._note(self.fill(spill.target, config, budget_bytes))
        finally:
            spill.close()
        return spill.tensor()

    def _note(self, fallbacks: list[str]) -> None:
        for each in fallbacks:
            what, _, why = each.partition(": ")
            fall_back(self.op, what, why)

    def _refusal(
        self, config: InterceptionConfig, budget_bytes: int, needed_bytes: int
    ) -> BudgetExceededError:
        """Return the error of a call for which no route fits, with the smallest budget that would do."""
        budget = Budget(budget_bytes, config.limit(self.device).origin)
        remedy = budget.remedy(needed_bytes)
        if config.spill is None:
            remedy += ", or let the result go to a file with spill_dir=True or a folder"
        elif self.device.type != "cpu":
            remedy += ", or move the operands to the CPU, whose results can go to files"
        added, result = format_bytes(self.added_bytes), format_bytes(self.result_bytes)
        return BudgetExceededError(
            f"[{self.op}] adds {added} (result {result}) in one piece, and at least "
            f"{format_bytes(needed_bytes)} ({needed_bytes:,} bytes) in pieces: more than the "
            f"{budget.allowance}; {remedy}",
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
        )


Reader = Callable[[tuple[Any, ...], dict[str, Any]], InterceptedCall | str | None]
"""From an operator's arguments to the call; or why only torch computes it; None counts nothing."""


def handler_of(name: str, read: Reader) -> Handler:
    """Return the handler of an operator: torch's own kernel while nothing is in force, else ``route``."""
    kernel = original(name)

    def handle(*args: Any, **kwargs: Any) -> Any:
        config = active_config()
        if config is None:
            return kernel(*args, **kwargs)
        try:
            call = read(args, kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError):
            # What cannot be understood is the caller's error, or none: torch's kernel knows.
            call = "arguments that do not fit"
        if call is None:
            return kernel(*args, **kwargs)
        if isinstance(call, str):
            statistics.passed(name, call)
            logger.debug("%s: passed, %s", name, call)
            return kernel(*args, **kwargs)
        return route(call, config, kernel, args, kwargs)

    return handle


def route(
    call: InterceptedCall,
    config: InterceptionConfig,
    kernel: Kernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Compute one call within the limits.

    Parameters
    ----------
    call
        What was called.
    config
        What is in force.
    kernel, args, kwargs
        Torch's own kernel, and what it is called with in one piece.

    Raises
    ------
    BudgetExceededError
        No route fits the budget.
    StoreError
        The spill folder cannot take the result.
    """
    limit = config.limit(call.device)
    if not call.wants_pieces(config) and limit.allows(call.added_bytes):
        try:
            return _direct(call, kernel, args, kwargs)
        except RuntimeError as error:
            if not is_out_of_memory(error) or call.unsupported_reason() is not None:
                raise
            fall_back(call.op, "in pieces after running out of memory", error)
    unsupported_reason = call.unsupported_reason()
    if unsupported_reason is not None:
        # Left to torch although it may take more than the budget.
        statistics.passed(call.op, unsupported_reason)
        budget, added = format_bytes(limit.budget_bytes()), format_bytes(call.added_bytes)
        logger.debug("%s: passed, %s; adds %s of %s", call.op, unsupported_reason, added, budget)
        return kernel(*args, **kwargs)
    return _bounded(call, config, limit.budget_bytes())


def _direct(call: InterceptedCall, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernel(*args, **kwargs)
    if call.counts_direct:
        statistics.direct(call.op, call.looked_bytes, call.added_bytes)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: direct, adds %s", call.op, format_bytes(call.added_bytes))
    return result


def _bounded(call: InterceptedCall, config: InterceptionConfig, budget_bytes: int) -> Any:
    began = time.perf_counter()
    try:
        with statistics.in_progress(call.added_bytes if call.device.type == "cpu" else 0):
            result, way = call.bounded(config, budget_bytes)
    except BudgetExceededError:
        statistics.in_pieces(call.op, "refused", call.looked_bytes, call.added_bytes, 0)
        raise
    statistics.in_pieces(call.op, way, call.looked_bytes, call.added_bytes, budget_bytes)
    statistics.took(call.op, time.perf_counter() - began)
    without = format_bytes(call.added_bytes)
    logger.debug("%s: %s within %s, %s in one piece", call.op, way, format_bytes(budget_bytes), without)
    return result


def fall_back(op: str, what: str, why: object) -> None:
    """Count that ``op`` goes on as ``what`` says, and warn of it."""
    statistics.fell_back(op, what)
    logger.warning("%s goes on %s: %s", op, what, why)


def is_accelerator(device: torch.device) -> bool:
    """Return whether ``device`` is an accelerator, with memory of its own."""
    return device.type != "cpu"


def with_less_scratch(
    op: str,
    compute: Callable[[int], _Computed],
    scratch_bytes: int,
    least_bytes: int,
    on_cpu: Callable[[], _Computed] | None,
) -> _Computed:
    """Return ``compute(scratch_bytes)``; each time memory runs out, again with half of them.

    Parameters
    ----------
    op
        The operator, as aten names it.
    compute
        Computes the whole within the given bytes of intermediates, from the beginning each time.
    scratch_bytes, least_bytes
        Bytes to begin with, and those with which half of them would not help.
    on_cpu
        Computes the whole on the CPU when the least is not there; None: torch's error is raised.
    """
    while True:
        try:
            return compute(scratch_bytes)
        except RuntimeError as error:
            is_least = scratch_bytes <= least_bytes
            if not is_out_of_memory(error) or (is_least and on_cpu is None):
                raise
            what = "on the CPU" if is_least else "in half the tile"
            fall_back(op, f"{what} after running out of memory", error)
        # Here the error and what its frames held are gone.
        if is_least:
            assert on_cpu is not None
            return on_cpu()
        scratch_bytes = max(scratch_bytes // 2, least_bytes)


class TileRunner(abc.ABC):
    """Tiles of one call's result, computed one by one: halved when memory runs out, at last on the CPU.

    Parameters
    ----------
    device
        Where the call's operands are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left_to_cpu = False
        self._fallbacks: list[str] = []

    @abc.abstractmethod
    def at_once(self, region: Region) -> None:
        """Compute one piece on the device, and store it when it is complete."""

    @abc.abstractmethod
    def on_cpu(self, region: Region) -> None:
        """Compute the same piece on the CPU."""

    @abc.abstractmethod
    def axes(self, region: Region) -> Sequence[int]:
        """Return the axes along which a piece may be halved, the first that can be is."""

    @abc.abstractmethod
    def release(self) -> None:
        """Free what the pieces share."""

    def compute(self, regions: Iterable[Region]) -> list[str]:
        """Compute every region; return the fallbacks taken.

        Raises torch's own error when not even the smallest piece can be computed.
        """
        for region in regions:
            self._compute(region)
        return self._fallbacks

    def _compute(self, region: Region) -> None:
        try:
            (self.on_cpu if self._left_to_cpu else self.at_once)(region)
            return
        except RuntimeError as error:
            smaller = self._smaller(region) if is_out_of_memory(error) else None
            if smaller is None:
                raise
            where = "in half the tile" if len(smaller) > 1 else "on the CPU"
            self._fallbacks.append(f"{where} after running out of memory: {error}")
        # Here the error and what its frames held are gone.
        self.release()
        for each in smaller:
            self._compute(each)

    def _smaller(self, region: Region) -> Sequence[Region] | None:
        """Return both halves, or the region itself when the CPU takes over; None: nothing smaller to try."""
        halves = halved(region, self.axes(region))
        if halves is not None or self._left_to_cpu or not is_accelerator(self._device):
            return halves
        self._left_to_cpu = True
        return [region]
