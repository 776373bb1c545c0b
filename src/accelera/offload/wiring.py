"""Gives offloaded tensors all that they do."""

from __future__ import annotations

from accelera.offload.copies import as_mapped, deep_copy, ordinary_copy
from accelera.offload.dispatching import dispatch
from accelera.offload.parted import PartedTensor
from accelera.offload.replacing import replace_data, without_history
from accelera.offload.ways import wire

wire(
    dispatch=dispatch,
    ordinary_copy=ordinary_copy,
    deep_copy=deep_copy,
    as_mapped=as_mapped,
    replace_data=replace_data,
    without_history=without_history,
    parted=PartedTensor,
)
