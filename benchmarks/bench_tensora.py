"""Tensora beside PyTorch and NumPy: nanoseconds of small operations, and speed of large ones.

python -m benchmarks tensora --save tensora
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import accelera.tensora as ts
from accelera.tensora import functional, optim
from benchmarks.machine import save

Call = Callable[[], object]
REST = 0.15
"""Seconds before each library's turn: threads of the one before spin for more work, NumPy's for 0.1 s."""
GOALS = {
    "a+b, 10 floats": 0.22,
    "add + backward": 0.05,
    "chain of 100 + backward": 0.15,
    "gelu, 4M": 0.20,
    "gelu + backward, 4M": 0.15,
    "matmul 32": 0.40,
    "softmax": 0.80,
    "softmax + backward": 0.85,
    "layer_norm": 1.03,
    "layer_norm + backward": 0.85,
    "cross_entropy + backward": 0.80,
    "training step of an MLP": 0.90,
}
GOALS |= {f"matmul {n}": 1.05 for n in (256, 512, 1024, 2048)}
GOALS |= {
    "conv2d 32x64x56x56": 1.10,
    "conv2d 32x64x56x56 + backward": 1.0,
    "attention 16x4x64x32": 1.0,
    "attention 16x4x64x32 + backward": 1.0,
    "attention 2x8x1024x64": 1.0,
    "attention 2x8x1024x64 + backward": 1.0,
}
"""Time as a share of torch's that the project wants to reach."""


