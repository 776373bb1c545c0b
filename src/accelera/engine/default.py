"""The engine behind ``A @ B``: one per process, made when first needed."""

from __future__ import annotations

import threading

from accelera.engine.matrix_engine import MatrixEngine

_lock = threading.Lock()
_engine: MatrixEngine | None = None


def default_engine() -> MatrixEngine:
    """Return the process's engine: every setting at its default, or as ``set_default_engine`` said."""
    global _engine
    with _lock:
        if _engine is None:
            _engine = MatrixEngine()
        return _engine


def set_default_engine(engine: MatrixEngine | None) -> None:
    """Use ``engine`` behind ``A @ B`` from now on; None goes back to a new one with the defaults.

    Parameters
    ----------
    engine
        The engine to use; None: a new one with the defaults.
    """
    global _engine
    with _lock:
        _engine = engine
