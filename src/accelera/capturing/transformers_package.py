"""The package ``transformers``, for those who read its configurations."""

from __future__ import annotations

from typing import Any

from accelera.extras import needed_for


def transformers_for(op: str, what: object) -> Any:
    """Return the package, with which ``op`` reads ``what``; raises BackendMissingError without it."""
    with needed_for(op, f"which reads {what}"):
        import transformers
    return transformers
