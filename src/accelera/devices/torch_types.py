"""Element types and errors of torch as NumPy's and ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

from accelera.devices.out_of_memory import is_out_of_memory
from accelera.errors import AcceleraError, DeviceError, DeviceMemoryError, DTypeError


@contextlib.contextmanager
def translated(op: str, what: str = "") -> Iterator[None]:
    """Raise DeviceMemoryError for torch's out of memory and DeviceError for its other failures."""
    try:
        yield
    except AcceleraError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if is_out_of_memory(error):
            raise DeviceMemoryError(f"[{op}] {what}: {first}; work in smaller blocks") from error
        raise DeviceError(f"[{op}] {what}: {first}") from error


_FLOATS: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.complex64): torch.complex64,
    np.dtype(np.complex128): torch.complex128,
}
_WIDTHS = (8, 16, 32, 64)
_TO_TORCH: dict[np.dtype[Any], torch.dtype] = {
    **_FLOATS,
    np.dtype(np.bool_): torch.bool,
    **{np.dtype(f"{s}int{width}"): getattr(torch, f"{s}int{width}") for s in ("", "u") for width in _WIDTHS},
}
_TO_NUMPY = {theirs: ours for ours, theirs in _TO_TORCH.items()}
_SIGNED = {getattr(torch, f"uint{width}"): getattr(torch, f"int{width}") for width in _WIDTHS}
_NOT_ON_MPS = (torch.float64, torch.complex128)


def torch_dtype(dtype: np.dtype[Any], device: torch.device) -> torch.dtype:
    """Return torch's type for ``dtype``; raises DTypeError when torch or the device has none."""
    if not is_held(dtype, device):
        raise DTypeError(f"[view] {dtype} cannot be held on {device}; convert it, or use the CPU")
    return _TO_TORCH[dtype]


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's type for a tensor's."""
    return _TO_NUMPY[dtype]


def wire_dtype(host: np.dtype[Any], held: torch.dtype, device: torch.device) -> np.dtype[Any]:
    """Return the type in which elements travel.

    Floats travel as the host has them and are converted on the device; the rest is converted on the host.
    """
    if host in _FLOATS and numpy_dtype(held) in _FLOATS and is_held(host, device):
        return host
    return numpy_dtype(held)


def signed(tensor: torch.Tensor) -> torch.Tensor:
    """Return unsigned integers as signed ones: sums and products wrap around to the same bits."""
    other = _SIGNED.get(tensor.dtype)
    return tensor if other is None else tensor.view(other)


def numpy_view(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a host byte tensor's memory as a one-dimensional array, bfloat16 included."""
    flat: np.ndarray[Any, Any] = tensor.numpy().view(dtype)
    return flat


def is_held(dtype: np.dtype[Any], device: torch.device) -> bool:
    """Return whether torch has tensors of ``dtype`` on ``device``."""
    found = _TO_TORCH.get(dtype)
    return found is not None and not (device.type == "mps" and found in _NOT_ON_MPS)
