"""One GPU: its link, copies beside products, half types out of core, and batches shared with the processors.

    python -m benchmarks gpu
    python -m benchmarks gpu --device cuda:0 --cases link overlap --save gpu

Figures are best of several; what a library does by itself on the same device stands beside each.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from accelera import MatrixEngine
from accelera.devices.torch_device import TorchDevice
from accelera.engine._internal import cost_model, link_rates
from accelera.errors import StateError
from accelera.execution import (
    ExecutionStrategy,
    StrategyManager,
    ThreadsExecutor,
    TorchDeviceExecutor,
    kernel,
)
from accelera.execution._internal import Kernel
from benchmarks import cases

GIB = 1 << 30
ROUNDS = 5


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save all figures."""
    functions = {"link": link, "overlap": overlap, "halves": halves, "hybrid": hybrid}
    parser = cases.parser("gpu", functions)
    usual = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual, help="cuda:0, or cpu for the same code without streams")
    options = parser.parse_args(arguments)
    return cases.run(
        options,
        {name: functools.partial(each, options.device, options.small) for name, each in functions.items()},
    )


def link(device: str, small: bool) -> dict[str, Any]:
    """Return GB/s to and from the device: ours through its buffers, and torch's copies of pinned memory."""
    there, size = TorchDevice(device), (8 << 20) if small else GIB
    ours, pinned = link_rates(there), link_rates(there, pinned=True)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device != "cpu")
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    up = _best_s(lambda: memory.copy_(host), device)
    down = _best_s(lambda: host.copy_(memory), device)
    figures = {
        "upload of ordinary memory": ours.upload_bytes_per_s / 1e9,
        "download to ordinary memory": ours.download_bytes_per_s / 1e9,
        "upload of lent memory": pinned.upload_bytes_per_s / 1e9,
        "download to lent memory": pinned.download_bytes_per_s / 1e9,
        "torch's upload of pinned memory": size / up / 1e9,
        "torch's download to pinned memory": size / down / 1e9,
    }
    _tell(figures, "GB/s")
    return {"gb_per_s": figures, "tflop_per_s": cost_model(there).flops_per_s / 1e12}


def overlap(device: str, small: bool) -> dict[str, Any]:
    """Return the share of an upload that a product beside it hides, by the priority of the copies' stream."""
    if device == "cpu":
        return {"skipped": "the CPU has no streams"}
    edge, size = (1024, 8 << 20) if small else (8192, GIB)
    a = torch.randn(edge, edge, device=device)
    out, host = torch.empty_like(a), torch.empty(size, dtype=torch.uint8).pin_memory()
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    times = max(1, round(_best_s(lambda: memory.copy_(host), device) / _best_s(_product(a, out), device)))

    def products() -> None:
        for _ in range(times):
            torch.mm(a, a, out=out)

    figures = {}
    for priority in (0, -1):
        stream: Any = torch.cuda.Stream(priority=priority)

        def copies(stream: Any = stream) -> None:
            with torch.cuda.stream(stream):
                for part, target in zip(host.chunk(256), memory.chunk(256), strict=True):
                    target.copy_(part, non_blocking=True)

        alone = [_best_s(each, device) for each in (products, copies)]
        both = _best_s(functools.partial(_in_order, products, copies), device)
        figures[f"priority {priority}"] = (sum(alone) - both) / min(alone)
    _tell(figures, "of the shorter one hidden")
    return {"hidden": figures}


def halves(device: str, small: bool) -> dict[str, Any]:
    """Return TFLOP/s of products by plan, operands in RAM, and of torch with operands on the device."""
    edge = 512 if small else 16384
    engine = MatrixEngine(device=device, enable_progress=False)
    figures: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(edge, edge, generator=torch.Generator().manual_seed(0)).to(dtype)
        budget = a.nbytes // 2 + (96 << 20 if device == "cpu" else 0)
        seconds = _best_s(functools.partial(engine.matmul, a, a, budget=budget), device, rounds=2)
        try:
            report = engine.last_report
        except StateError:  # small products are computed without a plan
            report = None
        there = a.to(device)
        resident = _best_s(_product(there, torch.empty_like(there)), device)
        del there
        figures[str(dtype)] = {
            "by plan": _tflops(edge, seconds),
            "torch, on the device": _tflops(edge, resident),
            "stall_s": report.stall_s if report else 0.0,
            "predicted_s": report.plan.forecast.seconds if report else 0.0,
            "seconds": seconds,
        }
        _tell(figures[str(dtype)], f"({dtype}; TFLOP/s and s)")
    return figures


def hybrid(device: str, small: bool) -> dict[str, Any]:
    """Return the seconds of a batch on processors, on the device, and on both."""
    count, edge = (40, 64) if small else (2000, 512)
    tasks = [np.random.default_rng(seed).standard_normal((edge, edge)) for seed in range(8)] * (count // 8)
    function, figures = _spectral(), {}
    for name, strategy in (
        ("CPU", ExecutionStrategy.CpuOnly),
        ("GPU", ExecutionStrategy.GpuOnly),
        ("both", ExecutionStrategy.Hybrid()),
        ("auto", ExecutionStrategy.Auto),
    ):
        gpu = TorchDeviceExecutor(device, outputs_to="cpu")
        manager = StrategyManager(ThreadsExecutor(), gpu, strategy)
        manager.execute(tasks[: count // 8], function)
        figures[name] = min(_seconds(functools.partial(manager.execute, tasks, function)) for _ in range(3))
    _tell(figures, "s")
    memory = torch.cuda.memory_reserved(device) if device.startswith("cuda") else 0
    return {"seconds": figures, "reserved_bytes": memory}


def _spectral() -> Kernel[Any, Any]:
    """Return a function of a matrix with a form for many: the largest magnitude of its spectrum."""

    @kernel
    def spectral(task: np.ndarray[Any, Any]) -> float:
        return float(np.abs(np.fft.fft2(task)).max())

    @spectral.gpu_batch
    def _(tasks: Sequence[np.ndarray[Any, Any]], device: str) -> torch.Tensor:
        stacked = torch.from_numpy(np.stack(tasks)).to(device)
        return torch.fft.fft2(stacked).abs().amax((1, 2))

    return spectral


def _product(a: torch.Tensor, out: torch.Tensor) -> Callable[[], Any]:
    return lambda: torch.mm(a, a, out=out)


def _tflops(edge: int, seconds: float) -> float:
    return 2.0 * edge**3 / seconds / 1e12


def _best_s(run: Callable[[], Any], device: str, rounds: int = ROUNDS) -> float:
    """Return the least seconds of ``run`` and of all work on the device, the first round left out."""
    once = functools.partial(_in_order, run, functools.partial(_synchronize, device))
    once()
    return min(_seconds(once) for _ in range(rounds))


def _in_order(*runs: Callable[[], Any]) -> None:
    for run in runs:
        run()


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def _tell(figures: dict[str, float], unit: str) -> None:
    for name, each in figures.items():
        print(f"{name:40}{each:12.4g} {unit}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
