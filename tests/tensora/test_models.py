"""GPT-2 and Llama: the logits, gradients and files of Hugging Face's, and texts drawn from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import accelera.tensora as ts
from accelera.tensora.models import GPT2, GPT2Config, Llama, LlamaConfig
from tests.tensora.module_twins import assert_close, copy_state, translated

IDS = np.random.default_rng(0).integers(0, 40, (2, 9))
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "n_positions": 24,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3_ROTATION = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": 20}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 8}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    ("llama", {"rope_parameters": LLAMA3_ROTATION, "num_key_value_heads": None}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}),
]


def hugging_face(kind: str, **changes: Any) -> Any:
    """A small model of Hugging Face's in float64, without dropout."""
    torch.manual_seed(0)
    sizes = {**(GPT2_SIZES if kind == "gpt2" else LLAMA_SIZES), **changes}
    prefix = {"gpt2": "GPT2", "llama": "Llama"}[kind]
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    last = {"gpt2": "LMHeadModel", "llama": "ForCausalLM"}[kind]
    made = getattr(transformers, prefix + last)(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return made.double().eval()


def beside(theirs: Any) -> Any:
    """The same model of ours."""
    kind: Any
    config_kind: Any
    kind, config_kind = (GPT2, GPT2Config) if theirs.config.model_type == "gpt2" else (Llama, LlamaConfig)
    ours = kind(config_kind.from_dict(theirs.config.to_dict()), dtype="float64")
    copy_state(theirs, ours)
    return ours.eval()


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_logits_loss_and_gradients_are_hugging_faces(kind: str, changes: dict[str, Any]) -> None:
    theirs = hugging_face(kind, **changes)
    ours = beside(theirs)
    targets = np.roll(IDS, -1, 1)
    targets[:, -1] = -100
    logits, loss = ours(ts.asarray(IDS), targets=ts.asarray(targets))
    wanted = theirs(torch.tensor(IDS), labels=torch.tensor(IDS))
    tolerance = 1e-9 if kind == "gpt2" else 2e-5  # theirs has parts in float32
    assert_close(logits, wanted.logits, tolerance)
    assert float(loss.item()) == pytest.approx(wanted.loss.item(), rel=1e-6)
    loss.backward()
    wanted.loss.backward()
    gradients = {name: weight.grad for name, weight in ours.named_parameters()}
    for name, weight in theirs.named_parameters():
        assert_close(gradients[name], weight.grad, 5e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_padding_is_not_attended_to(kind: str) -> None:
    theirs = hugging_face(kind)
    mask = np.ones((2, 9), dtype=np.int64)
    mask[0, 6:] = 0
    ours = beside(theirs)(ts.asarray(IDS), attention_mask=ts.asarray(mask))
    wanted = theirs(torch.tensor(IDS), attention_mask=torch.tensor(mask)).logits
    assert_close(ours[0, :6], wanted[0, :6], 2e-5)
    assert_close(ours[1], wanted[1], 2e-5)


@pytest.mark.parametrize("shards", ["1GB", "2KB"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt2", {}),
        ("gpt2", {"tie_word_embeddings": False}),
        ("llama", {"rope_parameters": LLAMA3_ROTATION}),
        ("llama", {"tie_word_embeddings": True}),
    ],
)
def test_saved_models_are_loaded(kind: str, changes: dict[str, Any], shards: str, tmp_path: Path) -> None:
    theirs = hugging_face(kind, **changes).float()
    theirs.save_pretrained(tmp_path, max_shard_size=shards)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards == "2KB")
    ours = (GPT2 if kind == "gpt2" else Llama).from_pretrained(tmp_path)
    assert not ours.training
    assert {weight.dtype for weight in ours.parameters()} == {ts.float32}
    assert_close(ours(ts.asarray(IDS)), theirs(torch.tensor(IDS)).logits, 3e-5)


def test_bfloat16_is_read_and_converted(tmp_path: Path) -> None:
    theirs = hugging_face("llama").bfloat16()
    theirs.save_pretrained(tmp_path)
    assert {weight.dtype for weight in Llama.from_pretrained(tmp_path).parameters()} == {ts.bfloat16}
    ours = Llama.from_pretrained(tmp_path, dtype="float32")
    wanted = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)
    assert_close(ours(ts.asarray(IDS)), wanted(torch.tensor(IDS)).logits, 3e-5)


