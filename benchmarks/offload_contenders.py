"""One offloaded forward pass per process, by one contender; prints one line of JSON.

``python -m benchmarks.offload_contenders NAME FOLDER LAYERS WIDTH ROWS PASSES BUDGET DEVICE`` runs
``nn.Sequential`` of ``nn.Linear(WIDTH, WIDTH)`` on ROWS rows, its weights in FOLDER, and tells the seconds
of each pass, the peak of resident memory in the process, private memory at idle and at its peak, and a hash
of the outputs. A budget bounds the growth of private memory; code that is loaded is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelera.memory import process_memory, reset_peak
from accelera.offload.api import load_code

Forward = Callable[[torch.Tensor], torch.Tensor]
_LOOK_EVERY_S = 0.002


@dataclass(frozen=True)
class Task:
    """The model, input and budget that every contender gets."""

    folder: Path
    layers: int
    width: int
    rows: int
    passes: int
    budget: int
    device: str

    @property
    def path(self) -> Path:
        """The weights, as ``write_model`` leaves them."""
        return self.folder / "model.safetensors"

    def module(self) -> nn.Sequential:
        """Return the model with random weights."""
        return nn.Sequential(*(nn.Linear(self.width, self.width) for _ in range(self.layers)))

    def empty(self) -> nn.Sequential:
        """Return the model without weights."""
        with torch.device("meta"):
            return self.module()

    def inputs(self) -> torch.Tensor:
        """Return the same rows in every process."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(self.rows, self.width, generator=generator).to(self.device)


def write_model(task: Task) -> None:
    """Write the weights once, as one ``.safetensors`` file and as accelerate's folder of ``.dat`` files."""
    from accelerate.utils import offload_state_dict
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weights = {}
    for layer in range(task.layers):
        linear = nn.Linear(task.width, task.width)
        weights[f"{layer}.weight"] = linear.weight.detach() * 1.7
        weights[f"{layer}.bias"] = linear.bias.detach()
    save_file(weights, task.path)
    offload_state_dict(str(task.folder / "accelerate"), weights)


def in_memory(task: Task) -> Forward:
    """Every weight resident."""
    from safetensors.torch import load_file

    model = task.empty()
    weights = {name: each.clone() for name, each in load_file(task.path).items()}
    model.load_state_dict(weights, assign=True)
    return model.to(task.device)


def accelerate_disk(task: Task) -> Forward:
    """Hugging Face accelerate's ``disk_offload``."""
    import accelerate

    model = task.empty()
    folder = str(task.folder / "accelerate")
    accelerate.disk_offload(model, folder, execution_device=torch.device(task.device))
    return model


def accelerate_cpu(task: Task) -> Forward:
    """Hugging Face accelerate's ``cpu_offload``: weights in RAM, brought to the device layer by layer."""
    import accelerate

    model = in_memory(Task(**{**vars(task), "device": "cpu"}))
    accelerate.cpu_offload(model, execution_device=torch.device(task.device))
    return model


def mapped(task: Task) -> Forward:
    """The file mapped, pages brought by the system; on the CPU only."""
    from safetensors.torch import load_file

    model = task.empty()
    model.load_state_dict(load_file(task.path), assign=True)
    return model


class DoubleBuffer:
    """The plain way: one thread reads the next layer into one of two buffers while this one computes."""

    def __init__(self, task: Task) -> None:
        from accelera.stores._internal import tensor_entries

        entries = tensor_entries(task.path)
        self._layers = [(entries[f"{i}.weight"], entries[f"{i}.bias"]) for i in range(task.layers)]
        self._file = os.open(task.path, os.O_RDONLY)
        self._width, self._device = task.width, task.device
        nbytes = 4 * task.width * (task.width + 1)
        self._buffers = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(2)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        reader = self._start(0)
        for layer in range(len(self._layers)):
            reader.join()
            if layer + 1 < len(self._layers):
                reader = self._start(layer + 1)
            values = self._buffers[layer % 2].view(torch.float32)
            weight, bias = values[: -self._width].view(self._width, -1), values[-self._width :]
            x = nn.functional.linear(x, weight.to(self._device), bias.to(self._device))
        return x

    def _start(self, layer: int) -> threading.Thread:
        thread = threading.Thread(target=self._read, args=(layer,))
        thread.start()
        return thread

    def _read(self, layer: int) -> None:
        weight, bias = self._layers[layer]
        buffer = memoryview(self._buffers[layer % 2].numpy())  # type: ignore[arg-type]  # no Buffer before 3.12
        for target, entry in ((buffer[: weight.nbytes], weight), (buffer[weight.nbytes :], bias)):
            done = 0
            while done < entry.nbytes:
                done += os.preadv(self._file, [target[done:]], entry.offset + done)


def accelera(task: Task) -> Forward:
    """``offload_checkpoint`` inside the budget."""
    from accelera import offload_checkpoint

    model: nn.Module = offload_checkpoint(task.folder, task.module, budget=task.budget, device=task.device)
    return model


CONTENDERS: dict[str, Callable[[Task], Forward]] = {
    "in memory": in_memory,
    "accelerate disk_offload": accelerate_disk,
    "accelerate cpu_offload": accelerate_cpu,
    "mapped file": mapped,
    "double buffer": DoubleBuffer,
    "accelera": accelera,
}


class PrivatePeak:
    """Watches the private memory of the process from a thread, for the time of a ``with`` block."""

    def __init__(self) -> None:
        self.peak_bytes = process_memory().anon_bytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PrivatePeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, process_memory().anon_bytes)


def main(name: str, task: Task) -> dict[str, Any]:
    """Run ``task.passes`` forward passes and return the figures."""
    torch.set_num_threads(min(os.cpu_count() or 1, 2) if task.device == "cpu" else 2)
    load_code()
    idle = process_memory()
    reset_peak()
    with PrivatePeak() as private:
        began = time.perf_counter()
        forward, x = CONTENDERS[name](task), task.inputs()
        built_s = time.perf_counter() - began
        out, seconds = _passes(forward, x, task.passes)
    after = process_memory()
    return {
        "contender": name,
        "rows": task.rows,
        "built_s": built_s,
        "seconds": seconds,
        "peak_bytes": after.peak_bytes,
        "idle_bytes": idle.rss_bytes,
        "idle_private_bytes": idle.anon_bytes,
        "peak_private_bytes": private.peak_bytes,
        "private_growth_bytes": private.peak_bytes - idle.anon_bytes,
        "device_peak_bytes": _device_peak(task.device),
        "outputs": hashlib.sha256(out.numpy().tobytes()).hexdigest()[:16],
    }


def _passes(forward: Forward, x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[float]]:
    """Return the last outputs and the seconds of each pass."""
    seconds = []
    with torch.no_grad():
        for _ in range(count):
            began = time.perf_counter()
            out = forward(x).cpu()
            seconds.append(time.perf_counter() - began)
    return out, seconds


def _device_peak(device: str) -> int:
    return int(torch.cuda.max_memory_allocated()) if device.startswith("cuda") else 0


if __name__ == "__main__":
    _, name, folder, *numbers, device = sys.argv
    layers, width, rows, passes, budget = map(int, numbers)
    print(json.dumps(main(name, Task(Path(folder), layers, width, rows, passes, budget, device))))
