"""The ``accelera`` logger and what ``ACCELERA_LOG_LEVEL`` does to it; the root logger stays the user's."""

from __future__ import annotations

import logging

from accelera._fork_locks import ForkSafeLock
from accelera.settings import current_value

logger = logging.getLogger("accelera")
_LOCK = ForkSafeLock()


def configure_logging() -> None:
    """Set the level that ``ACCELERA_LOG_LEVEL`` asks for, and write to stderr unless someone listens.

    Called when an engine or a strategy manager is made, never at import. Without the variable nothing is
    touched.
    """
    level = current_value("log_level")
    if level is None:
        return
    with _LOCK:
        logger.setLevel(level)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)
