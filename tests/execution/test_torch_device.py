"""Tasks through torch: whole micro-batches, where outputs stay, and how many tasks are foreseen to fit."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import UnknownNameError
from accelera.execution import ExecutionStrategy, StrategyManager, TorchDeviceExecutor, kernel
from accelera.execution._internal import Kernel
from accelera.execution.executors.device import DeviceLane
from accelera.execution.faults.batch_size import ENOUGH, MARGIN, MemoryModel
from accelera.execution.tasks.run import CatchingFunction
from tests.execution.stand_ins import blanked

MIB = 1 << 20


def doubled() -> Kernel[Any, Any]:
    """Doubles numbers; the batched form notes how many came at once and where to."""

    @kernel
    def double(task: float) -> torch.Tensor:
        return torch.tensor(2.0 * task)

    @double.gpu_batch
    def _(tasks: Sequence[float], device: str) -> torch.Tensor:
        calls.append((len(tasks), device))
        return torch.tensor(list(tasks), device=device) * 2

    calls: list[tuple[int, str]] = []
    double.calls = calls  # type: ignore[attr-defined]
    return double


def test_it_is_an_executor_of_the_seed() -> None:
    executor = TorchDeviceExecutor("cpu")
    assert executor.is_available()
    assert executor.memory_available() > 0
    assert executor.name == "torch-cpu"
    assert executor.execute_batch([1, 2, 3], lambda task: task + 1) == [2, 3, 4]
    assert executor.execute_batch([], doubled()) == []


def test_a_batched_form_gets_the_whole_micro_batch() -> None:
    double = doubled()
    outputs = TorchDeviceExecutor("cpu").execute_batch([1.0, 2.0, 3.0], double)
    assert [float(each) for each in outputs] == [2, 4, 6]
    assert double.calls == [(3, "cpu")]  # type: ignore[attr-defined]


def test_new_tensors_are_made_on_the_device() -> None:
    seen: list[str] = []

    def look(task: int) -> int:
        seen.append(str(torch.get_default_device()))
        return task

    executor = TorchDeviceExecutor("cpu")
    with torch.device("meta"):
        executor.execute_batch([0], look)
        seen.append(str(torch.get_default_device()))
    assert seen == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("outputs", "words"), [([1, 2], "returned 2 outputs"), (torch.tensor(1.0), "returned Tensor")]
)
def test_a_batched_form_must_return_as_many(outputs: Any, words: str) -> None:
    double = doubled()
    double.gpu_batch(lambda tasks, device: outputs)
    with pytest.raises(ValueError, match=rf"\[torch-cpu\] the batched form got 3 tasks and {words}"):
        TorchDeviceExecutor("cpu").execute_batch([1.0, 2.0, 3.0], double)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_outputs_are_brought_to_the_host_when_asked() -> None:
    def scattered(task: int) -> dict[str, Any]:
        there = torch.empty(1, device="meta")
        return {"a": [there, task], "b": Pair(there, "x"), "c": (there,), "d": None}

    stay = TorchDeviceExecutor("cpu").execute_batch([7], scattered)[0]
    assert stay["a"][0].device.type == "meta"
    brought: list[str] = []

    class Recorded:
        record_stream = None

        def to(self, device: str) -> str:
            brought.append(device)
            return "here"

    outputs = TorchDeviceExecutor("cpu", outputs_to="cpu").execute_batch(
        [7], lambda task: {"a": [Recorded(), task], "b": Pair(Recorded(), "x"), "c": (Recorded(),), "d": None}
    )
    assert outputs == [{"a": ["here", 7], "b": Pair("here", "x"), "c": ("here",), "d": None}]
    assert type(outputs[0]["b"]) is Pair
    assert brought == ["cpu"] * 3


def test_what_a_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        TorchDeviceExecutor("cpu").execute_batch([1, 0], lambda task: 1 // task)


@pytest.mark.parametrize("options", [{"device": "cdua:0"}, {"outputs_to": "host"}])
def test_words_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean|known"):
        TorchDeviceExecutor(**options)


def test_a_budget_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="parsecs"):
        TorchDeviceExecutor("cpu", budget="7 parsecs")


def test_a_device_that_is_not_there_is_not_available_and_the_cpu_works() -> None:
    gpu = TorchDeviceExecutor("cuda:63")
    assert not gpu.is_available()
    result = StrategyManager(None, gpu).execute(range(100), lambda task: task + 1)
    assert result.outputs == list(range(1, 101))
    assert result.strategy_used == ExecutionStrategy.CpuOnly


def test_it_loads_torch_only_when_used() -> None:
    code = (
        "import sys; from accelera.execution import StrategyManager, TorchDeviceExecutor\n"
        "StrategyManager(None, TorchDeviceExecutor('cuda:0'))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_manager_runs_kernels_through_it() -> None:
    double = doubled()
    strategy = ExecutionStrategy.Hybrid(70, 30)
    result = StrategyManager(None, TorchDeviceExecutor("cpu"), strategy).execute(range(40), double)
    assert [float(each) for each in result.outputs] == [2.0 * task for task in range(40)]
    assert sum(count for count, _ in double.calls) == result.per_device["torch-cpu"].tasks == 28  # type: ignore[attr-defined]


def test_errors_in_a_batched_form_are_found_and_judged_on_the_cpu() -> None:
    @kernel
    def inverse(task: int) -> float:
        return 1 / task

    inverse.gpu_batch(lambda tasks, device: [1 / task for task in tasks])
    manager = StrategyManager(None, TorchDeviceExecutor("cpu"), ExecutionStrategy.GpuOnly)
    result = manager.execute([1, 2, 0, 4], inverse, on_error="collect")
    assert blanked(result.outputs) == [1, 0.5, None, 0.25]
    assert [type(failure.error) for failure in result.failures] == [ZeroDivisionError]


class Counted:
    """What torch's module of a device tells of memory, for a device that is not there."""

    def __init__(self, total: int) -> None:
        self.total, self.now, self.peak = total, 0, 0

    def memory_allocated(self, device: Any) -> int:
        return self.now

    def max_memory_allocated(self, device: Any) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peak = self.now

    def take(self, nbytes: int) -> None:
        if self.now + nbytes > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.peak = max(self.peak, self.now + nbytes)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    memory = Counted(100 * MIB)
    monkeypatch.setattr(torch, "get_device_module", lambda device: memory)
    return memory


