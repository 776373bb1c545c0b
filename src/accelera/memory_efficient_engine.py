"""Front door kept for its name: ``MemoryEfficientEngine`` lives in ``accelera.engine``."""

from __future__ import annotations

from accelera.engine import MemoryEfficientEngine

__all__ = ["MemoryEfficientEngine"]
