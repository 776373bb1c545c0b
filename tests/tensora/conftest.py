"""Every test of the tensor library runs twice: with results computed at once, and with all deferred."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import accelera.tensora as ts
from accelera.tensora import cuda
from accelera.tensora.core import native
from tests.tensora import emulator


@pytest.fixture(autouse=True, params=["eager", "deferred"])
def fusion(request: pytest.FixtureRequest) -> Iterator[str]:
    """Elementwise operations on tensors of any size wait, or none do."""
    with ts.fusion(request.param == "deferred", least=1):
        yield request.param


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CUDA device: a real one, or the emulator's."""
    if not cuda.is_available():
        reason = emulator.missing()
        if reason:
            pytest.skip(reason)
        shared = tmp_path_factory.getbasetemp()
        folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "emulator"
        folder.mkdir(exist_ok=True)
        emulator.load(folder)
        native.cuda_set_kernel_folder(str(folder / "kernels"))
        if not cuda.is_available():
            pytest.skip(f"the emulator of a CUDA device is not used: {cuda.absence()}")
    return "cuda:0"
