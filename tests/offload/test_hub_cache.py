"""Repositories of the local Hugging Face cache as checkpoints; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import accelera
from accelera.errors import StoreError

COMMITS = ("a" * 40, "b" * 40)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    """Model whose snapshot is in an otherwise empty cache."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path / "hub" / "models--lab--small"
    model.save_pretrained(folder / "snapshots" / COMMITS[0])
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMITS[0])
    return model


@pytest.mark.parametrize("name", ["lab/small", "hub/models--lab--small"])
def test_cached_repository_is_opened(
    name: str, model: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = accelera.offload_checkpoint(name, budget="64MiB")
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        torch.testing.assert_close(opened(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_environment_names_the_cache(
    variable: str, model: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    (tmp_path / "huggingface").symlink_to(tmp_path)
    monkeypatch.setenv(variable, str(tmp_path / "hub" if variable == "HF_HUB_CACHE" else tmp_path))
    opened = accelera.offload_checkpoint("lab/small", budget="64MiB")
    assert sum(each.numel() for each in opened.parameters()) == sum(
        each.numel() for each in model.parameters()
    )


def test_single_snapshot_needs_no_reference(model: LlamaForCausalLM, tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--lab--small" / "refs" / "main").unlink()
    assert accelera.offload_checkpoint("lab/small", budget="64MiB") is not None


def test_several_snapshots_without_reference_are_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--lab--small"
    (folder / "refs" / "main").write_text("c" * 40)
    (folder / "snapshots" / COMMITS[1]).mkdir()
    with pytest.raises(StoreError, match=r"has 2 snapshots.*hf download lab/small"):
        accelera.offload_checkpoint("lab/small", budget="64MiB")


@pytest.mark.parametrize("name", ["lab/absent", "absent"])
def test_absent_repository_states_the_download_command(
    name: str, model: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=f"hf download {name}$"):
        accelera.offload_checkpoint(name, budget="64MiB")


@pytest.mark.parametrize("name", ["./lab/absent", "/nowhere/model", "a/b/c", ""])
def test_absent_path_is_no_repository(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as failure:
        accelera.offload_checkpoint(name, budget="64MiB")
    assert "hf download" not in str(failure.value)
