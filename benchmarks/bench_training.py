"""Training of a GPT-2 (29 M parameters) in memory, with checkpointing, and offloaded in several budgets.

Each contender trains in a process of its own, in turn, several rounds; a step of AdamW on 4 x 256 tokens,
dropout on. The losses of all are the same to a thousandth. Then: how long plans take, of this model, of 24
small layers, and of a model of 7 G parameters.

    python -m benchmarks training
    python -m benchmarks training --cases steps --rounds 3 --save training
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from accelera import format_bytes, offload, offloaded, plan_offload
from accelera.memory import process_memory, reset_peak
from benchmarks import cases
from benchmarks.cap import alone, told

CONTENDERS = ("in memory", "checkpointing", "offloaded 4", "offloaded 2", "offloaded 1.5")
"""With the budget in weights."""
_WARM = 2
"""Steps that are not timed: the first is recorded, the second is the first by plan."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save the cases."""
    options = cases.parser("training", ["steps", "plans"])
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args(arguments)
    return cases.run(chosen, {"steps": lambda: _steps(chosen), "plans": lambda: _plans(small=chosen.small)})


def _steps(options: Any) -> dict[str, Any]:
    contenders = (CONTENDERS[0], CONTENDERS[-1]) if options.small else CONTENDERS
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(1 if options.small else options.rounds):
        for name in contenders:
            small = ["--small"] if options.small else []
            run = told(alone([sys.executable, "-m", "benchmarks.bench_training", name, *small]))
            if "failed" in run:
                raise SystemExit(f"{name}: {run['failed']}")
            runs[name].append(run)
    figures = {name: _best(found) for name, found in runs.items()}
    base_s = figures["in memory"]["step_s"]
    for name, found in figures.items():
        found["of_in_memory"] = found["step_s"] / base_s
        grown, ratio = format_bytes(found["growth_bytes"]), found["of_in_memory"]
        print(f"{name:14} {found['step_s']:.2f} s, {ratio:.2f} of in memory, memory grew by {grown}")
        assert np.allclose(found["losses"], figures["in memory"]["losses"], rtol=1e-3), (
            f"{name} learns otherwise"
        )
    return figures


def _best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {**min(runs, key=lambda each: each["step_s"]), "rounds_s": [each["step_s"] for each in runs]}


def _plans(*, small: bool) -> dict[str, Any]:
    """Time plans of models built before, and of one of 7 G parameters that the plan builds without data."""
    ids = torch.randint(0, 500, (4, 64 if small else 256))
    labelled, one = {"input_ids": ids, "labels": ids}, ids[:1]
    gpt2 = _gpt2(small=small)
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24)))
    made: dict[str, tuple[Any, Any, str, bool]] = {
        "gpt2": (gpt2, labelled, "400MiB", True),
        "24 layers": (layers, torch.randn(16, 512), "64MiB", True),
    }
    if not small:
        made["llama 7B"] = (_llama, {"input_ids": one, "labels": one}, "24GiB", True)
        made["llama 7B, inference"] = (_llama, {"input_ids": one}, "4GiB", False)
    figures = {}
    for name, (model, inputs, budget, train) in made.items():
        began, began_cpu = time.perf_counter(), time.process_time()
        found = plan_offload(model, inputs, budget, train=train)
        took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}
        figures[name] = {**took, "budget_bytes": found.budget_bytes, "weights_bytes": found.weights_bytes}
        print(f"{name:20} {took['seconds']:.2f} s ({took['cpu_s']:.2f} of the processor)")
    return figures


def _gpt2(*, small: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    layers, width = (2, 128) if small else (8, 512)
    return GPT2LMHeadModel(
        GPT2Config(n_layer=layers, n_embd=width, n_head=8, vocab_size=8192, n_positions=256)
    ).train()


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig())


def contend(how: str, *, small: bool) -> dict[str, Any]:
    """Train; return the seconds of the best step, losses and growth of private memory."""
    torch.set_num_threads(2)
    model = _gpt2(small=small)
    weights = sum(each.nbytes for each in model.parameters())
    batch = torch.randint(0, 500, (4, 64 if small else 256), generator=torch.Generator().manual_seed(2))
    if how == "checkpointing":
        model.gradient_checkpointing_enable()
    if how.startswith("offloaded"):
        offload(model, max(int(float(how.split()[1]) * weights), 64 << 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    importlib.import_module("torch._dynamo")  # the first step of an optimizer would load it
    gc.collect()
    before = process_memory().rss_bytes
    reset_peak()
    seconds, losses = [], []
    for number in range(_WARM + (1 if small else 5)):
        torch.manual_seed(number)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    found = {"step_s": min(seconds[_WARM:]), "seconds": seconds, "losses": losses, "weights_bytes": weights}
    found["growth_bytes"] = process_memory().peak_bytes - before
    if how.startswith("offloaded"):
        report = offloaded(model).report()
        found["activations"] = dict(report.activation_bytes)
        found["read_bytes"], found["written_bytes"] = report.bytes_read, report.bytes_written
    return found


if __name__ == "__main__":
    print(json.dumps(contend(sys.argv[1], small="--small" in sys.argv)))
