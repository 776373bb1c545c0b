"""What a CUDA graph captures is torch's own kernel: no handler asks the device anything meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelera.interceptor.hooks import dispatch
from accelera.interceptor.hooks.dispatch import Armed, handle
from accelera.testing import FakeCuda


@pytest.mark.parametrize(
    ("place", "capturing", "by"),
    [("cuda", False, "handler"), ("cuda", True, "original"), ("cpu", True, "handler")],
)
def test_a_call_that_is_captured_goes_to_the_original(
    monkeypatch: pytest.MonkeyPatch, place: str, capturing: bool, by: str
) -> None:
    armed = Armed({"mm": lambda *args: "handler"}, 0, 0)
    monkeypatch.setattr(dispatch, "_armed", [armed])
    monkeypatch.setattr(dispatch, "original", lambda name: lambda *args: "original")
    with FakeCuda() as cuda:
        a: Any = torch.ones(2, 2, device=place)
        cuda.capturing = capturing
        assert handle("mm", (a, a), {}) == by


def test_a_torch_without_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise RuntimeError("Tried to instantiate dummy base class")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", refuse)
    monkeypatch.setattr(dispatch, "_armed", [Armed({"mm": lambda *args: "handler"}, 0, 0)])
    assert handle("mm", (torch.ones(2, 2),), {}) == "handler"