def test_names_without_prefix_and_buffers_of_old_files_are_understood(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = hugging_face("gpt2").float()
    theirs.save_pretrained(tmp_path)
    old = {
        name.removeprefix("transformer."): x.clone()
        for name, x in theirs.state_dict().items()
        if name != "lm_head.weight"
    }
    old["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    save_file(old, tmp_path / "model.safetensors")
    ours = GPT2.from_pretrained(tmp_path)
    assert_close(ours(ts.asarray(IDS)), theirs(torch.tensor(IDS)).logits, 3e-5)


def test_older_configurations_of_rotation_are_understood() -> None:
    scaling = {key: value for key, value in LLAMA3_ROTATION.items() if key != "rope_theta"}
    old = LlamaConfig.from_dict({**LLAMA_SIZES, "rope_theta": 500.0, "rope_scaling": scaling})
    new = LlamaConfig.from_dict({**LLAMA_SIZES, "rope_parameters": LLAMA3_ROTATION})
    assert Llama(old).rotary.frequencies == Llama(new).rotary.frequencies
    with pytest.raises(ValueError, match="rope_type='yarn'"):
        Llama(replace(old, rope_scaling={"rope_type": "yarn"}))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_likeliest_texts_are_hugging_faces(kind: str) -> None:
    theirs = hugging_face(kind)
    ours = beside(theirs).train()
    made = ours.generate(ts.asarray(IDS), 12, temperature=0)
    options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
    wanted = theirs.generate(torch.tensor(IDS), attention_mask=torch.ones(2, 9), **options)
    np.testing.assert_array_equal(made.numpy(), wanted.numpy())
    assert ours.training
    assert all(weight.grad is None for weight in ours.parameters())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_drawn_texts_follow_the_probabilities(kind: str) -> None:
    ours = beside(hugging_face(kind))
    ids = ts.asarray(np.repeat(IDS[:1], 4000, 0))
    made = ours.generate(ids, 1, temperature=0.7, top_k=5, generator=ts.random.Generator(1)).numpy()[:, -1]
    logits = ours(ts.asarray(IDS[:1])).detach().numpy()[0, -1] / 0.7
    best = np.argsort(logits)[-5:]
    chances = np.exp(logits[best] - logits.max())
    found = np.array([(made == each).mean() for each in best])
    np.testing.assert_allclose(found, chances / chances.sum(), atol=0.03)
    again = ours.generate(ids, 1, temperature=0.7, top_k=5, generator=ts.random.Generator(1)).numpy()[:, -1]
    np.testing.assert_array_equal(made, again)


def test_new_models_have_small_weights_and_train() -> None:
    ts.random.manual_seed(0)
    model = GPT2(GPT2Config.from_dict({**GPT2_SIZES, "embd_pdrop": 0.0}))
    names = dict(model.named_parameters())
    assert names["transformer.wte.weight"].detach().numpy().std() == pytest.approx(0.02, rel=0.1)
    assert names["transformer.h.0.attn.c_proj.weight"].detach().numpy().std() == pytest.approx(0.01, rel=0.2)
    assert "lm_head.weight" not in names
    ids, targets = ts.asarray(IDS), ts.asarray(np.roll(IDS, -1, 1))
    step = ts.optim.AdamW(list(model.parameters()), lr=1e-2)
    losses = []
    for _ in range(30):
        step.zero_grad()
        _, loss = model(ids, targets=targets)
        loss.backward()
        step.step()
        losses.append(float(loss.item()))
    assert losses[0] == pytest.approx(np.log(40), rel=0.05)
    assert losses[-1] < 0.5 * losses[0]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    theirs = hugging_face("gpt2").float()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        GPT2.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
    with pytest.raises(ValueError, match=r"lacks transformer\.h\.2"):
        GPT2.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": 1}))
    with pytest.raises(ValueError, match=r"the model has no 'transformer\.h\.1"):
        GPT2.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_positions": 12}))
    with pytest.raises(ValueError, match=r"wpe\.weight' has the shape"):
        GPT2.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "activation_function": "mystery"}))
    with pytest.raises(ValueError, match="mystery"):
        GPT2.from_pretrained(tmp_path)


def test_bad_calls_are_refused() -> None:
    model = GPT2(GPT2Config.from_dict(GPT2_SIZES))
    ids = translated(torch.tensor(IDS))
    with pytest.raises(ValueError, match="give \\(batch, length\\)"):
        model(ids[0])
    with pytest.raises(ValueError, match="29 positions; the model knows 24"):
        model.generate(ids, 20)
    with pytest.raises(ValueError, match="temperature=-1"):
        model.generate(ids, 2, temperature=-1)
    with pytest.raises(ValueError, match="targets of shape"):
        model(ids, targets=ids[:, 1:])
    with pytest.raises(ValueError, match="attention_mask of shape"):
        model(ids, attention_mask=ids[:, 1:])
    with pytest.raises(ValueError, match="give a multiple"):
        GPT2(GPT2Config.from_dict({**GPT2_SIZES, "n_head": 3}))


def test_models_are_the_same_on_a_device(device: str) -> None:
    mask = np.ones((2, 9), dtype=np.int64)
    mask[0, 6:] = 0
    for kind in ("gpt2", "llama"):
        ours = beside(hugging_face(kind))
        given = [ts.asarray(each) for each in (IDS, mask, IDS)]
        logits, text = ours(*given)[0], ours.generate(given[0], 3, temperature=0)
        ours.to(device)
        moved = [each.to(device) for each in given]
        found, loss = ours(*moved)
        assert found.device == device
        assert_close(found, logits, 1e-5)
        assert_close(ours.generate(moved[0], 3, temperature=0), text, 0)
        loss.backward()
        assert all(weight.grad.device == device for weight in ours.parameters())
