"""Tests marked `cuda` run where torch computes on a GPU, and skip everywhere else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import has_cuda


def test_a_gpu_that_torch_cannot_use_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for the CPU, on a machine whose driver answers, has nothing to test."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    answer = SimpleNamespace(returncode=0, stdout="GPU 0: NVIDIA H200 (UUID: GPU-1)")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not has_cuda.__wrapped__()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert has_cuda.__wrapped__()


def test_an_environment_without_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not has_cuda.__wrapped__()
