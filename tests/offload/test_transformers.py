"""Hugging Face models, built on the spot: the same logits, texts and gradients offloaded as in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tests.offload.pools import pair, same, values

pytestmark = pytest.mark.filterwarnings("ignore")


def _gpt2() -> Any:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 128, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def _llama() -> Any:
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, vocab_size=128, **heads)
    return transformers.LlamaForCausalLM(config)


def _t5() -> Any:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


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
