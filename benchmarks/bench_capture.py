"""What capturing costs: a 7B training step, six models, one operator; and how true the told peak is.

python -m benchmarks capture
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from accelera.capture import capture
from benchmarks.machine import save
from benchmarks.models import (
    ITERATIONS,
    Reference,
    mlp,
    reference_traces,
    references,
    small_references,
    tokens,
)

ROUNDS = 3
_STEP = """
import json, resource, sys, time
begun = time.perf_counter()
import torch
from benchmarks.models import llama_7b_step
small = bool(int(sys.argv[1]))
if not small:
    import transformers
imported, idle = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
processor = time.process_time()
trace = llama_7b_step(small=small)
print(json.dumps({
    "import_s": imported - begun,
    "capture_s": time.perf_counter() - imported,
    "capture_processor_s": time.process_time() - processor,
    "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    "resident_after_imports_bytes": idle << 10,
    "parameters": trace.meta["parameters"],
    "steps": trace.step_count,
    "accesses": trace.access_count,
    "peak_live_bytes": trace.meta["peak_live_bytes"],
}))
"""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks capture")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    figures = {
        "llama_7b_step": llama_7b(small=options.small),
        "references": six_models(small=options.small),
        "operator": one_operator(iterations=2 if options.small else 50),
        "peaks": peaks(small=options.small),
    }
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def llama_7b(*, small: bool) -> dict[str, Any]:
    """Time one AdamW step of a Llama of 7B parameters, in a process of its own each time."""
    command = [sys.executable, "-c", _STEP, str(int(small))]
    rounds = []
    for _ in range(1 if small else ROUNDS):
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        rounds.append(json.loads(ran.stdout.splitlines()[-1]))
    best: dict[str, Any] = min(rounds, key=lambda each: each["capture_s"])
    print(
        f"7B: {best['capture_s']:.2f} s, {best['capture_processor_s']:.2f} s of processor time, for "
        f"{best['accesses']} accesses; {best['peak_resident_bytes'] / 2**30:.2f} GiB resident at most"
    )
    return {"best": best, "rounds": rounds}


def six_models(*, small: bool) -> list[dict[str, Any]]:
    """Tell what the reference traces are."""
    begun = time.perf_counter()
    iterations = 2 if small else ITERATIONS
    traces = reference_traces(iterations, small=small)
    print(f"six models, {iterations} iterations each: {time.perf_counter() - begun:.1f} s")
    rows = []
    for name, trace in traces.items():
        row = {
            "model": name,
            "parameters": trace.meta["parameters"],
            "steps": trace.step_count,
            "accesses": trace.access_count,
            "buffers": trace.buffer_count,
            "peak_live_bytes": trace.meta["peak_live_bytes"],
        }
        print(f"{name:9} {row['parameters'] / 1e6:7.1f}M parameters {row['accesses']:6} accesses")
        rows.append(row)
    return rows


def one_operator(iterations: int) -> dict[str, float]:
    """Tell the processor time that recording adds to one operator of a small model that really runs."""
    module, inputs = mlp(64, layers=12), torch.randn(4, 64)
    trace = capture(module, inputs, steps=2)
    operators = iterations * (trace.step_count - trace.meta["iterations"][1])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain = 1e6 * _seconds(lambda: _train(module, inputs, iterations)) / operators
    recorded = 1e6 * _seconds(lambda: capture(module, inputs, steps=iterations)) / operators
    torch.set_num_threads(threads)
    print(f"one operator: {plain:.1f} us, recorded {recorded:.1f} us")
    return {"plain_us": plain, "recorded_us": recorded, "added_us": recorded - plain}


def _seconds(function: Callable[[], Any]) -> float:
    """Return the least processor time of three calls."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        function()
        times.append(time.process_time() - begun)
    return min(times)


def _train(module: torch.nn.Module, inputs: torch.Tensor, iterations: int) -> None:
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(iterations):
        optimizer.zero_grad()
        module(inputs).mean().backward()
        optimizer.step()


def peaks(*, small: bool) -> list[dict[str, Any]]:
    """Compare the told peak with the allocator's account of a real run."""
    from tests.capture.measured import training_peak_bytes

    rows = []
    models = small_references()
    chosen = {"mlp": models["mlp"], "moe": models["moe"]} if small else {**models, **_middling()}
    for name, model in chosen.items():
        trace = capture(model.build, model.inputs, steps=2)
        told = trace.meta["peak_live_bytes"] + trace.meta["idle_bytes"]
        measured = training_peak_bytes(model.build(), model.inputs(), iterations=2)
        rows.append({"model": name, "told_bytes": told, "measured_bytes": measured})
        print(f"{name:16} told {told / 2**20:9.3f} MiB, measured {measured / 2**20:9.3f} MiB")
    return rows


def _middling() -> dict[str, Reference]:
    """Return models large enough that a kernel's own scratch memory could show."""
    whole = references()
    return {
        "resnet34 b8": whole["resnet34"]._replace(inputs=lambda: torch.randn(8, 3, 112, 112)),
        "mlp b512": whole["mlp"],
        "gpt2 b1 s128": whole["gpt2"]._replace(inputs=lambda: tokens(1, 128)),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
