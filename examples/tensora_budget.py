"""The same network trained freely and with a quarter of the memory for its steps: the same losses to the bit.

Run: python examples/tensora_budget.py; both curves and the memory of each step are drawn to budget.png
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

import accelera.tensora as ts
from accelera.tensora import nn, optim
from accelera.units import format_bytes

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SMALL = os.environ.get("ACCELERA_EXAMPLE_SMALL") == "1"
STEPS, DEPTH, WIDTH = (6, 8, 64) if SMALL else (40, 16, 192)


class Residual(nn.Module):
    """Two linear layers beside the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.act = nn.GELU()

    def forward(self, x: ts.Tensor) -> ts.Tensor:
        """Map (batch, WIDTH) to the same shape."""
        return x + self.down(self.act(self.up(self.norm(x))))


def training() -> tuple[Callable[[], float], Any, Callable[[], float]]:
    """A step of a new network, its optimizer, and its score on images that were held out."""
    ts.random.manual_seed(0)
    dataset: Any = load_digits()
    images, digits = (dataset["data"] / 16).astype(np.float32), dataset["target"]
    x, y = ts.tensor(images[:1500]), ts.tensor(digits[:1500])
    model = nn.Sequential(nn.Linear(64, WIDTH), *[Residual() for _ in range(DEPTH)], nn.Linear(WIDTH, 10))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def step() -> float:
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    def score() -> float:
        with ts.no_grad():
            found = ts.argmax(model(ts.tensor(images[1500:])), axis=1).numpy()
        return float(np.mean(found == digits[1500:]))

    return step, optimizer, score


def run(step: Callable[[], float], words: str) -> tuple[list[float], list[int], float]:
    """Losses, the most bytes of each step, and seconds."""
    losses, peaks, began = [], [], time.perf_counter()
    for _ in track(range(STEPS), words):
        ts.reset_peak()
        losses.append(step())
        peaks.append(ts.memory_stats().peak_bytes)
    return losses, peaks, time.perf_counter() - began


def main() -> None:
    """Train twice, compare, and draw."""
    step, optimizer, score = training()
    free, free_peaks, free_seconds = run(step, "free")
    held = ts.memory_stats().live_bytes
    print(f"held out: {score():.1%}")
    del step, optimizer, score

    step, optimizer, score = training()
    fixed = held  # parameters, data, and what the optimizer keeps
    limit = fixed + (max(free_peaks) - fixed) // 4
    budget = ts.budget(limit, optimizer=optimizer)
    inside, inside_peaks, seconds = run(budget(step), "inside a budget")
    print(f"held out: {score():.1%}")
    sizes = [format_bytes(each) for each in (max(free_peaks), limit, max(inside_peaks))]
    print(f"free: {sizes[0]}; budget {sizes[1]}: {sizes[2]}")
    print(f"time: {seconds / free_seconds:.2f} of the free run's, its first step recorded")
    print("the same losses to the bit:", free == inside)
    print(ts.explain(budget))

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot(free, label="free", linewidth=4, alpha=0.4)
    left.plot(inside, label="inside the budget")
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    for peaks in (free_peaks, inside_peaks):
        right.plot(np.array(peaks) / 1e6)
    right.axhline(limit / 1e6, color="red", linestyle=":", label="budget")
    right.set(xlabel="step", ylabel="most bytes of tensors, MB", ylim=(0, None))
    right.legend()
    figure.savefig("budget.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
