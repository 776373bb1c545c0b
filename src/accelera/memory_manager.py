"""Front door kept for its name: ``MemoryManager`` lives in ``accelera.memory``."""

from __future__ import annotations

from accelera.memory import MemoryManager

__all__ = ["MemoryManager"]
