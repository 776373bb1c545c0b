"""Memory of a real training step over time: the same GPT with room for everything, and in its budget.

Each runs in a process of its own; the arena of its budget is sampled while it trains.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from accelera._plotting import LIGHT
from tools.pictures.drawing import ORANGE, figure_svg, plain_figure, words_in

LAYERS, WIDTH, VOCABULARY, BATCH, LENGTH = 6, 384, 4000, 8, 256
BUDGET_MIB, FREE_MIB = 160, 2048
WARM, SAMPLE_S = 3, 0.002
ROOT = Path(__file__).parents[2]


def training_occupancy() -> str:
    """Measure both and return the picture."""
    free, tight = measured(FREE_MIB), measured(BUDGET_MIB)
    figure, axes = plain_figure(800, 360)
    figure.subplots_adjust(left=0.085, right=0.975, top=0.8, bottom=0.1)
    longest = tight["times"][-1]
    scale = longest / free["times"][-1]
    axes.step(
        [each * scale for each in free["times"]], free["all"], where="post", color=LIGHT.muted, linewidth=1.2
    )
    axes.fill_between(tight["times"], tight["all"], 0, step="post", color=LIGHT.best, linewidth=0)
    axes.fill_between(tight["times"], tight["tensors"], 0, step="post", color=ORANGE, linewidth=0)
    axes.axhline(BUDGET_MIB, color=LIGHT.least, linewidth=1.6)
    peak = max(free["all"])
    _note(axes, longest * 0.01, peak, f"with room for everything: {peak:.0f} MiB", LIGHT.muted)
    _note(axes, longest * 0.01, BUDGET_MIB, f"budget {BUDGET_MIB} MiB", LIGHT.least)
    _note(
        axes, longest * 0.99, BUDGET_MIB, f"at most {max(tight['all']):.0f} MiB in use", LIGHT.best, "right"
    )
    for begin, end, name in tight["phases"]:
        axes.text(
            (begin + end) / 2,
            -0.03,
            name,
            transform=axes.get_xaxis_transform(),
            size=9,
            ha="center",
            va="top",
            color=LIGHT.muted,
        )
        axes.axvline(end, color=LIGHT.grid, linewidth=1)
    axes.set_xlim(0, longest)
    axes.set_ylim(0, peak * 1.14)
    axes.set_ylabel("MiB in use")
    axes.set_xticks([])
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.8)
    figure.text(
        0.02, 0.94, "One training step of a GPT: the memory it uses, over time", size=12, weight="bold"
    )
    said = f"{tight['parameters'] / 1e6:.0f} M parameters, AdamW, {BATCH} × {LENGTH} tokens;"
    figure.text(
        0.02, 0.88, f"{said} losses {free['loss']:.6f} and {tight['loss']:.6f}", size=9, color=LIGHT.muted
    )
    for below, colour, name in (
        (0.0, LIGHT.best, "weights, gradients, states"),
        (0.045, ORANGE, "activations"),
    ):
        figure.text(0.77, 0.94 - below, "■ " + name, size=9, color=words_in(colour))
    return figure_svg(
        figure, "Memory of a training step over time, with room for everything and in its budget"
    )


def _note(axes: Any, x: float, y: float, words: str, colour: str, side: str = "left") -> None:
    axes.annotate(
        words,
        (x, y),
        xytext=(0, 3),
        textcoords="offset points",
        ha=side,
        va="bottom",
        size=9,
        weight="bold",
        color=words_in(colour),
    )


def measured(budget_mib: int) -> dict[str, Any]:
    """Return what a process of its own measured."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.pictures.training_occupancy", str(budget_mib)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _train(budget_mib: int) -> dict[str, Any]:
    import torch

    import accelera

    torch.manual_seed(0)
    model = _gpt(torch)
    accelera.offload(model, f"{budget_mib}MiB")
    arena = _arena(accelera.offloaded(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
    for _ in range(WARM):
        _step(torch, model, optimizer, tokens, [])
    times: list[float] = []
    held: list[float] = []
    tensors: list[float] = []
    over = threading.Event()
    began = time.perf_counter()

    def sample() -> None:
        while not over.is_set():
            ordinary = arena.ordinary_bytes
            times.append(time.perf_counter() - began)
            held.append((ordinary + arena.committed_bytes) / 2**20)
            tensors.append(ordinary / 2**20)
            time.sleep(SAMPLE_S)

    sampler = threading.Thread(target=sample)
    sampler.start()
    marks: list[float] = []
    loss = _step(torch, model, optimizer, tokens, marks)
    over.set()
    sampler.join()
    ends = [mark - began for mark in marks]
    names = ("forward", "backward", "AdamW")
    phases = [(begin, end, name) for begin, end, name in zip([0.0, *ends], ends, names, strict=False)]
    count = sum(each.numel() for each in model.parameters())
    found = {"times": times, "all": held, "tensors": tensors}
    return {**_thinned(found), "phases": phases, "loss": loss, "parameters": count}


def _thinned(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return about 300 samples: of neighbours the one in which most was in use."""
    step = max(1, len(samples["all"]) // 300)
    starts = range(0, len(samples["all"]), step)
    kept = [
        max(range(at, min(at + step, len(samples["all"]))), key=samples["all"].__getitem__) for at in starts
    ]
    return {name: [values[place] for place in kept] for name, values in samples.items()}


def _arena(handle: Any) -> Any:
    """Return the memory from which blocks and tensors of a model come, wherever its pool keeps it."""
    from accelera._native import Arena

    return next(value for value in vars(handle.caches[0]).values() if isinstance(value, Arena))


def _gpt(torch: Any) -> Any:
    nn = torch.nn

    class Gpt(nn.Module):  # type: ignore[name-defined, misc]  # torch is loaded on first use
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    WIDTH, 6, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(LAYERS)
            )
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            for block in self.blocks:
                hidden = block(hidden, src_mask=mask, is_causal=True)
            return self.head(hidden)

    return Gpt()


def _step(torch: Any, model: Any, optimizer: Any, tokens: Any, marks: list[float]) -> float:
    optimizer.zero_grad()
    scores = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    del scores
    marks.append(time.perf_counter())
    loss.backward()
    marks.append(time.perf_counter())
    optimizer.step()
    marks.append(time.perf_counter())
    return float(loss.detach())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_train(int(sys.argv[1]))) + "\n")
