"""What cannot be offloaded, or does not fit, is said with names and numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import accelera
from accelera import BudgetExceededError, UnknownNameError


def test_what_is_no_module_is_named():
    with pytest.raises(TypeError, match=r"\[offload\] a NoneType is no torch.nn.Module"):
        accelera.offload(None, "64MiB")  # type: ignore[type-var]


def test_a_device_that_is_none_is_refused():
    model = nn.Linear(300, 300)
    with pytest.raises(UnknownNameError, match="known: cpu"):
        accelera.offload(model, "64MiB", device="nope")
    assert type(model.weight) is nn.Parameter


@pytest.mark.parametrize(
    ("activations", "error", "says"),
    [("nope", UnknownNameError, "known: auto"), ("recompute", ValueError, "no list of blocks of one type")],
)
def test_a_model_whose_activations_are_refused_stays_as_it_was(activations, error, says):
    model = nn.Sequential(nn.Linear(300, 300), nn.GELU())
    with pytest.raises(error, match=says):
        accelera.offload(model, "64MiB", activations=activations)
    assert type(model[0].weight) is nn.Parameter
    assert type(accelera.offload(model, "64MiB")[0].weight) is not nn.Parameter


def test_operands_that_do_not_fit_are_named_with_the_remedy():
    def double() -> nn.Module:
        return nn.Sequential(nn.Linear(2048, 4096), nn.Linear(4096, 2048))

    model = accelera.offload(double(), "64MiB")
    first, second = model[0].weight, model[1].weight
    cache = first.cache
    from accelera.memory._internal import Use

    uses = [Use(block, True, False) for weight in (first, second) for block in weight.blocks]
    with pytest.raises(BudgetExceededError) as refused, cache.use(uses, "both"):
        pass
    assert "[both] works on 64.0 MiB at once (0.weight" in str(refused.value)
    assert "inputs=EXAMPLE" in str(refused.value)
    assert refused.value.needed_bytes > refused.value.budget_bytes == 64 << 20
    with torch.no_grad():
        assert model(torch.ones(2, 2048)).shape == (2, 2048)
