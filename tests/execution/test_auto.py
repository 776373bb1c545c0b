"""``StrategyManager.auto``: what the machine has, what the environment says, and a budget that holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import DeviceError, SettingError, TaskTooLargeError, UnknownNameError
from accelera.execution import ExecutionStrategy, HardwareCapabilities, StrategyManager, WorkloadProfile
from accelera.execution._internal import Decision
from accelera.execution.executors.device import default_gpu
from accelera.execution.strategy.memory_limit import UNLIMITED, AdmissionControl, ConcurrencyLimit
from accelera.execution.strategy.strategy import default_strategy
from tests.children import answer_of
from tests.execution.budgeted import TASK_BYTES

SLACK_BYTES = 12 << 20
"""What the interpreter itself may take meanwhile: threads' stacks and arenas."""
HYBRID = Decision(ExecutionStrategy.Hybrid(), "given")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ACCELERA_")]:
        monkeypatch.delenv(name)


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HardwareCapabilities, "detect", lambda: HardwareCapabilities(cpu_cores=2))


def test_a_machine_without_a_gpu_works_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch)
    result = StrategyManager.auto().execute(range(100), lambda number: number + 1)
    assert result.outputs == list(range(1, 101))
    assert result.strategy_used == ExecutionStrategy.CpuOnly


def test_torch_is_not_loaded_where_there_is_no_gpu() -> None:
    code = (
        "import sys; from accelera.execution import HardwareCapabilities, StrategyManager\n"
        "HardwareCapabilities.detect = staticmethod(lambda: HardwareCapabilities(cpu_cores=2))\n"
        "StrategyManager.auto('1GiB').execute(range(9), abs)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("auto", ExecutionStrategy.Auto),
        ("cpu", ExecutionStrategy.CpuOnly),
        ("gpu", ExecutionStrategy.GpuOnly),
        ("hybrid", ExecutionStrategy.Hybrid()),
    ],
)
def test_a_strategy_has_a_name(monkeypatch: pytest.MonkeyPatch, name: str, strategy: Any) -> None:
    assert default_strategy(name) == strategy  # type: ignore[arg-type]
    monkeypatch.setenv("ACCELERA_STRATEGY", name.upper())
    assert default_strategy() == strategy
    assert default_strategy(ExecutionStrategy.Hybrid(70, 30)) == ExecutionStrategy.Hybrid(70, 30)


def test_without_a_word_every_batch_is_decided() -> None:
    assert default_strategy() == ExecutionStrategy.Auto


def test_names_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"no strategy is called 'hybird'; did you mean 'hybrid'"):
        StrategyManager.auto(strategy="hybird")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="no device is called"):
        StrategyManager.auto(device="cdua")
    monkeypatch.setenv("ACCELERA_STRATEGY", "both")
    with pytest.raises(SettingError, match="auto, cpu, gpu or hybrid"):
        StrategyManager.auto()


def test_the_environment_is_heeded_and_the_call_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_DEVICE", "sim:1GiB")
    monkeypatch.setenv("ACCELERA_STRATEGY", "gpu")
    monkeypatch.setenv("ACCELERA_WORKERS", "3")
    profile = WorkloadProfile(100, memory_per_task=1 << 20)
    said = StrategyManager.auto("4MiB").explain(profile)
    assert said.strategy == ExecutionStrategy.GpuOnly
    assert "2 at once on the CPU, 2 on the GPU" in said.reasons[-1]
    ran = StrategyManager.auto().execute(range(20), abs)
    assert set(ran.per_device) == {"sim"}
    assert set(StrategyManager.auto(strategy="cpu").execute(range(20), abs).per_device) == {"cpu"}
    assert set(StrategyManager.auto(device="cpu").execute(range(20), abs).per_device) == {"cpu"}


def test_workers_are_the_tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_WORKERS", "0")
    with pytest.raises(SettingError, match="ACCELERA_WORKERS"):
        StrategyManager.auto()
    assert AdmissionControl("1GiB", workers=5).room(1, gpu=False) == ConcurrencyLimit(cpu=5)


def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(DeviceError, match=r"cuda:63 was asked for"):
        StrategyManager.auto(device="cuda:63")