def costly(memory: Counted, fixed: int, each: int) -> tuple[Kernel[Any, Any], list[int]]:
    """A kernel whose batched form takes ``fixed + n * each`` bytes, and the sizes that fitted."""
    sizes: list[int] = []

    @kernel
    def same(task: int) -> int:
        return task

    @same.gpu_batch
    def _(tasks: Sequence[int], device: str) -> list[int]:
        memory.take(fixed + len(tasks) * each)
        sizes.append(len(tasks))
        return list(tasks)

    return same, sizes


def test_how_many_fit_is_foreseen_from_measured_peaks(counted: Counted) -> None:
    executor = TorchDeviceExecutor("cpu", budget=100 * MIB)
    same, _ = costly(counted, 10 * MIB, MIB)
    assert executor.fitting(same) is None
    executor.execute_batch([0] * 10, CatchingFunction(same))
    assert executor.fitting(same) == 45
    executor.execute_batch([0] * 20, CatchingFunction(same))
    assert executor.fitting(same) == 80


def test_foreseen_micro_batches_do_not_run_out_of_memory(counted: Counted) -> None:
    executor = TorchDeviceExecutor("cpu", budget=100 * MIB)
    same, sizes = costly(counted, 10 * MIB, MIB)
    executor.execute_batch([0] * 5, CatchingFunction(same))
    executor.execute_batch([0] * 9, CatchingFunction(same))
    result = StrategyManager(None, executor, ExecutionStrategy.GpuOnly).execute(range(1000), same)
    assert result.outputs == list(range(1000))
    assert (result.oom_splits, result.fallback_occurred) == (0, False)
    assert max(sizes) == 80


