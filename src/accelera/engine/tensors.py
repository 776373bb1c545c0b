"""torch, or the part of it that a ``Matrix`` needs, over NumPy, where torch is not installed.

Arrays of NumPy and tensors are turned into each other without copying.
"""

from __future__ import annotations

import warnings
from collections.abc import Set
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from accelera.errors import DTypeError
from accelera.stores._internal import has_whole_strides, plain_array

if TYPE_CHECKING:
    import torch as torch
else:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from accelera.engine import numpy_tensors as torch

BOOL: Final[Any] = getattr(torch, "bool", np.dtype(np.bool_))
"""The element type of truth values."""
STRIDED: Final[Any] = getattr(torch, "strided", None)
"""The layout of dense tensors."""
SLOW_ON_CPU: Final[Set[Any]] = getattr(torch, "SLOW_ON_CPU", {torch.float16})
"""Element types whose large products the planned kernels compute faster than a direct call on the CPU."""
NOT_ON_CPU: Final[Set[Any]] = getattr(torch, "NOT_ON_CPU", {torch.uint16, torch.uint32, torch.uint64})
"""Element types that a direct call does not multiply on the CPU."""
WIDENED: Final[Set[Any]] = getattr(torch, "HALVES", frozenset())
"""Element types whose operands and result a direct product also holds in float32."""


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return ``data`` as a tensor without gradient, sharing its memory where torch can address it.

    A read-only array is shared too: do not write to the tensor then. Raises DTypeError when torch has
    no such element type or ``data`` is no array.
    """
    if isinstance(data, torch.Tensor):
        tensor = data.detach() if data.requires_grad else data
    elif isinstance(data, np.ndarray):
        tensor = _from_array(data)
    elif isinstance(data, list | tuple):
        tensor = _from_list(data)
    elif hasattr(data, "__array__"):
        tensor = _from_array(np.asarray(data))
    else:
        raise DTypeError(
            f"[Matrix] {type(data).__name__} is no array; give a tensor, a NumPy array or a list"
        )
    return tensor if dtype is None else tensor.to(dtype)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return ``tensor`` as an array, sharing its memory in RAM, copied from an accelerator."""
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    if host.dtype is torch.bfloat16:
        return host.view(torch.int16).numpy().view(BFLOAT16)
    return host.numpy()


def to_torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return torch's name for a dtype of torch or NumPy, without torch NumPy's; None stays None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    try:
        return _from_array(np.empty(0, np.dtype(dtype))).dtype
    except (TypeError, ValueError, SyntaxError) as error:
        raise DTypeError(f"[Matrix] element type {dtype!r}: {error}; give torch's or NumPy's name") from error


def _from_array(given: np.ndarray[Any, Any]) -> torch.Tensor:
    array = plain_array("Matrix", given)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "V" and array.dtype == BFLOAT16:
        return _from_array(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array) if array.flags.writeable else _from_read_only(array)
    except (TypeError, ValueError) as error:
        if min(array.strides, default=0) < 0 or not has_whole_strides(array):
            return _from_array(array.copy())
        raise DTypeError(
            f"[Matrix] no Matrix holds elements of NumPy's {array.dtype}; convert it with astype"
        ) from error


def _from_read_only(array: np.ndarray[Any, Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _from_list(data: Any) -> torch.Tensor:
    try:
        return torch.tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(f"[Matrix] a list must hold numbers in rows of equal length: {error}") from error
