"""Tensora beside PyTorch, torch.compile, NumPy, JAX, MLX, tinygrad and tensorax, where they are installed.

python -m benchmarks tensora-peers --save tensora_peers
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.machine import save
from benchmarks.tensora_contenders import present

REST = 0.15
"""Seconds before each library's turn: threads of the one before spin for more work."""
SLOW = 0.5
"""Seconds of a call that is measured once."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the best time of each case in each library."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora-peers")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    contenders, absent = present()
    if options.small:
        contenders = [each for each in contenders if each.name in ("tensora", "torch", "numpy")]
    figures: dict[str, Any] = {"absent": absent}
    for name, reason in absent.items():
        print(f"{name}: not here ({reason})")
    for name, make in cases(options.small).items():
        calls, reasons = {}, {}
        for contender in contenders:
            try:
                calls[contender.name] = warmed(make(contender))
            except Exception as error:  # a library that lacks a part of the case, or cannot compile it
                reasons[contender.name] = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        rounds, rest = (1, 0.0) if options.small else (6, REST)
        best = best_seconds(calls, rounds, rest)
        figures[name] = {"seconds": best, "not measured": reasons} | {
            "of_best_other": best["tensora"] / min(s for other, s in best.items() if other != "tensora")
        }
        times = "  ".join(f"{library} {seconds * 1e6:.1f} us" for library, seconds in best.items())
        print(f"{name:24} {times}", flush=True)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def warmed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, after what it compiles at first is compiled."""
    for _ in range(3):
        call()
    return call


def best_seconds(calls: dict[str, Callable[[], Any]], rounds: int, rest: float) -> dict[str, float]:
    """Seconds of one call of each, best of interleaved rounds of at least 20 ms."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for library, call in calls.items():
            if SLOW < best[library] < float("inf"):
                continue
            time.sleep(rest)
            call()
            n, began = 0, time.perf_counter()
            while (took := time.perf_counter() - began) < 0.02 or n == 0:
                call()
                n += 1
            best[library] = min(best[library], (time.perf_counter() - began) / n if n else took)
    return best


Make = Callable[[Any], Callable[[], Any]]


def cases(small: bool) -> dict[str, Make]:
    """Pieces of work, by name: how a contender's call for it is made."""
    n, edge, rows = (4096, 64, 16) if small else (1 << 22, 1024, 4096)
    random = np.random.default_rng(0)
    ten, many = random.random(10, np.float32), random.standard_normal(n, np.float32)
    matrix = random.random((edge, edge), np.float32)
    table = random.standard_normal((rows, 1024), np.float32)

    def gelu(lib: Any) -> Callable[[Any], Any]:
        return lambda x: 0.5 * x * (1 + lib.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    return {
        "a + b, 10 floats": lambda lib: lib.call(lambda x: x + x, lib.array(ten)),
        "gelu": lambda lib: lib.call(gelu(lib), lib.array(many)),
        "gelu + backward": lambda lib: lib.gradient(gelu(lib), lib.array(many, leaf=True)),
        "softmax": lambda lib: lib.call(lambda x: lib.functions.softmax(x, -1), lib.array(table)),
        "matmul": lambda lib: lib.call(lambda x: x @ x, lib.array(matrix)),
        "step of an MLP": lambda lib: mlp_step(lib, small),
        "step of a transformer": lambda lib: transformer_step(lib, small),
    }


def mlp_step(lib: Any, small: bool) -> Any:
    """An MLP 784-512-512-10, a batch of 128, AdamW."""
    random = np.random.default_rng(0)
    widths = (784, 16, 16, 10) if small else (784, 512, 512, 10)
    parameters = []
    for i, o in itertools.pairwise(widths):
        parameters.append(
            lib.array(random.standard_normal((o, i), np.float32) / np.float32(i) ** 0.5, leaf=True)
        )
        parameters.append(lib.array(np.zeros(o, np.float32), leaf=True))

    def loss(f: Any, p: list[Any], x: Any, y: Any) -> Any:
        for i in (0, 2):
            x = f.relu(f.linear(x, p[i], p[i + 1]))
        return f.cross_entropy(f.linear(x, p[4], p[5]), y)

    images = lib.array(random.standard_normal((128, 784), np.float32))
    return lib.step(loss, parameters, images, lib.array(random.integers(0, 10, 128)))


def transformer_step(lib: Any, small: bool) -> Any:
    """Two blocks of a GPT, width 256, 8 heads, 8 sequences of 128 of 1000 tokens, AdamW."""
    random = np.random.default_rng(0)
    width, heads, length, batch, vocabulary = (16, 2, 8, 2, 50) if small else (256, 8, 128, 8, 1000)

    def leaf(*shape: int) -> Any:
        return lib.array(random.standard_normal(shape, np.float32) * np.float32(0.02), leaf=True)

    def block() -> list[Any]:
        norms = [leaf(width) for _ in range(4)]
        return [
            *norms,
            leaf(3 * width, width),
            leaf(width, width),
            leaf(4 * width, width),
            leaf(width, 4 * width),
        ]

    def attend(f: Any, x: Any, into: Any, out: Any) -> Any:
        split = f.linear(x, into).reshape((batch, length, 3, heads, width // heads))
        q, k, v = (split[:, :, i].swapaxes(1, 2) for i in range(3))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return f.linear(mixed.swapaxes(1, 2).reshape((batch, length, width)), out)

    def loss(f: Any, p: list[Any], x: Any, y: Any) -> Any:
        h = f.embedding(x, p[0])
        for i in range(1, len(p) - 1, 8):
            a, b, c, d, into, out, up, down = p[i : i + 8]
            h = h + attend(f, f.layer_norm(h, (width,), a, b), into, out)
            h = h + f.linear(f.gelu(f.linear(f.layer_norm(h, (width,), c, d), up), approximate="tanh"), down)
        return f.cross_entropy(f.linear(h, p[-1]).reshape((batch * length, vocabulary)), y)

    parameters = [leaf(vocabulary, width), *block(), *block(), leaf(vocabulary, width)]
    words = random.integers(0, vocabulary, (batch, length))
    return lib.step(loss, parameters, lib.array(words), lib.array(words.reshape(-1)))


if __name__ == "__main__":
    main(sys.argv[1:])