def test_a_simulated_device_is_one_of_ours() -> None:
    gpu = default_gpu("sim:3MiB")
    assert gpu is not None
    assert gpu.memory_available() == 3 << 20
    assert default_gpu("cpu") is None


@given(
    budget=st.integers(1, 10**6),
    task=st.integers(1, 10**5),
    workers=st.integers(1, 200),
    gpu=st.booleans(),
)
def test_both_sides_together_keep_to_the_budget(budget: int, task: int, workers: int, gpu: bool) -> None:
    admission = AdmissionControl(budget, workers)
    if task > budget:
        with pytest.raises(TaskTooLargeError) as refused:
            admission.room(task, gpu=gpu)
        error = refused.value
        assert (error.index, error.needed_bytes, error.budget_bytes) == (0, task, budget)
        return
    room = admission.room(task, gpu=gpu)
    assert room.cpu is not None
    assert 1 <= room.cpu <= workers
    assert (room.cpu + (room.gpu or 0)) * task <= budget
    assert (room.gpu is None) == (not gpu)
    if gpu:
        assert (room.cpu + room.gpu + 1) * task > budget  # type: ignore[operator]


def test_what_is_not_known_is_not_bounded() -> None:
    assert AdmissionControl(1, workers=8).room(0, gpu=True) is UNLIMITED
    assert AdmissionControl(1, workers=8).admitted(HYBRID, 0) == (HYBRID, UNLIMITED)


def test_a_budget_for_one_task_is_the_cpus() -> None:
    decision, room = AdmissionControl("10 B", workers=8).admitted(HYBRID, 6)
    assert (decision.strategy, room) == (ExecutionStrategy.CpuOnly, ConcurrencyLimit(cpu=1))
    assert decision.reasons[-1] == "tasks of 6 B each within 10 B (budget): 1 at once on the CPU"


def test_a_budget_that_does_not_matter_is_not_mentioned() -> None:
    assert AdmissionControl("10GiB", workers=2).admitted(HYBRID, 6)[0] is HYBRID


def test_without_a_budget_free_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskTooLargeError, match="free now within ACCELERA_MEMORY_THRESHOLD, a share"):
        AdmissionControl(None, workers=2).room(1 << 60, gpu=False)
    assert AdmissionControl(None, workers=2).room(1 << 60, gpu=True) == ConcurrencyLimit(cpu=1)
    assert AdmissionControl(None, workers=2).room(1, gpu=True) == ConcurrencyLimit(cpu=2)
    monkeypatch.setenv("ACCELERA_BUDGET", "5KiB")
    with pytest.raises(TaskTooLargeError, match="ACCELERA_BUDGET allows; raise it to at least 6,000 bytes"):
        AdmissionControl(None, workers=2).room(6000, gpu=False)


@pytest.mark.parametrize("strategy", ["cpu", "gpu", "hybrid"])
def test_a_task_that_is_too_large_alone_is_refused_before_any_begins(strategy: Any) -> None:
    begun: list[int] = []
    manager = StrategyManager.auto("1MiB", strategy=strategy, device="sim:64MiB")
    too_large = WorkloadProfile(20, memory_per_task=2 << 20)
    with pytest.raises(TaskTooLargeError, match=r"\[execute\] task 0 takes 2,097,152 bytes") as refused:
        manager.execute(range(20), begun.append, too_large)
    assert isinstance(refused.value, MemoryError)
    with pytest.raises(TaskTooLargeError):
        list(manager.stream(range(20), begun.append, too_large))
    assert begun == []
    assert manager.execute([], abs, too_large).outputs == []


def test_amounts_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="parsecs"):
        StrategyManager.auto("7 parsecs")


def test_the_measured_peak_stays_within_the_budget() -> None:
    cases = [
        (2, 6, "cpu", "execute"),
        (2, 6, "cpu", "stream"),
        (5, 2, "hybrid", "execute"),
        (5, 2, "hybrid", "stream"),
        (4, 6, "gpu", "execute"),
        (1, 6, "hybrid", "execute"),
    ]
    found = answer_of("-m", "tests.execution.budgeted", told=json.dumps(cases))
    for case, peak_bytes in zip(cases, found, strict=True):
        assert TASK_BYTES // 2 <= peak_bytes <= case[0] * TASK_BYTES + SLACK_BYTES, case
