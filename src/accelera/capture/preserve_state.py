"""State that a recording leaves as it was: weights, gradients, buffers, optimizer, modes, random state."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelera.capture.dispatch_mode import tensors_in

Tensor = torch.Tensor


@contextmanager
def random_kept() -> Iterator[None]:
    """Restore torch's random state afterwards, of the processor and of CUDA where it is in use."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count() if in_use else 0))):
        yield


@contextmanager
def everything_kept(module: torch.nn.Module, inputs: Any, optimizer: Any, *, weights: bool) -> Iterator[None]:
    """Restore ``module``, gradients of ``inputs`` and ``optimizer`` (or None) afterwards.

    ``weights`` says whether weights may change; their contents are copied meanwhile.
    """
    grads = [(each, each.grad) for each in tensors_in(inputs) if each.is_leaf]
    contents = _copies([grad for _, grad in grads])
    with _module_kept(module, weights=weights), _optimizer_kept(optimizer):
        try:
            yield
        finally:
            _restore(contents)
            for tensor, grad in grads:
                tensor.grad = grad


@contextmanager
def mode_kept(module: torch.nn.Module, *, train: bool) -> Iterator[None]:
    """Set training or evaluation mode, and restore each part's own."""
    before = [(part, part.training) for part in module.modules()]
    module.train(train)
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def collection_by_hand() -> Iterator[None]:
    """Hold Python's cycle collector, so that storages die at the same moments in every run.

    What exists already is set aside, which makes ``gc.collect()`` quick until then.
    """
    enabled, sets_aside = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    if sets_aside:
        gc.freeze()
    try:
        yield
    finally:
        if sets_aside:
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextmanager
def _module_kept(module: torch.nn.Module, *, weights: bool) -> Iterator[None]:
    buffers = [(part, dict(part._buffers)) for part in module.modules()]
    parameters = list(module.parameters())
    contents = _copies([each for _, named in buffers for each in named.values()])
    contents += _copies(parameters) if weights else []
    grads = [(each, each.grad) for each in parameters]
    contents += _copies([grad for _, grad in grads])
    try:
        yield
    finally:
        _restore(contents)
        for part, named in buffers:
            part._buffers.clear()
            part._buffers.update(named)
        for parameter, grad in grads:
            parameter.grad = grad


@contextmanager
def _optimizer_kept(optimizer: Any) -> Iterator[None]:
    if optimizer is None:
        yield
        return
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    contents = _copies([value for state in states.values() for value in state.values()])
    try:
        yield
    finally:
        _restore(contents)
        optimizer.state.clear()
        optimizer.state.update(states)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)


def _copies(values: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(each, each.detach().clone()) for each in values if isinstance(each, Tensor)]


def _restore(contents: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, before in contents:
            tensor.copy_(before)
