"""torch's errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from accelera.devices.out_of_memory import is_out_of_memory
from accelera.errors import AcceleraError, DeviceError, DeviceMemoryError


@contextlib.contextmanager
def translated(op: str, what: str = "") -> Iterator[None]:
    """Raise DeviceMemoryError for torch's out of memory and DeviceError for its other failures."""
    try:
        yield
    except AcceleraError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if is_out_of_memory(error):
            raise DeviceMemoryError(f"[{op}] {what}: {first}; work in smaller blocks") from error
        raise DeviceError(f"[{op}] {what}: {first}") from error
