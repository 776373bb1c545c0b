"""Generated networks that train inside budgets while the process may map no more memory; run as a program.

``python -m tests.tensora.budget_networks FIRST COUNT`` trains networks FIRST to FIRST + COUNT - 1 in three
budgets each, and prints a line of JSON with the counts.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

import accelera.tensora as ts
from accelera.errors import BudgetExceededError
from accelera.tensora import functional, nn, optim

SHARES = (0.8, 0.6, 0.4)
"""Of what the free step holds beyond the network."""
RESERVE = 2 << 20
"""Addresses for what is no tensor: plans, logs, buffers of files; half of them in the heap of malloc."""
STEPS = 3
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)
OPTIMIZERS: tuple[Callable[[Any], Any], ...] = (
    lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9),
    lambda parameters: optim.AdamW(parameters, lr=1e-3),
    lambda parameters: optim.RMSprop(parameters, lr=1e-3),
)
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = LIBC.sbrk.restype = ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]
BLOCK = 65_000
"""Bytes of a block that malloc still takes from its heap, with the test's threshold of 64 KiB."""


class Words(nn.Module):
    """Embedded words through transformer layers."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(50, width)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True)
                for _ in range(layers)
            )
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.table(x))[:, 0])


class Series(nn.Module):
    """Series through recurrent cells."""

    def __init__(self, kind: Callable[..., Any], width: int) -> None:
        super().__init__()
        self.cells = kind(8, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][:, -1])


def rows_network(draw: np.random.Generator) -> tuple[nn.Module, Any]:
    """Rows through linear layers, norms and dropout."""
    width, depth, rows = (int(draw.choice(some)) for some in ((64, 128, 256), (4, 6, 8), (1000, 2000)))
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), ACTIVATIONS[draw.integers(4)]()]
        layers += [nn.LayerNorm(width)] if draw.random() < 0.5 else []
        layers += [nn.Dropout(0.2)] if draw.random() < 0.4 else []
    return nn.Sequential(*layers, nn.Linear(width, 5)), draw.normal(size=(rows, width)).astype("f")


def images_network(draw: np.random.Generator) -> tuple[nn.Module, Any]:
    """Images through convolutions, norms and pools."""
    channels, depth, images = (int(draw.choice(some)) for some in ((8, 16), (2, 3, 4), (16, 32)))
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for i in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)]
        layers += [ACTIVATIONS[draw.integers(4)]()]
        layers += [nn.MaxPool2d(2)] if i == depth // 2 else []
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)]
    return nn.Sequential(*layers, *head), draw.normal(size=(images, 3, 32, 32)).astype("f")


def words_network(draw: np.random.Generator) -> tuple[nn.Module, Any]:
    """Words through attention."""
    width, layers, texts = (int(draw.choice(some)) for some in ((32, 64), (2, 3), (16, 32)))
    network = Words(width, layers, float(draw.choice([0.0, 0.1])))
    return network, draw.integers(0, 50, size=(texts, 48))


def series_network(draw: np.random.Generator) -> tuple[nn.Module, Any]:
    """Short series through recurrent cells."""
    width, series = (int(draw.choice(some)) for some in ((64, 128), (200, 400)))
    kind = (nn.LSTM, nn.GRU, nn.RNN)[draw.integers(3)]
    return Series(kind, width), draw.normal(size=(series, 12, 8)).astype("f")


FAMILIES = (rows_network, images_network, words_network, series_network)


class Training:
    """A generated network, its optimizer and its data."""

    def __init__(self, number: int) -> None:
        draw = np.random.default_rng(number)
        ts.random.manual_seed(number)
        self.network, data = FAMILIES[number % len(FAMILIES)](draw)
        self.optimizer = OPTIMIZERS[draw.integers(len(OPTIMIZERS))](self.network.parameters())
        self.data = ts.asarray(data)
        self.classes = ts.asarray(draw.integers(0, 5, size=len(data)))

    def step(self) -> float:
        """Take a step; the loss."""
        return float(self.step_without_reads())

    def step_without_reads(self) -> Any:
        """Take a step that reads no contents; the loss as a tensor."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.network(self.data), self.classes)
        loss.backward()
        self.optimizer.step()
        return loss


