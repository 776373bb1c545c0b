"""Blocks that nodes make on their accelerators, in this process and without Ray."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.devices import SimulatedDevice, get_device
from accelera.engine import MatrixEngine, RunReport, distributed
from accelera.errors import BudgetExceededError
from accelera.execution import RayExecutor
from accelera.testing import LocalCluster


class Nodes(LocalCluster):
    """Two nodes that have an accelerator."""

    node_device: str | None = "sim:64MiB"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.save(tmp_path / "a.npy", rng.integers(-9, 10, (300, 200)).astype("int32"))
    np.save(tmp_path / "b.npy", rng.integers(-9, 10, (200, 250)).astype("int32"))
    return tmp_path


def product(files: Path, nodes: Nodes, budget: str = "64MiB") -> RunReport:
    engine = MatrixEngine(device="cpu", enable_progress=False)
    a, b, out = (files / f"{name}.npy" for name in "abc")
    engine.matmul(a, b, out=out, cluster=RayExecutor(nodes), node_budget=budget)
    assert np.array_equal(np.load(out), np.load(a) @ np.load(b))
    return engine.last_report


def given(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes find ``device`` under any name but the CPU's."""
    find = get_device

    def found(name: Any = None) -> Any:
        return find("cpu") if name == "cpu" else device

    monkeypatch.setattr(distributed, "get_device", found)


def test_the_accelerator_of_a_node_makes_its_blocks(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice("64MiB")
    given(device, monkeypatch)
    report = product(files, Nodes())
    did = device.report()
    assert set(report.per_device) == {f"{os.uname().nodename}/{os.getpid()} sim"}
    assert sum(each.blocks for each in report.per_device.values()) == report.steps_run
    assert did.computations >= report.steps_run
    assert did.bytes_up > 0 < did.bytes_down
    assert report.fallbacks == ()
    assert report.plan.placement is not None
    assert "each on sim:64MiB; the figures are those of processors" in report.plan.placement.reason


def test_its_memory_is_planned_for_on_the_node(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice("160KiB")
    given(device, monkeypatch)
    report = product(files, Nodes())
    assert 0 < device.report().peak_bytes <= 160 << 10
    assert report.fallbacks == ()


@pytest.mark.parametrize("device", ["sim:1KiB", "cuda:99"])
def test_a_node_whose_accelerator_is_too_small_or_missing_uses_its_processors(
    files: Path, device: str
) -> None:
    nodes = Nodes()
    nodes.node_device = device
    report = product(files, nodes)
    assert set(report.per_device) == {f"{os.uname().nodename}/{os.getpid()}"}
    assert len(report.fallbacks) == report.steps_run
    assert all("a block went to the CPU" in note for note in report.fallbacks)


def test_a_block_at_which_an_accelerator_fails_is_made_again(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(SimulatedDevice("64MiB", fail_compute_at=(2, 5)), monkeypatch)
    report = product(files, Nodes())
    assert len(report.fallbacks) == 2
    assert len(report.per_device) == 2


def test_what_an_accelerator_takes_of_the_ram_is_in_the_budget(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimulatedDevice("64MiB")
    monkeypatch.setattr(device, "staging_bytes", lambda: 1 << 40, raising=False)
    given(device, monkeypatch)
    report = product(files, Nodes())
    assert device.report().computations == 0
    assert "of its node's RAM, and the budget is" in report.fallbacks[0]


def test_processors_are_told_when_a_block_does_not_fit(files: Path) -> None:
    nodes = Nodes()
    nodes.node_device = "cpu"
    with pytest.raises(BudgetExceededError):
        product(files, nodes, budget="1MiB")
