"""What a real run takes, by the allocator's own account: nothing of this project takes part."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree


def training_peak_bytes(module: nn.Module, inputs: Any, iterations: int, *, keep_outputs: bool = True) -> int:
    """Most bytes that weights, inputs and everything torch allocates take while AdamW trains.

    ``keep_outputs``: what the model returns is kept until the step is done, and not only its loss.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module.train()

    def train() -> None:
        for _ in range(iterations):
            optimizer.zero_grad()
            outputs = _outputs(module, inputs)
            loss = outputs.loss if hasattr(outputs, "loss") else outputs.mean()
            if not keep_outputs:
                del outputs
            loss.backward()
            optimizer.step()

    return _peak_bytes(module, inputs, train)


def inference_peak_bytes(module: nn.Module, inputs: Any) -> int:
    """Most bytes that weights, inputs and everything torch allocates take in one pass without gradients."""
    module.eval()

    def infer() -> None:
        with torch.no_grad():
            _outputs(module, inputs)

    return _peak_bytes(module, inputs, infer)


def _peak_bytes(module: nn.Module, inputs: Any, run: Callable[[], None]) -> int:
    before = _bytes_of([*module.parameters(), *module.buffers(), *pytree.tree_leaves(inputs)])
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            run()
    finally:
        gc.enable()
    return before + _highest(_allocations(profiled))


def _outputs(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def _bytes_of(values: Iterable[Any]) -> int:
    storages = {each.untyped_storage() for each in values if isinstance(each, torch.Tensor)}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _allocations(profiled: profile) -> Iterator[int]:
    """Bytes of every allocation, and of every release as negative ones, in order."""
    events = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    memory = [event for event in events if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda each: each.start_ns()):
        yield event.nbytes()


def _highest(changes: Iterable[int]) -> int:
    alive = highest = 0
    for change in changes:
        alive += change
        highest = max(highest, alive)
    return highest
