"""Operations on tensors in several blocks, which may be bigger than the pool."""

from accelera.offload.tiled.operand import is_tiled, layout_of
from accelera.offload.tiled.table import form, run
from accelera.offload.tiled.whole import gathered

__all__ = ["form", "gathered", "is_tiled", "layout_of", "run"]
