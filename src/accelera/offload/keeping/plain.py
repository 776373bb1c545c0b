"""Ordinary tensors: torch's own, with bytes or, on paper, with a shape alone."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

PLAIN_TYPES = (torch.Tensor, FakeTensor)


def is_plain(value: Any) -> bool:
    """Whether ``value`` is a dense ordinary tensor, no parameter and no other subclass."""
    return type(value) in PLAIN_TYPES and value.layout == torch.strided


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether there is more to ``tensor`` than a shape."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the device of ``tensor``; of one on paper without a question to PyTorch."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
