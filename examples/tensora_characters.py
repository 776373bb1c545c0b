"""A transformer that learns to write like Python's own library, character by character.

Run: python examples/tensora_characters.py; the learning curve is drawn to characters.png
"""

from __future__ import annotations

import argparse
import inspect
import os
import textwrap

import matplotlib
import numpy as np
from rich.progress import track

import accelera.tensora as ts
from accelera.tensora import functional, nn, optim

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SMALL = os.environ.get("ACCELERA_EXAMPLE_SMALL") == "1"
STEPS, WIDTH, BLOCKS = (20, 32, 1) if SMALL else (500, 96, 2)
LENGTH, BATCH, HEADS = 64, 32, 4


class Writer(nn.Module):
    """Transformer whose output at each place is the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, BLOCKS)
        self.head = nn.Linear(WIDTH, characters)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, text: ts.Tensor) -> ts.Tensor:
        """Logits (batch, length, characters) of a text (batch, length)."""
        n = text.shape[1]
        x = self.words(text) + self.places(ts.arange(n))
        return self.head(self.blocks(x, mask=self.mask[:n, :n], is_causal=True))


def batch(text: np.ndarray, random: np.random.Generator) -> tuple[ts.Tensor, ts.Tensor]:
    """Pieces of the text, and the same pieces one character later."""
    starts = random.integers(0, len(text) - LENGTH - 1, BATCH)
    pieces = np.stack([text[i : i + LENGTH + 1] for i in starts])
    return ts.tensor(pieces[:, :-1]), ts.tensor(pieces[:, 1:])


def loss_of(model: Writer, text: ts.Tensor, later: ts.Tensor) -> ts.Tensor:
    """Nats per character."""
    logits = model(text)
    return functional.cross_entropy(logits.reshape((-1, logits.shape[2])), later.reshape((-1,)))


def write(model: Writer, characters: str, n: int, random: np.random.Generator) -> str:
    """Text that the model goes on with."""
    found = [characters.index("\n")]
    with ts.no_grad():
        for _ in range(n):
            logits = model(ts.tensor(np.array([found[-LENGTH:]])))[0, -1]
            weights = functional.softmax(logits / 0.8, 0).numpy().astype(np.float64)
            found.append(int(random.choice(len(characters), p=weights / weights.sum())))
    return "".join(characters[i] for i in found)


def main() -> None:
    """Train, print the score on text that was held out, and draw the curve."""
    ts.random.manual_seed(0)
    random = np.random.default_rng(0)
    source = inspect.getsource(argparse) + inspect.getsource(textwrap)
    characters = "".join(sorted(set(source)))
    text = np.array([characters.index(each) for each in source])
    learned, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
    model = Writer(len(characters))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS + 1)
    losses, scores = [], []
    for step in track(range(STEPS), "training"):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(learned, random))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 20 == 19:
            with ts.no_grad():
                scores.append(np.mean([loss_of(model, *batch(held_out, random)).item() for _ in range(4)]))
    counts = np.bincount(learned, minlength=len(characters)) + 1
    by_frequency = -np.mean(np.log(counts[held_out] / counts.sum()))
    print(f"held out: {scores[-1]:.2f} nats a character; by frequency alone {by_frequency:.2f}")
    print(write(model, characters, 20 if SMALL else 300, random))

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(losses, alpha=0.6, label="learned")
    axes.plot(np.arange(1, len(scores) + 1) * 20, scores, label="held out")
    axes.axhline(by_frequency, color="gray", linestyle=":", label="by frequency alone")
    axes.set(xlabel="step", ylabel="nats a character")
    axes.legend()
    figure.savefig("characters.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
