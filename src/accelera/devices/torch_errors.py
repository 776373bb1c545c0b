"""torch's errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from accelera.errors import AcceleraError, DeviceError, DeviceMemoryError

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@contextlib.contextmanager
def translated(op: str, what: str = "") -> Iterator[None]:
    """Raise DeviceMemoryError for torch's out of memory and DeviceError for its other failures."""
    try:
        yield
    except AcceleraError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
            raise DeviceMemoryError(f"[{op}] {what}: {first}; work in smaller blocks") from error
        raise DeviceError(f"[{op}] {what}: {first}") from error
