"""Run about twenty of Tensora's kernels on small tensors, for compute-sanitizer and as a first test of a GPU.

    compute-sanitizer --tool racecheck python tools/gpu_kernels.py
    python tools/gpu_kernels.py --only softmax

Each result is compared with the CPU's. Exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import accelera.tensora as ts

F = ts.nn.functional
ROWS, COLUMNS = 5, 300
Kernel = Callable[[Any], Any]


def _normalized(x: Any) -> Any:
    one = ts.ones((COLUMNS,), dtype=x.dtype, device=x.device)
    return F.layer_norm(x, (COLUMNS,), one, one)


def _indices(x: Any, n: int) -> Any:
    return ts.asarray(np.arange(n) * 7 % ROWS).to(x.device)


def _images(x: Any) -> Any:
    return ts.reshape(x, (1, 5, 15, 20))


def _windows(x: Any) -> Any:
    return F.conv2d(_images(x), _images(x)[:, :, :3, :3], padding=1)


def _scattered(x: Any) -> Any:
    index = ts.zeros((ROWS, COLUMNS), dtype=ts.int64, device=x.device)
    return ts.scatter_add(x, index, x, axis=0)


def _attention(x: Any) -> Any:
    heads = ts.reshape(x, (1, 5, 10, 30))
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _put(x: Any) -> Any:
    copied = x * 1
    copied[_indices(x, 2)] = x[:2]
    return copied


KERNELS: dict[str, Kernel] = {
    "elementwise": lambda x: ts.exp(-x) * x + 1,
    "strided": lambda x: ts.matrix_transpose(x) + ts.matrix_transpose(x)[:, :1],
    "cast": lambda x: ts.astype(ts.astype(x * 10, ts.int32), ts.float32),
    "halves": lambda x: ts.astype(ts.astype(x, ts.float16) * 2, ts.float32),
    "sum of rows": lambda x: ts.sum(x, axis=1),
    "sum of columns": lambda x: ts.sum(x, axis=0),
    "maximum": lambda x: ts.max(x),
    "argmax": lambda x: ts.astype(ts.argmax(x, axis=1), ts.float32),
    "cumulative sum": lambda x: ts.cumulative_sum(x, axis=1),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": _normalized,
    "cross_entropy": lambda x: F.cross_entropy(x, _indices(x, ROWS)),
    "batch_norm": lambda x: F.batch_norm(_images(x), None, None, training=True),
    "take": lambda x: x[_indices(x, 9)],
    "put": _put,
    "scatter_add": _scattered,
    "sort": lambda x: ts.astype(ts.argsort(x, axis=1), ts.float32),
    "convolution": _windows,
    "max_pool": lambda x: F.max_pool2d(_images(x), 3, stride=2),
    "avg_pool": lambda x: F.avg_pool2d(_images(x), 3, stride=2),
    "product": lambda x: x @ ts.matrix_transpose(x),
    "attention": _attention,
}
WITHOUT_GRADIENT = {"cast", "argmax", "sort", "put"}


def results(kernel: Kernel, name: str, device: str) -> list[np.ndarray]:
    """Return the result of a kernel and its gradient."""
    x = ts.asarray(np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("f")).to(device)
    if name in WITHOUT_GRADIENT:
        return [np.asarray(kernel(x).cpu())]
    x.requires_grad = True
    y = kernel(x)
    ts.sum(y * y).backward()
    assert x.grad is not None
    return [np.asarray(each.detach().cpu()) for each in (y, x.grad)]


def steps_of_optimizers(device: str) -> list[np.ndarray]:
    """Return parameters after steps of SGD and Adam."""
    values = []
    for make in (ts.optim.SGD, ts.optim.Adam):
        x = ts.ones((ROWS, COLUMNS), device=device)
        x.requires_grad = True
        optimizer = make([x], lr=0.1)
        ts.sum(x * x).backward()
        optimizer.step()
        values.append(np.asarray(x.detach().cpu()))
    return values


def replayed(device: str) -> list[np.ndarray]:
    """Return the results of a captured function, which a graph launches from the third call on."""

    @ts.jit
    def function(x: Any) -> Any:
        for _ in range(3):
            x = F.softmax(x @ ts.matrix_transpose(x), -1) @ x
        return x

    x = ts.asarray(np.random.default_rng(1).standard_normal((6, 6)).astype("f")).to(device)
    return [np.asarray(function(x).cpu()) for _ in range(4)]


def main(arguments: list[str]) -> int:
    """Run the kernels; return the exit status."""
    parser = argparse.ArgumentParser(prog="python tools/gpu_kernels.py")
    parser.add_argument("--only", help="name of one kernel")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args(arguments)
    runs: dict[str, Callable[[str], list[np.ndarray]]] = {
        name: lambda device, name=name: results(KERNELS[name], name, device)  # type: ignore[misc]
        for name in KERNELS
    }
    runs |= {"optimizers": steps_of_optimizers, "graph": replayed}
    failures = 0
    for name in [options.only] if options.only else runs:
        pairs = zip(runs[name](options.device), runs[name]("cpu"), strict=True)
        same = all(np.allclose(values, expected, rtol=1e-3, atol=1e-3) for values, expected in pairs)
        failures += not same
        print(f"{name}: {'same' if same else 'DIFFERENT'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
