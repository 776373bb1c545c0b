"""The kernels that a check of a GPU runs, on a device: a real one, or the emulator's."""

from __future__ import annotations

import pytest

from tools import gpu_kernels


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


@pytest.mark.parametrize("name", [*gpu_kernels.KERNELS, "optimizers", "graph"])
def test_kernel_agrees_with_the_cpu(name: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_kernels.main(["--only", name, "--device", device]) == 0
    assert capsys.readouterr().out == f"{name}: same\n"
