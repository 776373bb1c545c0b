"""What real runs take, as the system counts it, beside what was estimated; run in a process of its own.

``python -m tests.estimate.estimated`` prints one JSON object. Every large allocation is given back to
the system when it is freed (``MALLOC_MMAP_THRESHOLD_``), so that the peak is of what is alive, and not of
what the C library keeps; the buffers that the libraries keep for themselves exist before.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from accelera import estimate
from accelera.memory import process_memory, reset_peak
from benchmarks.models import ResNet, bert, gpt2, llama, mlp, tokens
from tests.children import answer_of
from tests.estimate.architectures import images, of_config


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]


def cases() -> dict[str, Case]:
    """Models of 20 to 60 MB of weights, hundreds in training."""
    sizes = {"num_hidden_layers": 3, "hidden_size": 384, "intermediate_size": 1024, "vocab_size": 4000}
    pictures = {**sizes, "num_attention_heads": 6, "image_size": 112}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    return {
        "mlp": Case(lambda: mlp(1024, layers=10), lambda: torch.randn(256, 1024)),
        "resnet": Case(lambda: ResNet((2, 2, 2, 1), classes=100), lambda: torch.randn(8, 3, 160, 160)),
        "gpt": Case(lambda: gpt2(n_layer=3, n_embd=384, n_head=6, vocab_size=4000), lambda: tokens(2, 128)),
        "llama": Case(lambda: llama(**sizes, **heads), lambda: tokens(2, 128)),
        "bert": Case(lambda: bert(**sizes, num_attention_heads=6), lambda: tokens(2, 128)),
        "vit": Case(of_config("vit", "ViTForImageClassification", **pictures), lambda: images(4, 112)),
    }


def measured() -> dict[str, dict[str, list[int]]]:
    """Run ``main`` in a new process: measured and predicted peak in bytes, by model and phase."""
    given_back = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    answer: dict[str, dict[str, list[int]]] = answer_of(
        "-m", "tests.estimate.estimated", environment=given_back
    )
    return answer


def main() -> None:
    torch.mm(torch.randn(512, 512), torch.randn(512, 8192))
    run(ResNet((1, 1)), torch.randn(1, 3, 64, 64), train=True)
    found: dict[str, dict[str, list[int]]] = {}
    for name, case in cases().items():
        told = estimate(case.build, case.inputs, dtypes=["float32"])
        found[name] = {
            "inference": [peak_bytes(case, train=False), told.phase("inference").peak_bytes],
            "training": [peak_bytes(case, train=True), told.phase("training").peak_bytes],
        }
    print(json.dumps(found))


def peak_bytes(case: Case, *, train: bool) -> int:
    """Most memory of the process above what it held before the model was built, code it loaded aside."""
    gc.collect()
    before = process_memory()
    module, inputs = case.build(), case.inputs()
    gc.collect()
    reset_peak()
    run(module, inputs, train=train)
    after = process_memory()
    return after.peak_bytes - before.rss_bytes - max(0, after.file_bytes - before.file_bytes)


def run(module: nn.Module, inputs: Any, *, train: bool) -> None:
    """Two iterations, written without anything of this project."""
    module.train(train)
    optimizer = torch.optim.AdamW(module.parameters()) if train else None
    with torch.set_grad_enabled(train):
        for _ in range(2):
            outputs = module(**inputs) if isinstance(inputs, dict) else module(inputs)
            if optimizer is not None:
                loss = outputs.loss if hasattr(outputs, "loss") else outputs.mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss
            del outputs


if __name__ == "__main__":
    main()
