"""What tests of interception share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accelera.interceptor import hooks
from accelera.interceptor.hooks import OPERATORS


def dumps() -> dict[str, str]:
    """Return what the dispatcher has for every operator that can be intercepted."""
    return {name: torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS}


def recording(heard: list[str]) -> dict[str, Callable[..., Any]]:
    """Return a handler for every operator that notes its name and calls the original."""

    def noting(name: str) -> Callable[..., Any]:
        def handler(*args: Any, **kwargs: Any) -> Any:
            heard.append(name)
            return hooks.original(name)(*args, **kwargs)

        return handler

    return {name: noting(name) for name in OPERATORS}
