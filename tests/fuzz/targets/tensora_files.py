"""Readers of Tensora's files: tensors, checkpoints of a training, language models."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from accelera import tensora
from accelera.tensora import nn, optim, random
from accelera.tensora.models import GPT2, GPT2Config, Llama, LlamaConfig
from accelera.tensora.serialization import load_checkpoint, load_file, load_model, save_file
from tests.fuzz.harness import fuzz_target, parts_of, temporary_file, temporary_folder

UNSIGNED = b"0" * 64
MOST_LAYERS, MOST_WIDTH = 8, 1 << 12


@fuzz_target(examples=150)
def tensora_tensors(data: bytes) -> None:
    """Tensors that load are saved and loaded again with the same shapes and types."""
    with temporary_file(data, "t.safetensors") as path:
        tensors = load_file(path)
        copy = path.with_name("copy.safetensors")
        save_file(tensors, copy)
        again = load_file(copy)
        assert {name: (each.shape, each.dtype) for name, each in again.items()} == {
            name: (each.shape, each.dtype) for name, each in tensors.items()
        }, "the copy has other tensors"


@fuzz_target(examples=100)
def tensora_model_file(data: bytes) -> None:
    with temporary_file(data, "model.safetensors") as path:
        load_model(_parts()["model"], path)


@functools.cache
def _parts() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    model(tensora.ones((1, 3))).sum().backward()
    optimizer.step()
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "generator": random.Generator(1),
    }


@fuzz_target(examples=150)
def tensora_checkpoint(data: bytes) -> None:
    with temporary_file(data, "run.safetensors") as path:
        load_checkpoint(path, **_parts())
    _train()


@fuzz_target(examples=200)
def tensora_checkpoint_signed(data: bytes) -> None:
    """The state as JSON, then the tensors of a file: the target adds header and checksum."""
    state, tensors = parts_of(data, 2)
    length = int.from_bytes(tensors[:8], "little")
    try:
        header = json.loads(tensors[8 : 8 + length])
        metadata = {
            "checksum": UNSIGNED.decode(),
            "accelera_checkpoint": "1",
            "state": state.decode("latin-1"),
        }
        text = json.dumps({"__metadata__": metadata, **header}).encode()
    except (ValueError, TypeError, RecursionError):
        return
    whole = len(text).to_bytes(8, "little") + text + tensors[8 + length :]
    signed = whole.replace(UNSIGNED, hashlib.sha256(whole).hexdigest().encode(), 1)
    with temporary_file(signed, "run.safetensors") as path:
        load_checkpoint(path, **_parts())
    _train()


def _train() -> None:
    """Run a training step: an accepted checkpoint must allow the training to continue."""
    parts = _parts()
    parts["model"](tensora.ones((1, 3))).sum().backward()
    parts["optimizer"].step()
    parts["scheduler"].step()
    parts["generator"].uniform((2,))


def _load_pretrained(data: bytes, kind: Any) -> None:
    config, weights, index = parts_of(data, 3)
    files = {"config.json": config, "model.safetensors": weights}
    if index:
        files["model.safetensors.index.json"] = index
        files["part.safetensors"] = files.pop("model.safetensors")
    if _is_large(config):
        return
    with temporary_folder(files) as folder:
        kind.from_pretrained(folder)


def _is_large(config: bytes) -> bool:
    """Return whether a configuration asks for a model that honestly takes much memory or time."""
    try:
        values = json.loads(config).values()
    except (ValueError, AttributeError, RecursionError):
        return False
    return any(isinstance(each, (int, float)) and each > MOST_WIDTH for each in values)


@fuzz_target(examples=100)
def tensora_gpt2(data: bytes) -> None:
    _load_pretrained(data, GPT2)


@fuzz_target(examples=100)
def tensora_llama(data: bytes) -> None:
    _load_pretrained(data, Llama)


@fuzz_target(examples=100)
def tensora_model_config(data: bytes) -> None:
    """A configuration from JSON values that a caller has read."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    for kind in (GPT2Config, LlamaConfig):
        kind.from_dict(values)
