"""The ways to intercept, fastest first, and which of them is used here."""

from __future__ import annotations

from accelera.errors import BackendMissingError
from accelera.interceptor.mechanism import python_tier
from accelera.interceptor.mechanism.contract import Tier


def chosen() -> Tier:
    """Return the way that is used, looked for at the first call.

    Raises
    ------
    BackendMissingError
        None works, or not the one that ACCELERA_INTERCEPTION asks for.
    """
    fault = python_tier.fault()
    if fault is not None:
        raise BackendMissingError(f"[interception] {fault}; install a newer torch")
    return python_tier.PythonTier()


def tier() -> str:
    """Return how calls are caught here: ``"shim"``, ``"stable"`` or ``"python"``."""
    return chosen().name


def why() -> str:
    """Return why calls are caught that way, for people."""
    return "by kernels in Python"