@dataclass(frozen=True)
class Case:
    """One piece of work in each library."""

    name: str
    tensora: Call
    torch: Call
    numpy: Call | None = None
    calls: int = 1
    plain: Call | None = None
    """In Tensora by the unoptimised program."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the best time of each case in each library, and its share of torch's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    rounds, rest = (2, 0.0) if options.small else (8, REST)
    figures: dict[str, Any] = {
        "instruction_set": ts.core.native.instruction_set(),
        "threads": torch.get_num_threads(),
    }
    for case in cases(options.small):
        best = best_seconds(case, rounds, rest)
        figures[case.name] = best | {
            "of_torch": best["tensora"] / best["torch"],
            "goal": GOALS.get(case.name),
        }
        times = "  ".join(f"{library} {seconds * 1e6:10.2f} us" for library, seconds in best.items())
        goal = f" (goal {GOALS[case.name]:.2f})" if case.name in GOALS else ""
        print(f"{case.name:26} {times}   {figures[case.name]['of_torch']:.2f} of torch{goal}", flush=True)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def best_seconds(case: Case, rounds: int, rest: float) -> dict[str, float]:
    """Seconds of one call in each library, best of interleaved rounds."""
    libraries = {"tensora": case.tensora, "torch": case.torch}
    libraries |= {"numpy": case.numpy} if case.numpy else {}
    libraries |= {"unoptimised": case.plain} if case.plain else {}
    best = dict.fromkeys(libraries, float("inf"))
    for _ in range(rounds):
        for library, call in libraries.items():
            time.sleep(rest)
            call()
            began = time.perf_counter()
            for _ in range(case.calls):
                call()
            best[library] = min(best[library], (time.perf_counter() - began) / case.calls)
    return best


def cases(small: bool) -> list[Case]:
    """Small operations, whose cost is that of the library, and large ones."""
    n = 1 << 12 if small else 1 << 22
    edges = (32, 64) if small else (32, 256, 512, 1024, 2048)
    products = (_product(edge) for edge in edges)
    fused = _fused(64 if small else 4096)
    small_ones = _small(20 if small else 2000)
    large = [*_large(n), *products, *fused, _training_step(small), *_windows(small)]
    return [*small_ones, *large, *_epilogues(64 if small else 4096)]


def _small(calls: int) -> list[Case]:
    array = np.random.default_rng(0).random(10, np.float32)
    a, t, leaf, t_leaf = ts.asarray(array), torch.tensor(array), ts.asarray(array), torch.tensor(array)
    leaf.requires_grad = t_leaf.requires_grad = True
    one, t_one = ts.asarray(np.ones(10, np.float32)), torch.ones(10)

    def chain(x: Any, weight: Any) -> None:
        y = x
        for _ in range(100):
            y = y * x
        y.backward(weight)

    return [
        Case("a+b, 10 floats", lambda: a + a, lambda: t + t, lambda: array + array, calls),
        Case(
            "add + backward",
            lambda: (leaf + a).backward(one),
            lambda: (t_leaf + t).backward(t_one),
            None,
            calls // 4,
        ),
        Case(
            "chain of 100 + backward",
            lambda: chain(leaf, one),
            lambda: chain(t_leaf, t_one),
            None,
            calls // 20,
        ),
        Case(
            "reshape",
            lambda: ts.reshape(a, (2, 5)),
            lambda: t.reshape(2, 5),
            lambda: array.reshape(2, 5),
            calls,
        ),
        Case("slice", lambda: a[2:7], lambda: t[2:7], lambda: array[2:7], calls),
    ]


def _large(n: int) -> list[Case]:
    array = np.random.default_rng(0).standard_normal(n, np.float32)
    x, t = ts.asarray(array, copy=True), torch.tensor(array)
    leaf, t_leaf = ts.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    weight, t_weight = ts.ones(n), torch.ones(n)

    def gelu(x: Any, tanh: Any) -> Any:
        return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def gradient(leaf: Any, tanh: Any, weight: Any) -> None:
        leaf.grad = None
        gelu(leaf, tanh).backward(weight)

    size = f"{n >> 20}M" if n >> 20 else str(n)
    return [
        Case(f"add, {size}", lambda: ts.compute(x + x), lambda: t + t, lambda: array + array),
        Case(f"exp, {size}", lambda: ts.compute(ts.exp(x)), lambda: t.exp(), lambda: np.exp(array)),
        Case(f"tanh, {size}", lambda: ts.compute(ts.tanh(x)), lambda: t.tanh(), lambda: np.tanh(array)),
        Case(f"sum, {size}", lambda: ts.sum(x), lambda: t.sum(), lambda: array.sum()),
        Case(
            f"gelu, {size}",
            lambda: ts.compute(gelu(x, ts.tanh)),
            lambda: gelu(t, torch.tanh),
            lambda: gelu(array, np.tanh),
        ),
        Case(
            f"gelu + backward, {size}",
            lambda: gradient(leaf, ts.tanh, weight),
            lambda: gradient(t_leaf, torch.tanh, t_weight),
        ),
    ]


def _product(edge: int) -> Case:
    array = np.random.default_rng(0).random((edge, edge), np.float32)
    x, t = ts.asarray(array), torch.tensor(array)
    calls = max(1, (256 // edge) ** 3)
    return Case(f"matmul {edge}", lambda: x @ x, lambda: t @ t, lambda: array @ array, calls)


def _windows(small: bool) -> list[Case]:
    """Convolution and attention, each with and without a backward pass."""
    image = (2, 8, 8, 8) if small else (32, 64, 56, 56)
    found = _both(
        f"conv2d {'x'.join(map(str, image))}",
        [image, (image[1], image[1], 3, 3)],
        lambda x, w: functional.conv2d(x, w, padding=1),
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=1),
    )
    for heads in [(2, 2, 16, 8)] if small else [(16, 4, 64, 32), (2, 8, 1024, 64)]:
        found += _both(
            f"attention {'x'.join(map(str, heads))}",
            [heads] * 3,
            functional.scaled_dot_product_attention,
            torch.nn.functional.scaled_dot_product_attention,
        )
    return found


def _both(name: str, shapes: list[tuple[int, ...]], ours: Any, theirs: Any) -> list[Case]:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
    x, t = [ts.asarray(array) for array in arrays], [torch.tensor(array) for array in arrays]
    leaves, t_leaves = [ts.asarray(array) for array in arrays], [torch.tensor(array) for array in arrays]
    leaf: Any
    for leaf in (*leaves, *t_leaves):
        leaf.requires_grad = True
    grad = random.standard_normal(theirs(*t).shape, np.float32)
    g, t_g = ts.asarray(grad), torch.tensor(grad)
    return [
        Case(name, lambda: ours(*x), lambda: theirs(*t)),
        Case(
            f"{name} + backward",
            lambda: ts.grad(ours(*leaves), leaves, g),
            lambda: torch.autograd.grad(theirs(*t_leaves), t_leaves, t_g),
        ),
    ]


def _epilogues(rows: int) -> list[Case]:
    """A layer of 1024 outputs and its activation, captured; up to k=64 the activation is an epilogue."""
    random, found = np.random.default_rng(0), []
    for activation, inner in itertools.product(("relu", "gelu"), (16, 32, 64, 128, 512)):
        arrays = [random.standard_normal(shape, np.float32) for shape in ((rows, inner), (1024, inner), 1024)]
        x, t = [ts.asarray(array) for array in arrays], [torch.tensor(array) for array in arrays]
        layer, torch_layer = (
            lambda *given, f=f, name=activation: getattr(f, name)(f.linear(*given))
            for f in (functional, torch.nn.functional)
        )
        found.append(
            Case(
                f"jit {activation}(linear), k={inner}",
                functools.partial(ts.jit(layer), *x),
                functools.partial(torch_layer, *t),
                plain=functools.partial(ts.jit(layer, optimize=False), *x),
            )
        )
    return found


def _fused(rows: int) -> list[Case]:
    """Operations over rows of 1024 float32 numbers, and with their gradients."""
    random = np.random.default_rng(0)
    array = random.standard_normal((rows, 1024), np.float32)
    classes = random.integers(0, 1024, rows)
    each = [
        ("softmax", lambda f, x, w, b, c: f.softmax(x, -1)),
        ("layer_norm", lambda f, x, w, b, c: f.layer_norm(x, (1024,), w, b)),
        ("cross_entropy", lambda f, x, w, b, c: f.cross_entropy(x, c)),
    ]
    arrays = (array, array[0], array[1])
    plain = [ts.asarray(a) for a in arrays], [torch.tensor(a) for a in arrays]
    leaves = (
        [ts.tensor(a, requires_grad=True) for a in arrays],
        [torch.tensor(a, requires_grad=True) for a in arrays],
    )
    targets = ts.asarray(classes), torch.tensor(classes)
    cases = []
    for name, call in each:
        forward: list[Any] = []
        both: list[Any] = []
        for i, library in enumerate((functional, torch.nn.functional)):
            forward.append(lambda i=i, library=library, call=call: call(library, *plain[i], targets[i]))
            both.append(
                lambda i=i, library=library, call=call: _backward(
                    call(library, *leaves[i], targets[i]), plain[i][0], leaves[i]
                )
            )
        cases += [Case(name, *forward), Case(f"{name} + backward", *both)]
    return cases


def _backward(result: Any, weight: Any, leaves: list[Any]) -> None:
    result.backward(weight if result.ndim else None)
    for leaf in leaves:
        leaf.grad = None


def _training_step(small: bool) -> Case:
    """An MLP 784-512-512-10, a batch of 128, Adam."""
    random = np.random.default_rng(0)
    widths = (784, 16, 16, 10) if small else (784, 512, 512, 10)
    weights = [
        array
        for i, o in itertools.pairwise(widths)
        for array in (random.standard_normal((o, i), np.float32) / i**0.5, np.zeros(o, np.float32))
    ]
    images, classes = random.standard_normal((128, 784), np.float32), random.integers(0, 10, 128)

    def step_of(library: Any, optimizer: Any, parameters: list[Any], x: Any, y: Any) -> Call:
        def step() -> None:
            optimizer.zero_grad()
            hidden = x
            for i in (0, 2, 4):
                hidden = library.linear(hidden, parameters[i], parameters[i + 1])
                hidden = library.relu(hidden) if i < 4 else hidden
            library.cross_entropy(hidden, y).backward()
            optimizer.step()

        return step

    ours = [ts.tensor(w, requires_grad=True) for w in weights]
    theirs = [torch.tensor(w, requires_grad=True) for w in weights]
    return Case(
        "training step of an MLP",
        step_of(functional, optim.Adam(ours), ours, ts.asarray(images), ts.asarray(classes)),
        step_of(
            torch.nn.functional,
            torch.optim.Adam(theirs, fused=True),
            theirs,
            torch.tensor(images),
            torch.tensor(classes),
        ),
        calls=1 if small else 5,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
