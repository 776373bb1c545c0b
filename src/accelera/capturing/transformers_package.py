"""The package ``transformers``, for those who read its configurations."""

from __future__ import annotations

import importlib
from typing import Any

from accelera.errors import BackendMissingError


def transformers_for(op: str, what: object) -> Any:
    """Return the package, with which ``op`` reads ``what``; raises BackendMissingError without it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise BackendMissingError(
            f"[{op}] {what} is read by transformers, which is not installed; install it: "
            "pip install 'accelera[llm]'"
        ) from error
