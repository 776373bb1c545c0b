"""A classifier of handwritten digits, trained by Tensora on scikit-learn's bundled images.

Run: python examples/tensora_digits.py; the learning curve is drawn to digits.png
"""

from __future__ import annotations

import os
from typing import Any

import matplotlib
import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import accelera.tensora as ts
from accelera.tensora import data, nn, optim

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SMALL = os.environ.get("ACCELERA_EXAMPLE_SMALL") == "1"
EPOCHS = 3 if SMALL else 25


def network() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, images: ts.Tensor, digits: np.ndarray) -> float:
    """Share of images that are recognized."""
    model.eval()
    with ts.no_grad():
        found = ts.argmax(model(images), axis=1).numpy()
    model.train()
    return float(np.mean(found == digits))


def main() -> None:
    """Train, print the score on images that were held out, and draw the curve."""
    ts.random.manual_seed(0)
    dataset: Any = load_digits()
    images, digits = (dataset["data"] / 16).astype(np.float32).reshape(-1, 1, 8, 8), dataset["target"]
    train_x, test_x, train_y, test_y = train_test_split(images, digits, test_size=0.25, random_state=0)
    held_out = ts.tensor(test_x)
    loader = data.DataLoader(
        data.TensorDataset(ts.tensor(train_x), ts.tensor(train_y)), batch_size=64, shuffle=True
    )
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, epochs=EPOCHS, steps_per_epoch=len(loader))
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    losses, scores = [], []
    for _ in track(range(EPOCHS), "training"):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        scores.append(accuracy(model, held_out, np.asarray(test_y)))
    print(f"recognized of {len(test_y)} images that were held out: {scores[-1]:.1%}")

    figure, left = plt.subplots(figsize=(7, 4))
    left.plot(np.arange(len(losses)) / len(loader), losses, color="tab:blue", alpha=0.6)
    left.set(xlabel="epoch", ylabel="loss of a batch")
    right = left.twinx()
    right.plot(np.arange(1, EPOCHS + 1), scores, color="tab:orange")
    right.set(ylabel="recognized, held out", ylim=(min(scores) - 0.02, 1))
    figure.savefig("digits.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