@contextmanager
def room_in_heaps() -> Any:
    """Block in which malloc's heap has half of the reserve free and no more, and Python's at least an arena.

    Those of Python have 1 MiB each and hold objects of at most 512 bytes: no tensor.
    """
    objects = [bytes(400) for _ in range(3 << 20 >> 9)]
    kept = objects[::200]  # some of each arena, so that none is given back to the system
    objects.clear()
    top = LIBC.sbrk(0)
    blocks = []  # the first fill what was free in the heap, the others what it grows by
    while LIBC.sbrk(0) - top < RESERVE // 2 + 2 * BLOCK:
        blocks.append(LIBC.malloc(BLOCK))
    *new, last = [block for block in blocks if block >= top]
    for block in new:  # nor is any of this given back, as the last lies above
        LIBC.free(block)
    try:
        yield
    finally:
        for block in blocks:
            if block < top or block == last:
                LIBC.free(block)
        kept.clear()


@contextmanager
def addresses(room: int) -> Any:
    """Block in which the process can map that many bytes more, and half of the reserve besides."""
    gc.collect()
    ts.empty_cache()
    LIBC.malloc_trim(0)
    with room_in_heaps():
        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (mapped + room + RESERVE // 2, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def free_run(number: int) -> tuple[list[float], int]:
    """Losses without a budget, and bytes that the steps held beyond what was there before them."""
    training = Training(number)
    gc.collect()
    before = ts.memory_stats().live_bytes
    ts.reset_peak()
    losses = [training.step() for _ in range(STEPS)]
    return losses, ts.memory_stats().peak_bytes - before


def budgeted(number: int, share: float, expected: list[float], peak: int) -> str:
    """Outcome of a training within a share of the free peak: kept, refused, or what went wrong."""
    training = Training(number)
    gc.collect()
    before = ts.memory_stats().live_bytes
    room = int(share * peak)
    losses = []
    try:
        with addresses(room):
            budget = ts.budget(before + room)
            for _ in range(STEPS):
                ts.reset_peak()
                with budget:
                    losses.append(training.step())
                if ts.memory_stats().peak_bytes > budget.limit_bytes:
                    return "over the budget"
    except BudgetExceededError as error:
        return "refused" if error.needed_bytes > error.budget_bytes else "refused without need"
    except MemoryError as error:
        return f"out of addresses: {error}"
    return "kept" if losses == expected else "other losses"


def control(number: int, share: float, peak: int) -> bool:
    """Whether the free steps run out of addresses where the budgeted ones do not."""
    training = Training(number)
    try:
        with addresses(int(share * peak)):
            for _ in range(STEPS):
                training.step()
    except MemoryError:
        return True
    return False


def main(first: int, count: int) -> dict[str, Any]:
    """Counts of outcomes over some networks."""
    ts.set_num_threads(2)
    for _ in range(3):  # so long that both threads take part: they and their memory are there
        ts.ones((2048, 2048)) @ ts.ones((2048, 2048))
    gc.collect()
    gc.freeze()  # each collection looks at what a training made, not at the library
    found: dict[str, int] = {}
    controls = [0, 0]
    for number in range(first, first + count):
        expected, peak = free_run(number)
        for share in SHARES:
            outcome = budgeted(number, share, expected, peak)
            found[outcome] = found.get(outcome, 0) + 1
            if outcome not in ("kept", "refused"):
                sys.stderr.write(f"network {number}, share {share}: {outcome}\n")
        if (1 - SHARES[1]) * peak > 1.5 * RESERVE:
            controls[control(number, SHARES[1], peak)] += 1
    return {"outcomes": found, "controls_passed": controls[0], "controls_out_of_memory": controls[1]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
