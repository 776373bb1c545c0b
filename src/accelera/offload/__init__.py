"""Torch modules bigger than their device: weights, gradients and states stream through the buffer pool.

The package can be called: ``accelera.offload(model, budget)`` is ``accelera.offload.offload(model, budget)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import make_callable, opened

if TYPE_CHECKING:
    from accelera.offload.api import offload as offload
    from accelera.offload.api import offload_checkpoint as offload_checkpoint
    from accelera.offload.api import offloaded as offloaded
    from accelera.offload.block_cache import OffloadReport as OffloadReport
    from accelera.offload.handle import Offloaded as Offloaded
    from accelera.offload.planning.plan import OffloadPlan as OffloadPlan
    from accelera.offload.planning.planner import plan_offload as plan_offload
    from accelera.offload.tensor import OffloadedTensor as OffloadedTensor

_FILES = {
    "offload": "api",
    "offloaded": "api",
    "Offloaded": "handle",
    "OffloadPlan": "planning.plan",
    "OffloadReport": "block_cache",
    "OffloadedTensor": "dispatch",  # with the rules for operators on it
    "offload_checkpoint": "api",
    "plan_offload": "planning.planner",
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


__getattr__, __dir__ = opened("accelera.offload", _FILES)

make_callable("accelera.offload", "offload")
