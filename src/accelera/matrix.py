"""Front door kept for its name: ``Matrix`` lives in ``accelera.engine``."""

from __future__ import annotations

from accelera.engine import Matrix

__all__ = ["Matrix"]
