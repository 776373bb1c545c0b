"""Exceptions of PyTorch when a device fails: its own classes where torch is installed."""

from __future__ import annotations

from typing import Any


def out_of_memory(
    message: str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.21 GiB free",
) -> Exception:
    """Return what PyTorch raises when a CUDA device has no memory left: ``torch.OutOfMemoryError``."""
    found: Exception = _torch().OutOfMemoryError(message)
    return found


def transient() -> Exception:
    """Return an error of a device that may be gone the next time."""
    return accelerator_error("launch failure reported by a fake device")


def sticky() -> Exception:
    """Return an error after which a process cannot use its device any more."""
    return accelerator_error("an illegal memory access was encountered")


def accelerator_error(what: str) -> Exception:
    """Return the error of a CUDA call: ``torch.AcceleratorError``, RuntimeError before torch 2.8."""
    kind: type[Exception] = getattr(_torch(), "AcceleratorError", RuntimeError)
    return kind(f"CUDA error: {what}")


def _torch() -> Any:
    import torch

    return torch
