"""Whether a GPU can be used, as its executor has it."""

from __future__ import annotations

import logging

from accelera.execution.executors.contract import GpuExecutor

_LOGGER = logging.getLogger("accelera.execution")


def is_available(executor: GpuExecutor) -> bool:
    """Return what ``executor`` says; one that raises instead says no."""
    try:
        return bool(executor.is_available())
    except Exception:
        name = getattr(executor, "name", "gpu")
        _LOGGER.exception("is_available() of %s raised: taken for no", name)
        return False
