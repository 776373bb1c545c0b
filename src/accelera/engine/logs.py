"""The ``accelera`` logger and what ``ACCELERA_LOG_LEVEL`` does to it; the root logger stays the user's."""

from __future__ import annotations

import logging

from accelera.settings import current

logger = logging.getLogger("accelera")


def configure_logging() -> None:
    """Set the level that ``ACCELERA_LOG_LEVEL`` asks for, and write to stderr unless someone listens.

    Called when an engine is made, never at import. Without the variable nothing is touched.
    """
    level = current().log_level
    if level is None:
        return
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