def test_without_measurements_too_much_at_once_is_survived(counted: Counted) -> None:
    same, sizes = costly(counted, 10 * MIB, MIB)
    executor = TorchDeviceExecutor("cpu", budget=100 * MIB)
    result = StrategyManager(None, executor, ExecutionStrategy.GpuOnly).execute(range(1000), same)
    assert result.outputs == list(range(1000))
    assert result.oom_splits > 0
    assert max(sizes) <= 90


def test_a_failed_measurement_tells_nothing(counted: Counted) -> None:
    same, _ = costly(counted, 0, 60 * MIB)
    executor = TorchDeviceExecutor("cpu")
    with pytest.raises(torch.OutOfMemoryError):
        executor.execute_batch([0, 0], same)
    assert executor.fitting(same) is None


def test_what_lay_there_before_does_not_count_against_the_budget(counted: Counted) -> None:
    counted.now = 40 * MIB
    executor = TorchDeviceExecutor("cpu", budget=30 * MIB)
    assert executor.memory_available() == 30 * MIB
    executor.execute_batch([0], lambda task: setattr(counted, "now", 50 * MIB))
    assert executor.memory_available() == 20 * MIB


def test_what_lay_there_is_noted_before_the_first_task_also_without_assertions() -> None:
    program = (
        "from accelera.execution import TorchDeviceExecutor\n"
        "from accelera.execution.executors.torch_device import TorchDeviceContext\n"
        "executor, held = TorchDeviceExecutor('cpu', budget=10), [7, 9]\n"
        "TorchDeviceContext.allocated_bytes = lambda self: held[0]\n"
        "executor.execute_batch([0], lambda task: held.pop(0))\n"
        "print(executor.memory_available())"
    )
    ran = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "8\n"


def test_tasks_may_be_an_array() -> None:
    doubled = TorchDeviceExecutor("cpu").execute_batch(np.arange(3), lambda task: 2 * task)  # type: ignore[arg-type]
    assert list(doubled) == [0, 2, 4]


def test_an_executor_that_cannot_foresee_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TorchlessGpu):
        def fitting(self, function: Any) -> int:
            raise KeyError("nothing here")

    for gpu in (TorchlessGpu(), Broken()):
        result = StrategyManager(None, gpu, ExecutionStrategy.GpuOnly).execute(range(20), lambda task: task)
        assert result.outputs == list(range(20))
        assert not result.fallback_occurred
    assert "fitting() of gpu raised" in caplog.text


