"""``accelera strategy``: where a batch of work would run, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, HardwareCapabilities, StrategyManager, SystemLoad
from accelera.execution.hardware.capabilities import Accelerator

Run = Callable[..., Any]


class Gpu:
    """A GPU that is there and does nothing."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        raise AssertionError("nothing is to be run")

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 8 << 30


def _with_fake(device: str | None) -> StrategyManager:
    return StrategyManager(None, Gpu())


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = HardwareCapabilities(
        cpu_cores=16,
        gpu_available=True,
        gpu_memory_bytes=24 << 30,
        memory_limit_bytes=64 << 30,
        accelerators=(Accelerator("Fake 24", 24 << 30),),
    )
    monkeypatch.setattr(HardwareCapabilities, "detect", staticmethod(lambda: hardware))
    monkeypatch.setattr(SystemLoad, "current", staticmethod(lambda: SystemLoad(gpu_memory_pressure=0.25)))
    monkeypatch.setattr(StrategyManager, "auto", staticmethod(_with_fake))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = HardwareCapabilities(cpu_cores=4, memory_limit_bytes=2 << 30)
    monkeypatch.setattr(HardwareCapabilities, "detect", staticmethod(lambda: hardware))
    monkeypatch.setattr(StrategyManager, "auto", staticmethod(lambda device: StrategyManager.cpu_only()))


def test_a_machine_without_a_gpu(run: Run, without_gpu: None) -> None:
    ran = run("strategy", "--tasks", "1000", "--memory-per-task", "64MiB", "--parallelization", "0.9")
    assert ran.exit_code == 0
    assert "cpu           4 cores, " in ran.stdout
    assert "memory        2.0 GiB may be used" in ran.stdout
    assert "gpu           none" in ran.stdout
    assert "workload      1000 tasks, 64.0 MiB each, 90% parallel" in ran.stdout
    assert "strategy      CpuOnly\nrule          no GPU\n" in ran.stdout


def test_a_simulated_device_is_shown_as_one(run: Run) -> None:
    said = run("strategy", "-n", "100", "--device", "sim:256MiB").stdout
    assert "gpu           sim:256MiB, 256.0 MiB, simulated\n" in said
    assert "gpu           none" not in said


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("", "f.py:name"),
        (":", "file.py:name or"),
        (":value", "is no function but a int"),
        (":none", "has no none"),
    ],
)
def test_what_names_no_function_is_refused(run: Run, tmp_path: Path, name: str, wanted: str) -> None:
    (tmp_path / "f.py").write_text("value = 5\n")
    refused = run("strategy", "-n", "100", "--function", f"{tmp_path / 'f.py'}{name}")
    assert refused.exit_code == 2
    assert wanted in refused.stderr


@pytest.mark.parametrize(
    ("words", "strategy", "rule"),
    [
        (["--tasks", "9"], ExecutionStrategy.CpuOnly, "small workload"),
        (["--tasks", "50", "--parallelization", "71%"], ExecutionStrategy.GpuOnly, "large parallel workload"),
        (["-n", "50", "--parallelization", "0.7"], ExecutionStrategy.Hybrid(70, 30), "shared workload"),
    ],
)
def test_json_has_the_decision(
    run: Run, with_gpu: None, words: list[str], strategy: ExecutionStrategy, rule: str
) -> None:
    found = json.loads(run("strategy", *words, "--json").stdout)
    decision = found["decision"]
    told = (decision["strategy"], decision["gpu_allocation"], decision["cpu_allocation"])
    assert told == (strategy.kind.value, strategy.gpu_allocation, strategy.cpu_allocation)
    assert decision["rule"] == rule
    assert decision["reasons"]
    assert found["hardware"]["accelerators"] == [{"name": "Fake 24", "memory_bytes": 24 << 30}]
    assert found["load"]["gpu_memory_pressure"] == 0.25


def test_text_tells_of_the_gpu_and_the_shares(run: Run, with_gpu: None) -> None:
    said = run("strategy", "--tasks", "20").stdout
    assert "gpu           Fake 24, 24.0 GiB" in said
    assert "gpu load      25% of its memory" in said
    assert "20 tasks, of unknown size, 80% parallel" in said
    assert "Hybrid (70% GPU, 30% CPU), each side taking what it is fast enough for" in said


def test_what_was_measured_of_a_function_counts(
    run: Run, with_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("def half(task):\n    return task / 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ran = run("strategy", "--tasks", "100", "--function", "work.py:half")
    assert "nothing is measured yet" in ran.stdout
    assert "no function was given" in run("strategy", "--tasks", "100").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--tasks", "-1"],
        ["--tasks", "5", "--memory-per-task", "much"],
        ["--tasks", "5", "--parallelization", "1.5"],
        ["--tasks", "5", "--complexity", "high"],
        ["--tasks", "5", "--function", "nowhere.py:f"],
        [],
    ],
)
def test_what_cannot_be_is_refused(run: Run, without_gpu: None, words: list[str]) -> None:
    assert run("strategy", *words).exit_code == 2


def test_a_gpu_that_is_not_there_can_be_named(run: Run) -> None:
    said = run("strategy", "--tasks", "60", "--parallelization", "90%", "--device", "sim:64MiB").stdout
    assert "strategy      GpuOnly\nrule          large parallel workload\n" in said


def test_this_machine_is_asked(run: Run) -> None:
    found = json.loads(run("strategy", "--tasks", "5", "--json").stdout)
    assert found["hardware"]["cpu_cores"] == HardwareCapabilities.detect().cpu_cores
    assert found["decision"]["strategy"] == "CpuOnly"
