"""One product asked for by name, whether calls are intercepted or not."""

from __future__ import annotations

from typing import Any

import torch

from accelera.errors import DTypeError
from accelera.interceptor.calls import broadcast, nbytes
from accelera.interceptor.enabling import within
from accelera.interceptor.force import in_force
from accelera.interceptor.limits import Limits, limits_of


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
    return _is_large(_limits(), a, b)


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
    limits = _limits()
    if in_force() is not None or not _is_large(limits, a, b):
        return torch.matmul(a, b)
    with within(limits):
        return torch.matmul(a, b)


def _check(*operands: Any) -> None:
    for each in operands:
        if not isinstance(each, torch.Tensor):
            raise DTypeError(
                f"[accelera_matmul] an operand is a {type(each).__name__}: products are of tensors; give "
                "torch.as_tensor(…) of it"
            )


def _limits() -> Limits:
    return in_force() or limits_of()


def _is_large(limits: Limits, a: torch.Tensor, b: torch.Tensor | None) -> bool:
    operands = [a] if b is None else [a, b]
    if any(each.layout != torch.strided or each.is_quantized or each.is_meta for each in operands):
        return False
    longest = max(max(each.shape, default=1) for each in operands)
    result = 0 if b is None else _result_bytes(a, b)
    return longest >= limits.min_size and result + sum(each.nbytes for each in operands) >= (
        limits.memory_threshold_bytes
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
