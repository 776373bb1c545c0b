"""Front door kept for its name: capturing lives in ``accelera.capture``."""

from __future__ import annotations

import warnings
from typing import Any

import accelera.capture as _package
from accelera.capture import __all__ as __all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'accelera.capturing' has no attribute {name!r}")
    warnings.warn(
        f"accelera.capturing is now accelera.capture: import {name} from there",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(_package, name)
