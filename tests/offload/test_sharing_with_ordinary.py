"""Offloaded tensors that meet ordinary ones: shared, copied or refused, never without storage."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accelera
from accelera.errors import DeviceError
from accelera.offload.tensor import OffloadedTensor
from tests.children import answer_of

ROWS = 3000
EXPECTED = torch.arange(ROWS * 1000.0).reshape(ROWS, 1000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = nn.Module()
    module.weight = nn.Parameter(EXPECTED.clone())
    module.bias = nn.Parameter(torch.arange(500.0))
    return accelera.offload(module.train(), "28MiB", store=tmp_path_factory.mktemp("store"))


VALUES: dict[str, Callable[[Any], Any]] = {
    "parameter": lambda w: w,
    "data": lambda w: w.data,
    "detached": lambda w: w.detach(),
    "rows": lambda w: w[2:5].data,
    "row": lambda w: w.data[7],
    "column": lambda w: w[:, 3].data,
    "transposed": lambda w: w.t()[2:5].data,
    "vector": lambda w: w.data.view(-1),
    "element": lambda w: w.data[3, 4],
    "empty": lambda w: w.data[3:3],
    "strided": lambda w: w.data[::7, ::5],
    "as_strided": lambda w: w.data.as_strided((5, 3), (1000, 2), 4),
    "integers": lambda w: w.data.view(torch.int32)[2:4],
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("ordinary", ["parameter", "tensor"])
@pytest.mark.parametrize("value", VALUES)
def test_offloaded_data_is_refused(model: Any, value: str, ordinary: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        target = torch.full((4, 5), 3.0)
        if ordinary == "parameter":
            target = nn.Parameter(target, requires_grad=not inference)
        with pytest.raises(DeviceError, match=r"\[set_data\].*materialized"):
            target.data = VALUES[value](model.weight)
        assert target.shape == (4, 5)
        assert target.sum().item() == 60


@pytest.mark.parametrize("value", VALUES)
def test_copies_of_offloaded_data(model: Any, value: str) -> None:
    part = VALUES[value](model.weight)
    expected = VALUES[value](EXPECTED)
    target = nn.Parameter(torch.zeros(4), requires_grad=False)
    target.data = part.materialized()
    assert torch.equal(target, expected)
    assert np.array_equal(np.asarray(part.detach()), expected.numpy())
    copied = copy.deepcopy(part.detach())
    assert torch.equal(copied, expected)
    assert torch.equal(pickle.loads(pickle.dumps(part.detach())), expected)
    for operation in (
        lambda: part.share_memory_(),
        lambda: part.untyped_storage(),
        lambda: part.data_ptr(),
        lambda: torch.from_dlpack(part.detach()),
        lambda: part.detach().resize_(10_000_000),
        lambda: torch.ones(3, dtype=part.dtype).set_(part.detach()),
    ):
        with pytest.raises(DeviceError):
            operation()
    assert not part.is_shared()
    assert not part.is_pinned()
    assert part.is_set_to(part.detach())
    assert torch.equal(part, expected)


def test_ordinary_data_is_assigned_as_before(model: Any) -> None:
    target = nn.Parameter(torch.zeros(3))
    target.data = torch.ones(5)
    assert target.sum().item() == 5
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        target.data = torch.eye(3).to_sparse()
    assert nn.Linear(3, 3).double().weight.dtype == torch.float64


def test_vector_to_parameters_is_refused_or_right(model: Any) -> None:
    plain = nn.Module()
    plain.bias = nn.Parameter(torch.zeros(500))
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.numel() == ROWS * 1000 + 500
    assert torch.equal(vector[-500:], torch.arange(500.0))
    if isinstance(vector, OffloadedTensor):
        with pytest.raises(DeviceError, match="materialized"):
            nn.utils.vector_to_parameters(vector[-500:], plain.parameters())
    nn.utils.vector_to_parameters(torch.arange(500.0), plain.parameters())
    assert plain.bias.sum() == 124750


KINDS: dict[str, Callable[[Any], torch.Tensor]] = {
    "no_gradient": lambda kind: kind(torch.full((4, 5), 2.0), requires_grad=False),
    "gradient": lambda kind: kind(torch.full((4, 5), 2.0), requires_grad=True),
    "positional": lambda kind: kind(torch.full((4, 5), 2.0), False),
    "named": lambda kind: kind(data=torch.full((4, 5), 2.0), requires_grad=False),
    "alone": lambda kind: kind(torch.full((4, 5), 2.0)),
    "nothing": lambda kind: kind(),
}


@pytest.mark.parametrize("arguments", KINDS)
def test_parameters_by_the_type_of_a_parameter(model: Any, arguments: str) -> None:
    made = KINDS[arguments](type(model.weight))
    expected = KINDS[arguments](nn.Parameter)
    assert isinstance(made, nn.Parameter)
    assert made.requires_grad == expected.requires_grad
    assert torch.equal(made, expected)


def test_parameters_of_offloaded_data_by_type(model: Any) -> None:
    made = type(model.weight)(model.weight.data[2:5], requires_grad=False)
    assert isinstance(made, nn.Parameter)
    assert made.sum() == EXPECTED[2:5].sum()


def test_assigned_results_do_not_end_the_process() -> None:
    """The first use of a tensor without storage ended the process."""
    program = """
import json, torch, accelera
from torch import nn
model = accelera.offload(nn.Linear(1500, 1500), "28MiB")
ordinary = nn.Parameter(torch.zeros(7))
try:
    ordinary.data = model.weight[2:4].data
except accelera.AcceleraError:
    pass
print(json.dumps((ordinary * 1).sum().item()))
"""
    assert answer_of("-c", program) == 0
