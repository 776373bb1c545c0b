"""A training step of a small GPT inside budgets of bytes, beside PyTorch's own ways to save memory.

PyTorch runs eagerly, with a checkpoint per block, compiled with several of ``activation_memory_budget``, and
offloaded as a whole by ``accelera.offload``.

python -m benchmarks tensora-budget --save tensora_budget
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import save

BLOCKS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 8, 256, 8, 256, 8, 256
CONTENDERS = (
    "torch",
    "torch, a checkpoint per block",
    "torch, compiled 1.0",
    "torch, compiled 0.5",
    "torch, compiled 0.2",
    "torch, compiled 0.1",
    "torch, offloaded 65 MB",
    "tensora",
    "tensora 0.75",
    "tensora 0.5",
    "tensora 65 MB",
    "tensora 45 MB",
)
"""A share is of the free peak; after ``compiled`` it is the partitioner's budget for what is saved.

Bytes are above those of the parameters.
"""
STEPS = 5


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the peak and the time of a step of each contender, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora-budget")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true", help="two contenders, once")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(measured(options.child, 2 if options.small else STEPS)))
        return {}
    names = ("tensora", "tensora 0.5") if options.small else CONTENDERS
    figures: dict[str, Any] = {}
    for _ in range(1 if options.small else 3):
        for name in names:
            found = in_process(name, options.small)
            known = figures.setdefault(name, found)
            known["seconds"] = min(known["seconds"], found["seconds"])
            known["peak_mb"] = max(known["peak_mb"], found["peak_mb"])
    for name, found in figures.items():
        base = figures["torch" if name.startswith("torch") else "tensora"]["seconds"]
        found["added"] = found["seconds"] / base - 1
        words = (
            f"{name:30} {found['peak_mb']:7.1f} MB  {found['seconds'] * 1e3:7.1f} ms  {found['added']:+.1%}"
        )
        if "planned_mb" in found:
            words += f", planned {found['planned_mb']:.1f} MB, +{found['planned_added']:.1%}"
        print(words)
    if options.save:
        print("saved", save(options.save, {"contenders": figures}))
    return figures


def in_process(name: str, small: bool) -> dict[str, Any]:
    """Return the figures of one contender, from a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "tensora_budget",
        "--child",
        name,
        *(["--small"] if small else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(name: str, steps: int) -> dict[str, Any]:
    """Return the best seconds of a step, and the peak of resident memory above that before the steps."""
    library, _, variant = name.replace(",", "").partition(" ")
    step, more = (torch_step if library == "torch" else tensora_step)(variant)
    before = resident_mb_compiled(step) if "compiled" in variant else resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    best = float("inf")
    for i in range(steps):
        began = time.perf_counter()
        step()
        if i:  # the first one warms up, or is recorded
            best = min(best, time.perf_counter() - began)
    return {"seconds": best, "peak_mb": resident_mb("VmHWM") - before, **more()}


def resident_mb_compiled(step: Callable[[], Any]) -> float:
    """Return the resident MB after steps that compile, with freed memory given back to the system."""
    for _ in range(2):
        step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_mb("VmRSS")


def resident_mb(field: str) -> float:
    """Return a field of the process's status, in MB; raises OSError when it is absent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def gpt(nn: Any, attention: Callable[..., Any]) -> Any:
    """Return the network, built with either library."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.act = nn.GELU()

        def forward(self, x: Any) -> Any:
            shape = (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
            qkv = self.qkv(self.norm1(x)).reshape(shape).permute(2, 0, 3, 1, 4)
            mixed = attention(qkv[0], qkv[1], qkv[2], is_causal=True)
            x = x + self.out(mixed.permute(0, 2, 1, 3).reshape((BATCH, LENGTH, WIDTH)))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.norm = nn.LayerNorm(WIDTH)
            self.call = lambda block, x: block(x)

        def forward(self, words: Any, places: Any) -> Any:
            x = self.words(words) + self.places(places)
            for block in self.blocks:
                x = self.call(block, x)
            return self.norm(x) @ self.words.weight.T

    return Model()


def numbers() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    return (
        random.integers(0, WORDS, (BATCH, LENGTH)),
        np.arange(LENGTH),
        random.integers(0, WORDS, (BATCH * LENGTH,)),
    )


def torch_step(variant: str) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return a step of PyTorch, and a function that returns the memory figures of an offloaded model."""
    import torch
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(2)
    importlib.import_module("torch._dynamo")  # the first step of an optimizer would load it
    model = gpt(torch.nn, functional.scaled_dot_product_attention)
    torch.ones(512, 512) @ torch.ones(512, 512)  # threads and their memory are there
    if "checkpoint" in variant:
        model.call = lambda block, x: checkpoint(block, x, use_reentrant=False)
    elif variant.startswith("compiled"):
        partitioner: Any = importlib.import_module("torch._functorch.config")
        partitioner.activation_memory_budget = float(variant.split()[1])
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words, places, targets = map(torch.tensor, numbers())

    def step() -> None:
        logits = model(words, places)
        functional.cross_entropy(logits.reshape(BATCH * LENGTH, WORDS), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    if not variant.startswith("offloaded"):
        return step, dict
    from accelera import offload, offloaded

    limit = sum(each.nbytes for each in model.parameters()) + int(float(variant.split()[1]) * 1e6)
    once = functools.cache(lambda: offload(model, limit))

    def step_offloaded() -> None:
        once()  # the weights were in memory before the steps, as everybody's
        step()

    def memory_figures() -> dict[str, Any]:
        return {"limit_mb": limit / 1e6, "peak_tensor_mb": offloaded(model).report().peak_tensor_bytes / 1e6}

    return step_offloaded, memory_figures


def tensora_step(variant: str) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return a step of Tensora, and a function that returns the figures of its plan."""
    import accelera.tensora as ts
    from accelera.tensora import functional, nn, optim

    ts.set_num_threads(2)
    model = gpt(nn, functional.scaled_dot_product_attention)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    words, places, targets = map(ts.tensor, numbers())
    ts.ones((512, 512)) @ ts.ones((512, 512))

    def step() -> None:
        logits = model(words, places)
        loss = functional.cross_entropy(logits.reshape((BATCH * LENGTH, WORDS)), targets)
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if not variant:
        return step, dict
    outside = ts.memory_stats().live_bytes
    limit = outside + int(float(variant.split()[0]) * (1e6 if "MB" in variant else FREE_BYTES))
    budget = ts.budget(limit)

    def plan_figures() -> dict[str, Any]:
        report, plan = budget.report, budget.plan()
        if not report.followed or report.predicted_bytes != report.peak_bytes > limit:
            raise RuntimeError(f"{variant}: the plan was not followed: {report}")
        return {
            "limit_mb": (limit - outside) / 1e6,
            "planned_mb": (plan.peak_bytes - outside) / 1e6,
            "planned_added": plan.added_share,
        }

    return budget(step), plan_figures


FREE_BYTES = 290e6
"""Free peak above the parameters, of which shares are taken."""


if __name__ == "__main__":
    main(sys.argv[1:])
