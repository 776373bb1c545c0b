"""Hugging Face models, built on the spot: the same logits, texts and gradients offloaded as in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from accelera import estimate, offload, offloaded
from tests.offload.pools import pair, same, values
from tests.offload.training_models import losses_by

pytestmark = pytest.mark.filterwarnings("ignore")


def _gpt2() -> Any:
    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 128, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def _llama() -> Any:
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, vocab_size=128, **heads)
    return transformers.LlamaForCausalLM(config)


def _t5() -> Any:
    sizes: dict[str, Any] = {
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 128,
        "decoder_start_token_id": 0,
    }
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


MAKERS = {"gpt2": _gpt2, "llama": _llama, "t5": _t5}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "top_k": 20},
    "without cache": {"use_cache": False},
    "beams": {"num_beams": 3},
}


@pytest.fixture(params=MAKERS)
def models(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return pair(MAKERS[request.param]().eval())


def test_generates_the_same(models: Any) -> None:
    ids = torch.randint(1, 128, (2, 7))
    for way in WAYS.values():
        texts = []
        for model in models:
            torch.manual_seed(5)
            texts.append(model.generate(ids, max_new_tokens=6, pad_token_id=0, eos_token_id=None, **way))
        assert same(*texts), way


def test_trains_the_same(models: Any) -> None:
    ids = torch.randint(1, 128, (2, 7))
    results = []
    for model in models:
        torch.manual_seed(2)
        loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        results.append([loss.detach(), *(values(weight.grad) for weight in model.parameters())])
    assert same(*results)


@pytest.mark.parametrize("experts", [4, 24])
def test_grouped_experts_train_as_planned(experts: int) -> None:
    """With 24 experts a layer's weights lie in several blocks."""
    inputs = {name: torch.randint(1, 128, (2, 7)) for name in ("input_ids", "labels")}
    models = [_mixtral(experts), _mixtral(experts)]
    offload(models[0], 65 << 20, inputs=inputs)
    plan = offloaded(models[0]).plan
    assert plan is not None
    losses = [_trained(model, inputs, len(plan.passes)) for model in models]
    # Blocks add up in another order. A sum rounded otherwise may send a token to another expert, on some
    # processors after two steps: from there on the curves are near, not the same.
    assert losses[0][:2] == pytest.approx(losses[1][:2], rel=0 if experts == 4 else 1e-4, abs=0)
    assert losses[0] == pytest.approx(losses[1], rel=0 if experts == 4 else 1e-2, abs=0)
    report = offloaded(models[0]).report()
    assert report.uses == sum(each.uses for each in plan.passes)
    assert report.fetched_bytes == pytest.approx(sum(each.bytes_read for each in plan.passes), rel=0.03)
    offloaded(models[0]).close()


def _mixtral(experts: int) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "vocab_size": 128,
    }
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": experts}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads)).train()


def _trained(model: Any, inputs: dict[str, torch.Tensor], steps: int) -> list[float]:
    return losses_by(torch.optim.AdamW(model.parameters()), lambda _: model(**inputs).loss, steps)


def test_a_mixture_whose_shapes_depend_on_values_says_what_to_do() -> None:
    model = _mixtral(4)
    model.set_experts_implementation("eager")
    inputs = {name: torch.randint(1, 128, (2, 7)) for name in ("input_ids", "labels")}
    with pytest.raises(ValueError, match=r"\[plan_offload\] .*nonzero.*without inputs=.*grouped_mm"):
        offload(model, "1GiB", inputs=inputs)
    assert estimate(_mixtral(4), inputs, dtypes=["float32"]).phases
