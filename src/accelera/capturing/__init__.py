"""What a PyTorch program does with memory, for real or by shapes alone: every access of every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera.capturing.capturing import capture
from accelera.capturing.live import live_bytes, peak_live_bytes
from accelera.lazily import opened

if TYPE_CHECKING:
    from accelera.capturing.fake import CopiesOfFakes as CopiesOfFakes
    from accelera.capturing.fake import as_fake as as_fake
    from accelera.capturing.fake import default_dtype as default_dtype
    from accelera.capturing.fake import faked as faked
    from accelera.capturing.fake import initializers_of_shapes as initializers_of_shapes
    from accelera.capturing.fake import is_on_meta as is_on_meta
    from accelera.capturing.fake import values_explained as values_explained
    from accelera.capturing.flops import flops_of as flops_of
    from accelera.capturing.iterations import call as call
    from accelera.capturing.iterations import default_loss as default_loss
    from accelera.capturing.iterations import optimizer_for as optimizer_for
    from accelera.capturing.keeping import collection_by_hand as collection_by_hand
    from accelera.capturing.keeping import mode_kept as mode_kept
    from accelera.capturing.keeping import random_kept as random_kept
    from accelera.capturing.listening import Listener as Listener
    from accelera.capturing.misfits import misfits_explained as misfits_explained
    from accelera.capturing.operands import Effect as Effect
    from accelera.capturing.operands import tensors_in as tensors_in
    from accelera.capturing.recording import Recording as Recording
    from accelera.capturing.shape_rules import ShapeMode as ShapeMode
    from accelera.capturing.shape_rules import shape_rule as shape_rule
    from accelera.capturing.storages import Storages as Storages
    from accelera.capturing.transformers_package import transformers_for as transformers_for

_NAMES_BY_FILE = {
    "fake": (
        "CopiesOfFakes",
        "as_fake",
        "default_dtype",
        "faked",
        "initializers_of_shapes",
        "is_on_meta",
        "values_explained",
    ),
    "flops": ("flops_of",),
    "iterations": ("call", "default_loss", "optimizer_for"),
    "keeping": ("collection_by_hand", "mode_kept", "random_kept"),
    "listening": ("Listener",),
    "misfits": ("misfits_explained",),
    "operands": ("Effect", "tensors_in"),
    "recording": ("Recording",),
    "shape_rules": ("ShapeMode", "shape_rule"),
    "storages": ("Storages",),
    "transformers_package": ("transformers_for",),
}
"""What loads torch, and so is imported when it is asked for."""

_FILE_OF = {name: file for file, names in _NAMES_BY_FILE.items() for name in names}

__all__ = [
    "CopiesOfFakes",
    "Effect",
    "Listener",
    "Recording",
    "ShapeMode",
    "Storages",
    "as_fake",
    "call",
    "capture",
    "collection_by_hand",
    "default_dtype",
    "default_loss",
    "faked",
    "flops_of",
    "initializers_of_shapes",
    "is_on_meta",
    "live_bytes",
    "misfits_explained",
    "mode_kept",
    "optimizer_for",
    "peak_live_bytes",
    "random_kept",
    "shape_rule",
    "tensors_in",
    "transformers_for",
    "values_explained",
]

__getattr__, __dir__ = opened("accelera.capturing", _FILE_OF)
