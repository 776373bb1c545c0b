"""What an offloaded model really takes, measured from inside a process of its own.

``python -m tests.offload.peaks '<json>'`` prints the peak above the idle process beside what the plan said.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelera import offload, offloaded
from accelera.capture._internal import default_loss
from accelera.memory import process_memory, reset_peak
from tests.children import answer_of
from tests.offload.language_model import CONTEXT, LanguageModel

THREADS = 2
PASSES = 2


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Run ``main`` on ``job`` in a new process."""
    answer: dict[str, Any] = answer_of("-m", "tests.offload.peaks", json.dumps(job))
    return answer


def layers(rows: int, width: int = 1024, count: int = 6) -> tuple[nn.Module, torch.Tensor]:
    """Return equal linear layers, and ``rows`` inputs."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count))), torch.randn(rows, width)


def words(rows: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a language model whose last layer is its embedding."""
    return LanguageModel(4000, 320, 3, 5), torch.randint(0, 4000, (rows, CONTEXT))


def pictures(rows: int, channels: int = 256) -> tuple[nn.Module, torch.Tensor]:
    """Return a convolutional net."""
    sizes = itertools.pairwise([32, 64, 128, channels, channels, channels, channels, channels])
    steps = [
        part
        for before, after in sizes
        for part in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
    ]
    net = nn.Sequential(*steps, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 1000))
    return net, torch.randn(rows, 32, 16, 16)


def table(rows: int) -> tuple[nn.Module, torch.Tensor]:
    """Return an embedding of 70 MiB and a classifier."""
    net = nn.Sequential(nn.Embedding(36_000, 512), nn.Flatten(), nn.Linear(16 * 512, 64))
    return net, torch.randint(0, 36_000, (rows, 16))


KINDS: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {
    "layers": layers,
    "words": words,
    "pictures": pictures,
    "table": table,
}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out passes of the job's model in its budget; return what was measured and planned."""
    torch.set_num_threads(THREADS)
    warm = nn.Sequential(nn.Linear(64, 64))
    _passes(warm, torch.randn(4, 64), job["train"], 1)
    model, inputs = KINDS[job["kind"]](job["rows"])
    weights_bytes = sum(each.nbytes for each in model.parameters())
    given: dict[str, Any] = {"inputs": inputs} if job.get("planned", True) else {}
    offload(model.train(job["train"]), job["budget"], **given)
    gc.collect()
    before = process_memory()
    reset_peak()
    seconds = _passes(model, inputs, job["train"], PASSES)
    after, handle = process_memory(), offloaded(model)
    files = max(0, after.file_bytes - before.file_bytes)
    answer = {
        "measured_bytes": after.peak_bytes - before.rss_bytes - files,
        "weights_bytes": weights_bytes,
        "peak_pool_bytes": handle.report().peak_bytes,
        "capacity_bytes": handle.report().capacity_bytes,
        "seconds": seconds,
    }
    if handle.plan is not None:
        answer["planned_bytes"] = handle.plan.peak_bytes["ram"]
        answer["budget_bytes"] = handle.plan.budget_bytes
        answer["planned_pool_bytes"] = handle.plan.peak_pool_bytes
        if job.get("timed"):
            answer["planned_seconds"] = handle.plan.seconds
    return answer


def _passes(model: nn.Module, inputs: torch.Tensor, train: bool, count: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if train else None
    seconds = []
    for _ in range(count):
        began_s = time.perf_counter()
        _pass(model, inputs, optimizer)
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _pass(model: nn.Module, inputs: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        with torch.no_grad():
            model(inputs)
        return
    optimizer.zero_grad()
    default_loss(model(inputs)).backward()
    optimizer.step()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
