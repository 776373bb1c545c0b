"""Interception on and off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelera.interceptor.force import put_in_force
from accelera.interceptor.handlers import handlers
from accelera.interceptor.limits import Amount, Limits, limits_of
from accelera.interceptor.mechanism import arm, disarm

_lock = threading.RLock()
_entries: list[Limits] = []
"""Everything that was begun and not ended; the last is in force."""
_enabled: list[Limits] = []
"""The one entry that ``enable`` began, if it is not ended."""


def enable(
    budget: Amount | None = None,
    min_size: int | None = None,
    memory_threshold: Amount | None = None,
    *,
    spill: str | Path | bool | None = None,
    device: str | None = None,
) -> None:
    """Compute large PyTorch calls within a budget from now on, in every thread, until ``disable``.

    Calling it again changes the settings; when it raises, those before stay in force.

    Parameters
    ----------
    budget
        Most memory one call may add, its result included, such as ``"4GiB"``, bytes, or a share such as
        ``0.5``. By default ``ACCELERA_BUDGET``, else what ``ACCELERA_MEMORY_THRESHOLD`` leaves free.
    min_size
        Longest dimension from which a call is looked at; by default ``ACCELERA_MIN_SIZE``, 1024.
    memory_threshold
        Operands and result together from which a call is looked at; by default
        ``ACCELERA_MEMORY_THRESHOLD_GB`` in GiB, else an eighth of the budget.
    spill
        Folder on a disk for results that do not fit: they come back as tensors over a mapped file. False
        refuses them. By default ``ACCELERA_SPILL``, else the temporary folder.
    device
        What computes products of operands in RAM, such as ``"cuda"``; by default the CPU.

    Raises
    ------
    SettingError, ValueError
        An amount cannot be read, or ``spill`` names no folder that can be written to.
    UnknownNameError
        There is no such device.
    """
    limits = limits_of(budget, min_size, memory_threshold, spill=spill, device=device)
    with _lock:
        former = list(_enabled)
        _begin(limits)
        _end(*former)
        _enabled[:] = [limits]


def disable() -> None:
    """Leave PyTorch as it was, in every thread, whatever was enabled or intercepted; otherwise do nothing."""
    with _lock:
        _end(*_entries)


@contextmanager
def intercepted(
    budget: Amount | None = None,
    min_size: int | None = None,
    memory_threshold: Amount | None = None,
    *,
    spill: str | Path | bool | None = None,
    device: str | None = None,
) -> Iterator[None]:
    """Compute large PyTorch calls within a budget until the end of the block, in every thread.

    Takes what ``enable`` takes. Blocks nest; leaving one puts the settings before it in force again.

    Parameters
    ----------
    budget, min_size, memory_threshold, spill, device
        As ``enable`` takes them.
    """
    with within(limits_of(budget, min_size, memory_threshold, spill=spill, device=device)):
        yield


@contextmanager
def within(limits: Limits) -> Iterator[None]:
    """Intercept by ``limits`` until the end of the block."""
    with _lock:
        _begin(limits)
    try:
        yield
    finally:
        with _lock:
            _end(limits)


def _begin(limits: Limits) -> None:
    _entries.append(limits)
    try:
        _follow()
    except BaseException:
        _end(limits)
        raise


def _end(*ended: Limits) -> None:
    if ended:
        _entries[:] = [each for each in _entries if each not in ended]
        _enabled[:] = [each for each in _enabled if each not in ended]
        _follow()


def _follow() -> None:
    """Bring torch in line with the last entry."""
    latest = _entries[-1] if _entries else None
    put_in_force(latest)
    if latest is None:
        disarm()
    else:
        arm(handlers(), latest.memory_threshold_bytes, latest.min_size)
