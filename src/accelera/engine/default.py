"""The engine behind ``A @ B``: one per process, made when first needed."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelera.engine.matrix_engine import MatrixEngine

_lock = threading.Lock()
_engine: Any = None


def default_engine() -> MatrixEngine:
    """Return the process's engine: every setting at its default, or as ``set_default_engine`` said."""
    global _engine
    with _lock:
        if _engine is None:
            # By name, because engines return matrices and matrices multiply by an engine.
            _engine = importlib.import_module("accelera.engine.matrix_engine").MatrixEngine()
        engine: MatrixEngine = _engine
        return engine


def set_default_engine(engine: MatrixEngine | None) -> None:
    """Use ``engine`` behind ``A @ B`` from now on; None goes back to a new one with the defaults."""
    global _engine
    with _lock:
        _engine = engine
