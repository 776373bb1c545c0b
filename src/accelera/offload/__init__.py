"""Torch modules bigger than their device: weights, gradients and states stream through the buffer pool.

The package can be called: ``accelera.offload(model, budget)`` is ``accelera.offload.offload(model, budget)``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelera.offload.checkpoint import offload_checkpoint as offload_checkpoint
    from accelera.offload.handle import Offloaded as Offloaded
    from accelera.offload.offload_plan import OffloadPlan as OffloadPlan
    from accelera.offload.offloading import offload as offload
    from accelera.offload.offloading import offloaded as offloaded
    from accelera.offload.planning import plan_offload as plan_offload
    from accelera.offload.report import OffloadReport as OffloadReport
    from accelera.offload.tensor import OffloadedTensor as OffloadedTensor

_FILES = {
    "offload": "offloading",
    "offloaded": "offloading",
    "Offloaded": "handle",
    "OffloadPlan": "offload_plan",
    "OffloadReport": "report",
    "OffloadedTensor": "tensor",
    "offload_checkpoint": "checkpoint",
    "plan_offload": "planning",
}
"""Where each name is; the file is loaded, and torch with it, when the name is first used."""

__all__ = [
    "OffloadPlan",
    "OffloadReport",
    "Offloaded",
    "OffloadedTensor",
    "offload",
    "offload_checkpoint",
    "offloaded",
    "plan_offload",
]


class _Callable(ModuleType):
    """A package that shares its name with its main function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.offload(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'accelera.offload' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"accelera.offload.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Callable
