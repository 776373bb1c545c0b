"""Writers of other libraries, given an offloaded model: the files that they write of the plain one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

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


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "300KB"}], ids=["one file", "shards"])
def test_save_pretrained_as_it_is(models: Any, shards: dict[str, str], tmp_path: Path) -> None:
    plain, other = models
    other.save_pretrained(tmp_path / "offloaded", **shards)
    plain.save_pretrained(tmp_path / "plain", **shards)
    for path in (tmp_path / "plain").glob("*.safetensors"):
        assert (tmp_path / "offloaded" / path.name).read_bytes() == path.read_bytes()
    assert torch.equal(_scores(type(plain).from_pretrained(tmp_path / "offloaded").eval()), _scores(plain))
    part, whole = tmp_path / "part", tmp_path / "whole"
    other.base_model.save_pretrained(part)
    plain.base_model.save_pretrained(whole)
    assert (part / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_save_model_as_it_is_and_load_model(models: Any, tmp_path: Path) -> None:
    plain, other = models
    for name, model in (("plain", plain), ("offloaded", other)):
        save_model(model, str(tmp_path / name))
    assert (tmp_path / "offloaded").read_bytes() == (tmp_path / "plain").read_bytes()
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    load_model(other, str(tmp_path / "plain"))
    assert torch.equal(_scores(other), _scores(plain))


def test_what_is_written_is_what_the_weights_are_then(models: Any, tmp_path: Path) -> None:
    other = models[1]
    state = other.state_dict()
    for step in range(3):
        save_model(other, str(tmp_path / "model"))
        if step:  # a state that is kept shows what came since
            ones = {
                name: state[name] for name in state if name.endswith(("ln_f.weight", "model.norm.weight"))
            }
            save_file(ones, tmp_path / "kept")
            assert all(
                each.unique().tolist() == [1.0 + step] for each in load_file(tmp_path / "kept").values()
            )
        stored = load_file(tmp_path / "model")
        name = "model.norm.weight" if "model.norm.weight" in stored else "transformer.ln_f.weight"
        assert stored[name].unique().tolist() == [1.0 + step]
        with torch.no_grad():
            dict(other.named_parameters())[name].add_(1)


def test_weights_in_another_order_in_memory(tmp_path: Path) -> None:
    plain = nn.Conv2d(32, 64, 3)
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other = offload(copy.deepcopy(plain), "64MiB")
    save_model(other, str(tmp_path / "offloaded"))
    assert torch.equal(load_file(tmp_path / "offloaded")["weight"], plain.weight)


def test_only_values_of_a_state_have_addresses(models: Any) -> None:
    weight = next(models[1].parameters())
    for ask in (weight.data_ptr, weight.detach().data_ptr, weight.untyped_storage, weight.storage):
        with pytest.raises(DeviceError):
            ask()
    state = models[1].state_dict()
    first = next(iter(state.values()))
    assert first.data_ptr() == first.untyped_storage().data_ptr() == first.view(-1)[:1].data_ptr()
    assert not copy.deepcopy(first).is_state


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
