"""Writers of other libraries, given an offloaded model: right files, or told what writes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file, save_model

from accelera import offload, offload_checkpoint, offloaded
from accelera.errors import DeviceError

IDS = torch.arange(8)[None]


def _gpt2(tied: bool) -> Any:
    config = transformers.GPT2Config(
        vocab_size=500, n_positions=64, n_embd=128, n_layer=2, n_head=2, tie_word_embeddings=tied
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=500,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(params=[lambda: _gpt2(tied=True), lambda: _gpt2(tied=False), _llama])
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    torch.manual_seed(0)
    plain = request.param().eval()
    return plain, offload(copy.deepcopy(plain), "64MiB")


def _scores(model: Any) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = model(IDS).logits
    return scores


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "300KB"}], ids=["one file", "shards"])
def test_save_pretrained_with_the_handles_state(models: Any, shards: dict[str, str], tmp_path: Path) -> None:
    plain, other = models
    other.save_pretrained(tmp_path, state_dict=offloaded(other).state_dict(), **shards)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == bool(shards)
    again = type(plain).from_pretrained(tmp_path).eval()
    assert torch.equal(_scores(again), _scores(plain))
    assert torch.equal(_scores(offload_checkpoint(tmp_path, budget="64MiB")), _scores(plain))


@pytest.mark.parametrize(
    "write",
    [
        lambda model, path: model.save_pretrained(path),
        lambda model, path: save_file(model.state_dict(), path / "model.safetensors"),
        lambda model, path: save_model(model, str(path / "model.safetensors")),
    ],
)
def test_writers_that_need_addresses_are_told_what_to_do(
    models: Any, write: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=r"save\(folder\).*state_dict="):
        write(models[1], tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_files_of_tensors(models: Any, tmp_path: Path) -> None:
    plain, other = models
    torch.save(other.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    offloaded(other).save(tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in stored.items())
    again = copy.deepcopy(plain)
    again.load_state_dict(offloaded(other).state_dict())
    assert torch.equal(_scores(again), _scores(plain))
