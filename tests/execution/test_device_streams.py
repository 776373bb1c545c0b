"""Batches of work on a fake GPU: the caller's stream, lanes' streams, memory and errors as CUDA has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from accelera.execution import (
    ExecutionStrategy,
    Retry,
    StrategyManager,
    ThreadsExecutor,
    TorchDeviceExecutor,
    kernel,
)
from accelera.testing import FakeCuda
from tests.gpus import BOTH, gpu_of, own_stream

MIB = 1 << 20
HYBRID, GPU_ONLY = ExecutionStrategy.Hybrid(), ExecutionStrategy.GpuOnly


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with FakeCuda("1GiB", library_bytes=32 * MIB) as fake:
        yield fake


@pytest.fixture(params=BOTH)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    with gpu_of(request.param, memory="1GiB"):
        yield request.param


def managed(strategy: Any = GPU_ONLY, **options: Any) -> StrategyManager:
    cpu = ThreadsExecutor(1) if strategy is HYBRID else None
    return StrategyManager(cpu, TorchDeviceExecutor("cuda:0", **options), strategy, learn=False)


def made(count: int) -> list[torch.Tensor]:
    """Return tensors on the device that the current stream has yet to compute."""
    return [torch.ones(500, device="cuda") * number for number in range(count)]


@pytest.mark.parametrize("how", [{}, {"timeout": 60}, {"retry": Retry(times=1)}], ids=str)
@pytest.mark.parametrize("strategy", [GPU_ONLY, HYBRID], ids=str)
def test_tasks_begin_when_the_callers_stream_has_made_them(
    gpu: str, strategy: ExecutionStrategy, how: dict[str, Any]
) -> None:
    with own_stream():
        outputs = managed(strategy).execute(made(12), lambda task: task + 1, **how).outputs
        assert [float(each.sum()) for each in outputs] == [500.0 * (number + 1) for number in range(12)]


def test_streams_of_tasks_begin_so_too(gpu: str) -> None:
    with own_stream():
        tasks = (torch.ones(500, device="cuda") * number for number in range(12))
        outputs = [each for _, each in managed(HYBRID).stream(tasks, lambda task: task + 1)]
        assert [float(each.sum()) for each in outputs] == [500.0 * (number + 1) for number in range(12)]


def test_memory_of_outputs_is_not_used_again_before_the_caller_has_read_it(gpu: str) -> None:
    manager = managed(HYBRID)
    with own_stream():
        sums = []
        for _ in range(3):
            outputs = manager.execute([torch.ones(500, device="cuda")] * 4, lambda task: task * 2).outputs
            sums.append(torch.stack(list(outputs)).sum())
            del outputs
        assert [float(each) for each in sums] == [4000.0] * 3


def test_nor_before_another_caller_has_read_it(gpu: str) -> None:
    """Each caller has a stream, and lanes use one stream for all of them."""
    manager, sums = managed(), []
    for _ in range(3):
        with own_stream():
            outputs = manager.execute([torch.ones(500, device="cuda")] * 4, lambda task: task * 2).outputs
            sums.append(torch.stack(list(outputs)).sum())
            del outputs
    torch.cuda.synchronize()
    assert [float(each) for each in sums] == [4000.0] * 3


def test_memory_of_tasks_is_not_used_again_before_a_task_that_fails_has_read_it(gpu: str) -> None:
    kept: list[torch.Tensor] = []

    def fails(task: torch.Tensor) -> None:
        kept.append(task * 2)
        raise ValueError("after it was handed to the device")

    for _ in range(2):
        with pytest.raises(ValueError, match="after"):
            TorchDeviceExecutor("cuda:0").execute_batch([torch.ones(500, device="cuda")], fails)
    assert [float(each.sum()) for each in kept] == [1000.0] * 2


@pytest.mark.parametrize("strategy", [GPU_ONLY, HYBRID], ids=str)
def test_batches_share_streams(cuda: FakeCuda, strategy: ExecutionStrategy) -> None:
    """cuBLAS keeps 32 MiB on each, which counts against the budget."""
    manager = managed(strategy, budget="512MiB")
    a = torch.ones(50, 50, device="cuda")
    for _ in range(10):
        manager.execute([a] * 4, lambda task: task @ task, timeout=600)
    assert len(cuda.streams) <= 3
    assert torch.cuda.memory_allocated() <= 2 * 32 * MIB + MIB


def test_batches_at_the_same_time_have_streams_of_their_own(cuda: FakeCuda) -> None:
    executor, seen = TorchDeviceExecutor("cuda:0"), []

    def nested(task: int) -> int:
        seen.append(torch.cuda.current_stream())
        if task:
            executor.execute_batch([task - 1], nested)
        assert torch.cuda.current_stream() == seen[-1 - task] if task == 0 else True
        return task

    executor.execute_batch([2], nested)
    executor.execute_batch([0], nested)
    assert len(set(seen)) == 3
    assert seen[3] in seen[:3]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_an_error_leaves_the_usual_stream_current(cuda: FakeCuda) -> None:
    with pytest.raises(KeyError):
        TorchDeviceExecutor("cuda:0").execute_batch([0], {}.__getitem__)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_what_runs_out_of_memory_is_done_in_smaller_parts(cuda: FakeCuda) -> None:

    @kernel
    def heavy(task: int) -> int:
        return task

    @heavy.gpu_batch
    def _(tasks: Sequence[int], device: str) -> list[int]:
        torch.empty(len(tasks) * 100 * MIB, dtype=torch.uint8, device=device)
        return list(tasks)

    result = managed().execute(range(40), heavy)
    assert result.outputs == list(range(40))
    assert result.oom_splits > 0
    assert not result.fallback_occurred
    assert cuda.memories[0].retries > 0


def test_a_device_that_died_is_left_to_the_cpu() -> None:
    with FakeCuda("1GiB", dies_at=5) as cuda:
        manager = StrategyManager(ThreadsExecutor(1), TorchDeviceExecutor("cuda:0"), GPU_ONLY, learn=False)
        tasks = list(range(30))

        def task(number: int) -> float:
            there = torch.get_default_device()
            return float((torch.ones(3, device=there) * number).sum())

        result = manager.execute(tasks, task, fallback="all")
        assert result.outputs == [3.0 * number for number in tasks]
        assert result.fallback_occurred
        assert cuda.launches < 60


def test_work_on_the_second_card_stays_there() -> None:
    with FakeCuda("1GiB", devices=2) as cuda:
        manager = StrategyManager(None, TorchDeviceExecutor("cuda:1"), GPU_ONLY, learn=False)
        outputs = manager.execute([1.0, 2.0], lambda task: torch.full((2,), task), timeout=600).outputs
        assert [str(each.device) for each in outputs] == ["cuda:1"] * 2
        assert cuda.contexts == {1}
