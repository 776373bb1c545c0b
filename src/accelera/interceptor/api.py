"""Interception on and off, the handler of each operator, and one product asked for by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from accelera.errors import DTypeError
from accelera.interceptor.attention import kernels, multi_head, sdpa
from accelera.interceptor.batched_matmul import matmul
from accelera.interceptor.config import (
    Amount,
    InterceptionConfig,
    active_config,
    config_of,
    set_active_config,
)
from accelera.interceptor.elementwise import ElementwiseCall, schema_of
from accelera.interceptor.gemm import MatmulCall, form_of
from accelera.interceptor.hooks import arm, disarm
from accelera.interceptor.hooks.operators import BELOW_AUTOGRAD, Rule
from accelera.interceptor.router import Handler, Reader, handler_of
from accelera.interceptor.tiling import broadcast, nbytes

_lock = threading.RLock()
_entries: list[InterceptionConfig] = []
"""Everything that was begun and not ended; the last is in force."""
_enabled: list[InterceptionConfig] = []
"""The one entry that ``enable`` began, if it is not ended."""


def enable(
    budget: Amount | None = None,
    min_size: int | None = None,
    memory_threshold: Amount | None = None,
    *,
    spill_dir: str | Path | bool | None = None,
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
    spill_dir
        Folder on a disk for results that do not fit: they come back as tensors over a mapped file. False
        refuses them. By default ``ACCELERA_SPILL``, else the temporary folder.
    device
        What computes products of operands in RAM, such as ``"cuda"``; by default the CPU.

    Raises
    ------
    SettingError, ValueError
        An amount cannot be read, or ``spill_dir`` names no folder that can be written to.
    UnknownNameError
        There is no such device.
    """
    config = config_of(budget, min_size, memory_threshold, spill_dir=spill_dir, device=device)
    with _lock:
        former = list(_enabled)
        _push_entry(config)
        _remove_entries(*former)
        _enabled[:] = [config]


def disable() -> None:
    """Leave PyTorch as it was, in every thread, whatever was enabled or intercepted; otherwise do nothing."""
    with _lock:
        _remove_entries(*_entries)


@contextmanager
def intercepted(
    budget: Amount | None = None,
    min_size: int | None = None,
    memory_threshold: Amount | None = None,
    *,
    spill_dir: str | Path | bool | None = None,
    device: str | None = None,
) -> Iterator[None]:
    """Compute large PyTorch calls within a budget until the end of the block, in every thread.

    Takes what ``enable`` takes. Blocks nest; leaving one puts the settings before it in force again.

    Parameters
    ----------
    budget, min_size, memory_threshold, spill_dir, device
        As ``enable`` takes them.
    """
    with within(config_of(budget, min_size, memory_threshold, spill_dir=spill_dir, device=device)):
        yield


@contextmanager
def within(config: InterceptionConfig) -> Iterator[None]:
    """Intercept by ``config`` until the end of the block."""
    with _lock:
        _push_entry(config)
    try:
        yield
    finally:
        with _lock:
            _remove_entries(config)


def _push_entry(config: InterceptionConfig) -> None:
    _entries.append(config)
    try:
        _apply_last_entry()
    except BaseException:
        _remove_entries(config)
        raise


def _remove_entries(*ended: InterceptionConfig) -> None:
    if ended:
        _entries[:] = [each for each in _entries if each not in ended]
        _enabled[:] = [each for each in _enabled if each not in ended]
        _apply_last_entry()


def _apply_last_entry() -> None:
    """Bring torch in line with the last entry."""
    latest = _entries[-1] if _entries else None
    set_active_config(latest)
    if latest is None:
        disarm()
    else:
        arm(handlers(), latest.memory_threshold_bytes, latest.min_size)


@cache
def handlers() -> Mapping[str, Handler]:
    """Return the handler of every operator that goes in pieces."""
    below = {name: handler_of(name, _reader(name, rule)) for name, rule in BELOW_AUTOGRAD.items()}
    return {**below, "matmul": matmul, kernels.OP: sdpa.attention, multi_head.OP: multi_head.attention}


def _reader(name: str, rule: Rule) -> Reader:
    if rule == "product":
        form = form_of(name)
        return lambda args, kwargs: MatmulCall(name, form, args, kwargs)
    schema = schema_of(name)
    return lambda args, kwargs: ElementwiseCall(name, schema, args, kwargs)


def should_intercept(a: torch.Tensor, b: torch.Tensor | None = None) -> bool:
    """Return whether a product of ``a`` and ``b`` is large enough to be looked at.

    By the thresholds in force, or those of ``ACCELERA_MIN_SIZE`` and ``ACCELERA_MEMORY_THRESHOLD_GB``.
    Without ``b`` the sizes of ``a`` alone decide; with it the result counts as well. Sparse,
    quantized and meta tensors never are.

    Parameters
    ----------
    a
        The left factor.
    b
        The right factor; None: ``a`` alone decides.
    """
    return _is_large(_config(), a, b)


def accelera_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``torch.matmul(a, b)``, within the budget when ``should_intercept`` says so.

    The budget is the one in force, or else the one that ``enable()`` would take; then the product's backward
    pass is torch's own unless it runs while calls are intercepted.

    Parameters
    ----------
    a, b
        Factors, as ``torch.matmul`` takes them.

    Raises
    ------
    DTypeError
        An operand is no tensor.
    BudgetExceededError
        The product does not fit the budget by any route.
    """
    _check(a, b)
    config = _config()
    if active_config() is not None or not _is_large(config, a, b):
        return torch.matmul(a, b)
    with within(config):
        return torch.matmul(a, b)


def _check(*operands: Any) -> None:
    for each in operands:
        if not isinstance(each, torch.Tensor):
            raise DTypeError(
                f"[accelera_matmul] an operand is a {type(each).__name__}: products are of tensors; give "
                "torch.as_tensor(…) of it"
            )


def _config() -> InterceptionConfig:
    return active_config() or config_of()


def _is_large(config: InterceptionConfig, a: torch.Tensor, b: torch.Tensor | None) -> bool:
    operands = [a] if b is None else [a, b]
    if any(each.layout != torch.strided or each.is_quantized or each.is_meta for each in operands):
        return False
    longest = max(max(each.shape, default=1) for each in operands)
    result = 0 if b is None else _result_bytes(a, b)
    return longest >= config.min_size and result + sum(each.nbytes for each in operands) >= (
        config.memory_threshold_bytes
    )


def _result_bytes(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the bytes of the product; 0 for operands of which there is none."""
    if not a.dim() or not b.dim():
        return 0
    try:
        batch = broadcast((a.shape[:-2], b.shape[:-2]))
    except ValueError:
        return 0
    return nbytes((*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ())), a.dtype)
