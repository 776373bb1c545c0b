"""Operations on tensors in several blocks, which may be bigger than the pool."""

from accelera.offload.tiled.operand import is_tiled, layout_of
from accelera.offload.tiled.table import form, run

__all__ = ["form", "is_tiled", "layout_of", "run"]
