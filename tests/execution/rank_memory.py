"""What a rank takes above its idle process while an offloaded model trains, is kept, and is brought back.

``python -m tests.execution.rank_memory FOLDER MIB`` prints the peak in bytes, and the bytes of a checkpoint.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import accelera
from accelera.memory import process_memory
from tests.execution.one_rank import Train, process_group

WIDTH, LAYERS = 1024, 10
"""40 MiB of weights, and with gradients and what AdamW keeps 160 MiB."""


class Peak:
    """The most anonymous memory that the process had since it was made, above what it had then."""

    def __init__(self) -> None:
        gc.collect()
        self._before = process_memory().anon_bytes
        self.bytes = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.bytes = max(self.bytes, process_memory().anon_bytes - self._before)
            time.sleep(0.001)

    def stop(self) -> int:
        self._over.set()
        self._watcher.join()
        return self.bytes


def trained(train: Train, folder: Path, width: int, layers: int, budget: str, steps: int) -> int:
    """Train in a rank that begins at the last checkpoint, one at every step; return the peak."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    accelera.offload(model, budget)
    peak = Peak()
    optimizer = torch.optim.AdamW(model.parameters())
    rank = train.rank(folder)
    for _ in rank.steps(steps, every=1, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        rank.average_gradients(model)
        optimizer.step()
    accelera.offloaded(model).close()
    return peak.stop()


def main(folder: Path, budget: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    with process_group():
        small = Train()
        for steps in (1, 2):
            trained(small, folder / "small", 200, 2, "64MiB", steps)
        train = Train()
        peaks = [trained(train, folder / "run", WIDTH, LAYERS, budget, steps) for steps in (2, 3)]
    kept = sum(file.stat().st_size for file in (folder / "run" / "step-000000003").iterdir())
    return {"peaks": peaks, "kept_bytes": kept}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