class TorchlessGpu:
    """The least that a GPU executor is."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Any) -> list[Any]:
        return [process_fn(task) for task in tasks]

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 1 << 30


@pytest.mark.parametrize(
    ("foreseen", "expected"),
    [(7, [7, 7, 6]), (7.9, [7, 7, 6]), (0, [1] * 20), (-3, [1] * 20), (np.int64(12), [12, 8]), (100, [20])]
    + [(odd, [20]) for odd in (None, math.nan, math.inf, "many")],
)
def test_a_lane_asks_for_no_more_than_is_foreseen(foreseen: Any, expected: list[int]) -> None:
    sizes: list[int] = []

    class Foreseeing(TorchlessGpu):
        def fitting(self, function: Any) -> Any:
            return foreseen

        def execute_batch(self, tasks: Sequence[Any], process_fn: Any) -> list[Any]:
            sizes.append(len(tasks))
            return super().execute_batch(tasks, process_fn)

    gpu = Foreseeing()
    StrategyManager(None, gpu, ExecutionStrategy.GpuOnly, learn=False).execute(range(20), lambda task: task)
    assert sizes == expected
    assert DeviceLane(gpu).name == "gpu"


@given(
    fixed=st.integers(0, 10**9),
    each=st.integers(1, 10**7),
    counts=st.lists(st.integers(1, 5000), min_size=2, max_size=30, unique=True),
)
def test_a_straight_line_is_found(fixed: int, each: int, counts: list[int]) -> None:
    fit = MemoryModel()
    for count in counts:
        fit.measured(count, fixed + each * count)
    line = fit.line()
    assert line is not None
    assert line[0] == pytest.approx(fixed, abs=1 + 1e-6 * (fixed + each * max(counts)))
    assert line[1] == pytest.approx(each, rel=1e-6)


@given(
    points=st.dictionaries(st.integers(1, 500), st.integers(1, 10**9), min_size=1, max_size=ENOUGH),
    free=st.integers(0, 10**10),
)
def test_what_is_foreseen_is_never_more_than_was_measured_to_be_too_much(
    points: dict[int, int], free: int
) -> None:
    fit = MemoryModel()
    for count, peak in points.items():
        fit.measured(count, peak)
    foreseen = fit.fitting(free)
    assert foreseen is not None
    assert foreseen >= 1
    over = [count for count, peak in points.items() if peak > free]
    line = fit.line()
    assert line is not None
    assert all(line[0] + line[1] * count >= peak * (1 - 1e-9) for count, peak in points.items())
    assert foreseen == 1 or foreseen not in over
    assert foreseen == 1 or line[0] + line[1] * foreseen <= (1 - MARGIN) * free * (1 + 1e-9)


def test_only_new_sizes_are_measured_and_the_largest_kept() -> None:
    fit = MemoryModel()
    assert fit.fitting(MIB) is None
    for count in range(10, 10 + ENOUGH):
        assert fit.wants(count)
        fit.measured(count, count * MIB)
        assert not fit.wants(count)
    assert not fit.wants(3)
    assert fit.wants(1000)
    fit.measured(1000, 500 * MIB)
    assert fit.wants(11) is False


@pytest.mark.cuda
class TestOnCuda:
    """What only a device can show."""

    def test_outputs_stay_or_come(self) -> None:
        double = doubled()
        stay = TorchDeviceExecutor("cuda:0").execute_batch([1.0, 2.0], double)
        assert {each.device.type for each in stay} == {"cuda"}
        come = TorchDeviceExecutor("cuda:0", outputs_to="cpu").execute_batch([1.0, 2.0], double)
        assert {each.device.type for each in come} == {"cpu"}
        assert [float(each) for each in come] == [2, 4]

    def test_tasks_one_by_one_are_on_a_stream_of_their_own(self) -> None:
        usual = torch.cuda.current_stream()
        streams = TorchDeviceExecutor("cuda:0").execute_batch([0], lambda task: torch.cuda.current_stream())
        assert streams[0] != usual
        assert torch.cuda.current_stream() == usual
        made = TorchDeviceExecutor("cuda:0").execute_batch([3], lambda task: torch.ones(task))
        assert made[0].device.type == "cuda"

    def test_memory_is_measured_and_foreseen(self) -> None:
        @kernel
        def squares(task: int) -> float:
            return float(task)

        @squares.gpu_batch
        def _(tasks: Sequence[int], device: str) -> list[float]:
            block = torch.ones(len(tasks), 4 * MIB, device=device)
            return [float(each) for each in (block * 2)[:, 0]]

        executor = TorchDeviceExecutor("cuda:0", budget="1GiB")
        for count in (2, 4, 8):
            executor.execute_batch(range(count), squares)
        foreseen = executor.fitting(squares)
        assert foreseen == pytest.approx(0.9 * 1024 / 32, abs=2)

    def test_too_much_at_once_is_cut_and_done_on_the_device(self) -> None:
        free = TorchDeviceExecutor("cuda:0").memory_available()
        each = free // 10

        @kernel
        def heavy(task: int) -> int:
            return task

        @heavy.gpu_batch
        def _(tasks: Sequence[int], device: str) -> list[int]:
            torch.empty(len(tasks) * each, dtype=torch.uint8, device=device)
            return list(tasks)

        manager = StrategyManager(None, TorchDeviceExecutor("cuda:0"), ExecutionStrategy.GpuOnly)
        result = manager.execute(range(40), heavy)
        assert result.outputs == list(range(40))
        assert (result.fallback_occurred, result.oom_splits > 0) == (False, True)
