"""Models of experts that multiply in groups: planned from inputs, and computed as without offloading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from accelera import offload


def mixtral(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=128, **heads
    )
    model: Any = transformers.MixtralForCausalLM(config)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_plan_what_is_then_computed(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 128, (2, 8))
    inputs = {"input_ids": rows, "labels": rows}
    plain = mixtral(dtype)
    offloaded = offload(mixtral(dtype), budget="40MiB", inputs=inputs)
    losses = [model(**inputs).loss for model in (plain, offloaded)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    gradients = [dict(model.named_parameters())["lm_head.weight"].grad for model in (plain, offloaded)]
    assert torch.equal(*(torch.as_tensor(each).clone() for each in gradients))
