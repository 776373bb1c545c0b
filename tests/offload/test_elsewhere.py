"""What happens to an offloaded model from outside: its files change, its process is forked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import accelera
from accelera.errors import StoreError


def _build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))


def test_a_checkpoint_that_changes_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(_build().state_dict(), path)
    model = accelera.offload_checkpoint(tmp_path, _build, budget="512MiB")
    with open(path, "r+b") as file:
        file.seek(1 << 16)
        file.write(b"\1" * 1000)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match="changed after it was opened"):
        model(torch.ones(1, 256))


def test_a_checkpoint_that_is_deleted_in_use_stays_readable(tmp_path: Path) -> None:
    plain = _build()
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    model = accelera.offload_checkpoint(tmp_path, _build, budget="512MiB")
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(model(torch.ones(1, 256)), plain(torch.ones(1, 256)))


def _said_in_a_fork(model: nn.Module) -> str:
    """Return what the model's forward raises in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model(torch.ones(1, 256))
        except Exception as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_frees_what_the_model_has_made() -> None:
    """The lock of the arenas is held while a process is forked, and must be free in both afterwards."""
    model = accelera.offload(_build(), budget="512MiB")
    results = [model(torch.ones(1, 256))]
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(300)  # ends it if it hangs
        results.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    results.clear()
    assert model(torch.ones(1, 256)).isfinite().all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_told_that_the_model_is_not_there() -> None:
    torch.manual_seed(0)
    model = accelera.offload(_build(), budget="512MiB")
    expected = model(torch.ones(1, 256)).detach().clone()
    assert "DeviceError" in (said := _said_in_a_fork(model))
    assert "fork" in said
    assert torch.equal(model(torch.ones(1, 256)), expected)
