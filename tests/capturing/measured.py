"""What a real run takes, by the allocator's own account: nothing of this project takes part."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree


def training_peak_bytes(module: nn.Module, inputs: Any, iterations: int) -> int:
    """Most bytes that weights, inputs and everything torch allocates take while AdamW trains."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    before = _bytes_of([*module.parameters(), *module.buffers(), *pytree.tree_leaves(inputs)])
    module.train()
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            for _ in range(iterations):
                _iteration(module, inputs, optimizer)
    finally:
        gc.enable()
    return before + _highest(_allocations(profiled))


def _iteration(module: nn.Module, inputs: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    if isinstance(inputs, dict):
        outputs = module(**inputs)
    else:
        outputs = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    loss = outputs.loss if hasattr(outputs, "loss") else outputs.mean()
    loss.backward()
    optimizer.step()


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
