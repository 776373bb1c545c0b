"""Capture of a PyTorch program as a trace: every access of every tensor, for real or by shapes alone.

The package can be called: ``accelera.capture(model, inputs)`` is ``accelera.capture.capture(model, inputs)``.
What loads torch is loaded when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._extras import transformers_for
from accelera._lazily import make_callable, opened

if TYPE_CHECKING:
    from accelera.capture.api import CapturedScript as CapturedScript
    from accelera.capture.api import capture as capture
    from accelera.capture.api import capture_script as capture_script
    from accelera.capture.api import live_bytes as live_bytes
    from accelera.capture.api import peak_live_bytes as peak_live_bytes
    from accelera.capture.dispatch_mode import Effect as Effect
    from accelera.capture.dispatch_mode import Listener as Listener
    from accelera.capture.dispatch_mode import tensors_in as tensors_in
    from accelera.capture.fake import CopiesOfFakes as CopiesOfFakes
    from accelera.capture.fake import as_fake as as_fake
    from accelera.capture.fake import default_dtype as default_dtype
    from accelera.capture.fake import faked as faked
    from accelera.capture.fake import initializers_of_shapes as initializers_of_shapes
    from accelera.capture.fake import is_on_meta as is_on_meta
    from accelera.capture.fake import misfits_explained as misfits_explained
    from accelera.capture.fake import unlogged_errors as unlogged_errors
    from accelera.capture.fake import values_explained as values_explained
    from accelera.capture.flops import flops_of as flops_of
    from accelera.capture.iterations import call as call
    from accelera.capture.iterations import default_loss as default_loss
    from accelera.capture.iterations import optimizer_for as optimizer_for
    from accelera.capture.iterations import quickest_s as quickest_s
    from accelera.capture.program import UserProgram as UserProgram
    from accelera.capture.program import is_own as is_own
    from accelera.capture.recording import OperatorRecording as OperatorRecording
    from accelera.capture.request import collection_by_hand as collection_by_hand
    from accelera.capture.request import mode_kept as mode_kept
    from accelera.capture.request import random_kept as random_kept
    from accelera.capture.shape_rules import ShapeMode as ShapeMode
    from accelera.capture.shape_rules import scalars_in_lists as scalars_in_lists
    from accelera.capture.shape_rules import shape_rule as shape_rule
    from accelera.capture.storages import Storages as Storages

_NAMES_BY_FILE = {
    "api": (
        "CapturedScript",
        "capture",
        "capture_script",
        "live_bytes",
        "peak_live_bytes",
    ),
    "dispatch_mode": (
        "Effect",
        "Listener",
        "tensors_in",
    ),
    "fake": (
        "CopiesOfFakes",
        "as_fake",
        "default_dtype",
        "faked",
        "initializers_of_shapes",
        "is_on_meta",
        "misfits_explained",
        "unlogged_errors",
        "values_explained",
    ),
    "flops": ("flops_of",),
    "iterations": (
        "call",
        "default_loss",
        "optimizer_for",
        "quickest_s",
    ),
    "program": (
        "UserProgram",
        "is_own",
    ),
    "recording": ("OperatorRecording",),
    "request": (
        "collection_by_hand",
        "mode_kept",
        "random_kept",
    ),
    "shape_rules": (
        "ShapeMode",
        "scalars_in_lists",
        "shape_rule",
    ),
    "storages": ("Storages",),
}
_FILE_OF = {name: file for file, names in _NAMES_BY_FILE.items() for name in names}

__all__ = [
    "CapturedScript",
    "CopiesOfFakes",
    "Effect",
    "Listener",
    "OperatorRecording",
    "ShapeMode",
    "Storages",
    "UserProgram",
    "as_fake",
    "call",
    "capture",
    "capture_script",
    "collection_by_hand",
    "default_dtype",
    "default_loss",
    "faked",
    "flops_of",
    "initializers_of_shapes",
    "is_on_meta",
    "is_own",
    "live_bytes",
    "misfits_explained",
    "mode_kept",
    "optimizer_for",
    "peak_live_bytes",
    "quickest_s",
    "random_kept",
    "scalars_in_lists",
    "shape_rule",
    "tensors_in",
    "transformers_for",
    "unlogged_errors",
    "values_explained",
]

__getattr__, __dir__ = opened("accelera.capture", _FILE_OF)

make_callable("accelera.capture", "capture")
