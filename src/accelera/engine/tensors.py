"""torch, or the part of it that a ``Matrix`` needs, over NumPy, where torch is not installed."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any, Final

import numpy as np

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
SLOW_ON_CPU: Final[Set[Any]] = getattr(torch, "SLOW_ON_CPU", {torch.float16})
"""Element types whose large products the planned kernels compute faster than a direct call on the CPU."""
NOT_ON_CPU: Final[Set[Any]] = getattr(torch, "NOT_ON_CPU", {torch.uint16, torch.uint32, torch.uint64})
"""Element types that a direct call does not multiply on the CPU."""
WIDENED: Final[Set[Any]] = getattr(torch, "HALVES", frozenset())
"""Element types whose operands and result a direct product also holds in float32."""
