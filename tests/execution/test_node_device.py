"""What a node takes for its GPU, and what PyTorch's tensors look like when they come home from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from accelera.errors import DeviceError, UnknownNameError
from accelera.execution import (
    RayExecutor,
    SimulatedExecutor,
    StrategyManager,
    TorchDeviceExecutor,
)
from accelera.execution.cluster import node
from accelera.execution.cluster.node import Agent, node_gpu
from accelera.execution.cluster.ray_agents import AgentResources
from accelera.testing import LocalCluster
from tests.execution.stand_ins import Meeting
from tests.execution.test_node_gpu import Here

pytestmark = pytest.mark.usefixtures("own_temporary_files")


def test_a_device_is_found_by_its_name() -> None:
    found = node_gpu("sim:2MiB")
    assert isinstance(found, SimulatedExecutor)
    assert found.capacity_bytes == 2 << 20
    assert node_gpu("cpu") is None
    with pytest.raises(UnknownNameError):
        node_gpu("gpu")
    with pytest.raises(DeviceError, match="cuda:99"):
        node_gpu("cuda:99")


def test_outputs_come_home_by_way_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "default_gpu", lambda device: TorchDeviceExecutor("cuda:0"))
    found = node_gpu(None)
    assert isinstance(found, TorchDeviceExecutor)
    assert found.outputs_to == "cpu"


def test_without_gpus_nothing_is_looked_for() -> None:
    assert not AgentResources().uses_gpu
    assert AgentResources(num_gpus=0.5).uses_gpu
    assert AgentResources(device="sim").uses_gpu
    for device in ("cuda", "cuda:1", "xpu", torch.device("cuda:0")):
        assert AgentResources(num_gpus=1, device=device).uses_gpu
        with pytest.raises(ValueError, match="Ray hides GPUs that are not reserved"):
            AgentResources(device=device)


def test_a_kernel_of_torch_is_run_on_both_sides() -> None:
    def one(number: int) -> Any:
        meet()
        torch.arange(20_000).sort(descending=True)
        return torch.tensor(number)

    def many(numbers: Sequence[int], device: str) -> Any:
        meet()
        return torch.tensor(numbers, device=device)

    meet = Meeting(2)
    cluster = LocalCluster(1)
    cluster._agents = {"n0": Agent(1, TorchDeviceExecutor("cpu", outputs_to="cpu"))}
    result = StrategyManager(cpu=RayExecutor(cluster)).execute(range(400), Here(one, many))
    assert [int(output) for output in result.outputs] == list(range(400))
    assert result.per_device["node 0 torch-cpu"].tasks > 0
    assert not result.fallback_occurred
