"""Settings in force while calls are intercepted: what one may add, which are looked at, where results go."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple

import torch

from accelera._user_paths import user_path
from accelera.devices import get_device
from accelera.devices._internal import present_accelerator
from accelera.errors import SettingError
from accelera.memory import MemoryManager
from accelera.memory._internal import Budget, host_memory
from accelera.settings import current
from accelera.units import parse_limit

Amount = int | float | str
Route = Literal["direct", "chunked", "spilled"]
"""By torch's own kernel in one piece; in pieces with the result in memory; in pieces into a file."""

TILE_BYTES = 4 << 20
"""Result bytes that are computed at a time element by element: enough for all threads, little for a cache."""
ACCELERATOR_TILE_BYTES = 64 << 20
"""The same on an accelerator, where handing a tile over takes as long as passing over some MiB."""
PRODUCT_TILE_BYTES = 128 << 20
"""Result bytes of a product that torch's kernel computes at a time."""


class RouteOverride(NamedTuple):
    """Route and tile size that tests force on every call."""

    least: Route = "direct"
    """Calls that could go by a cheaper route take this one all the same."""
    tile_bytes: int | None = None
    """Result bytes per tile; None: as many as are good."""


USUAL = RouteOverride()


class MemoryLimit:
    """The memory that one call may add on one device."""

    def __init__(self, budget: Amount | None, device: torch.device) -> None:
        self._memory = MemoryManager(get_device("cpu" if device.type == "cpu" else str(device)))
        parsed = Budget.requested(budget, self._memory)
        self._fixed_bytes = parsed.limit_bytes if parsed.is_given else None
        self._origin = parsed.origin

    @property
    def origin(self) -> str:
        """Source of the present budget, for messages."""
        return self.budget().origin

    def allows(self, needed_bytes: int) -> bool:
        """Return whether a call may add ``needed_bytes``; without a budget the free memory decides."""
        if self._fixed_bytes is None:
            return self._memory.can_allocate(needed_bytes)
        return needed_bytes <= self.budget().limit_bytes

    def budget_bytes(self) -> int:
        """Return the most that a call may add now."""
        return self.budget().limit_bytes

    def budget(self) -> Budget:
        """Return the present budget with its origin, for messages."""
        fixed = self._fixed_bytes
        budget = Budget(self._memory.get_usable_memory() if fixed is None else fixed, self._origin)
        return budget.within(self._memory.get_budgeted_memory())


@dataclass(frozen=True, eq=False)
class InterceptionConfig:
    """Settings of one ``enable`` or ``intercepted`` call, with derived thresholds and memory limits."""

    budget: Amount | None
    """As given; None: ``ACCELERA_BUDGET``, else what the threshold leaves free."""
    min_size: int
    """Longest dimension from which a call is looked at."""
    memory_threshold_bytes: int
    """Bytes of operands and result together from which a call is looked at."""
    spill: Path | None
    """Folder for results that do not fit; None: they are refused."""
    names_spill: bool
    """Whether somebody named that folder."""
    device: str | None
    """What computes products of operands in RAM; None: the CPU."""
    override: RouteOverride = USUAL
    _limits: dict[torch.device, MemoryLimit] = field(default_factory=dict)

    def limit(self, device: torch.device) -> MemoryLimit:
        """Return the memory limit of a call on ``device``."""
        limit = self._limits.get(device)
        if limit is None:
            limit = self._limits[device] = MemoryLimit(self.budget, device)
        return limit


def config_of(
    budget: Amount | None = None,
    min_size: int | None = None,
    memory_threshold: Amount | None = None,
    *,
    spill_dir: str | Path | bool | None = None,
    device: str | None = None,
    override: RouteOverride = USUAL,
) -> InterceptionConfig:
    """Return the config that ``enable`` was asked for, with ``ACCELERA_*`` where it was not.

    Raises SettingError or ValueError for amounts that cannot be read, SettingError for a folder that
    cannot be written to, UnknownNameError for a device.
    """
    settings = current()
    if budget is not None:
        parse_limit("enable", budget, lambda: host_memory().limit_bytes)
    size: Any = settings.min_size if min_size is None else min_size
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise SettingError(f"[enable] min_size={size!r}: it is the length of a dimension; give 0 or more")
    folder_or_not: Any = spill_dir
    if not isinstance(folder_or_not, (str, Path, bool, NoneType)):
        raise SettingError(
            f"[enable] spill_dir={spill_dir!r}: give a folder, or False to refuse what does not fit"
        )
    if device is not None:
        get_device(device)
    named = settings.spill if spill_dir is None or spill_dir is True else spill_dir
    folder = None if named is False else user_path(named or tempfile.gettempdir(), "enable").absolute()
    if named:
        _check_folder(folder)
    requested = InterceptionConfig(budget, size, 0, folder, bool(named), device, override)
    return replace(requested, memory_threshold_bytes=_threshold_bytes(memory_threshold, requested))


def _check_folder(folder: Path | None) -> None:
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise SettingError(
            f"[enable] spill_dir={str(folder)!r}: it is not a writable folder for results that do not fit;"
            " create it, name another, or pass False to refuse such calls"
        )


def _threshold_bytes(amount: Amount | None, requested: InterceptionConfig) -> int:
    """Return the bytes from which a call is looked at."""
    gibibytes = current().memory_threshold_gb
    if amount is not None:
        return Budget.parse(amount, MemoryManager(get_device("cpu"))).limit_bytes if amount else 0
    if gibibytes is not None:
        return int(gibibytes * 2**30)
    return min(requested.limit(each).budget_bytes() for each in _devices()) // 8


def _devices() -> list[torch.device]:
    """Return the CPU, and the accelerator if torch has one."""
    accelerator = present_accelerator()
    here = [torch.device("cpu")]
    return here if accelerator is None else [*here, accelerator]


_active: list[InterceptionConfig | None] = [None]


def active_config() -> InterceptionConfig | None:
    """Return the config in force; None while nothing is intercepted."""
    return _active[0]


def set_active_config(config: InterceptionConfig | None) -> None:
    """Route calls by ``config`` from now on."""
    _active[0] = config


def stays_in_memory(needed_bytes: int, device: torch.device) -> bool:
    """Return whether a result stays in memory: ``needed_bytes`` are those of the result and its scratch."""
    config = active_config()
    return config is None or (
        config.override.least != "spilled" and config.limit(device).allows(needed_bytes)
    )
