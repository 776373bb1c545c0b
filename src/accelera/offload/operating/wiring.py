"""Gives offloaded tensors all that they do."""

from __future__ import annotations

from accelera.offload.operating.dispatching import dispatch
from accelera.offload.operating.parted import PartedTensor
from accelera.offload.tensors.copies import as_mapped, deep_copy, ordinary_copy
from accelera.offload.tensors.replacing import replace_data, without_history
from accelera.offload.tensors.ways import wire

wire(
    dispatch=dispatch,
    ordinary_copy=ordinary_copy,
    deep_copy=deep_copy,
    as_mapped=as_mapped,
    replace_data=replace_data,
    without_history=without_history,
    parted=PartedTensor,
)
