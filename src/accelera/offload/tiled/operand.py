"""What the tiled operations need to know of an offloaded tensor."""

from __future__ import annotations

from itertools import accumulate

from typing_extensions import TypeIs

from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.layout import Layout


def is_offloaded(value: object) -> TypeIs[OffloadedTensor]:
    """Whether ``value`` lives in the pool."""
    return isinstance(value, OffloadedTensor)


def layout_of(tensor: OffloadedTensor) -> Layout:
    """Return where the elements of ``tensor`` lie in its blocks."""
    counts = [block.nbytes // tensor.element_size() for block in tensor.blocks]
    starts = (0, *accumulate(counts[:-1]))
    return Layout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), starts)


def is_tiled(value: object) -> bool:
    """Whether ``value`` is an offloaded tensor that reaches into more than one block."""
    return is_offloaded(value) and len(value.blocks) > 1 and not layout_of(value).single
