"""The same test on a fake GPU, where every race shows, and on a real one where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from accelera.engine import calibration
from accelera.engine._internal import LinkRates
from accelera.testing import FakeCuda

BOTH = ["fake", pytest.param("real", marks=pytest.mark.cuda)]
"""Parameters of a fixture that enters ``gpu_of``."""
_LATE_CYCLES = 100_000_000
"""About a twentieth of a second."""


@contextlib.contextmanager
def gpu_of(kind: str, **options: Any) -> Iterator[None]:
    """Let torch have a GPU for a while: a fake one with these options, or the machine's."""
    if kind == "real":
        yield
        torch.cuda.synchronize()
        return
    rates: dict[str, Any] = {
        "_measured_flops": lambda device: 1e12,
        "_measured_link": lambda device: LinkRates(1e10, 1e10),
    }
    with FakeCuda(**options), mock.patch.multiple(calibration, **rates):
        yield


@contextlib.contextmanager
def own_stream() -> Iterator[Any]:
    """Make a new stream current, which is still busy when work is handed over."""
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_LATE_CYCLES)
        yield stream
