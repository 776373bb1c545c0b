"""Iterations of a model under recording: training, inference, decoding, and rounds that are only timed."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelera.capture.recording import OperatorRecording
from accelera.errors import UnknownNameError

_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}


def optimizer_for(module: torch.nn.Module, wanted: Any) -> Any:
    """Return the optimizer that ``wanted`` names, makes or is; None for None.

    Raises
    ------
    UnknownNameError
        A name that is none of ``adamw``, ``adam``, ``sgd``.
    """
    if wanted is None or isinstance(wanted, torch.optim.Optimizer):
        return wanted
    trainable = [each for each in module.parameters() if each.requires_grad]
    if not isinstance(wanted, str):
        return wanted(trainable)
    if wanted.lower() not in _OPTIMIZERS:
        raise UnknownNameError.among("optimizer", wanted, _OPTIMIZERS)
    return getattr(torch.optim, _OPTIMIZERS[wanted.lower()])(trainable, lr=1e-3)


def call(module: torch.nn.Module, inputs: Any) -> Any:
    """Call ``module`` with a tensor, a tuple of arguments or a dictionary of named ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def train(
    recording: OperatorRecording | Unrecorded,
    module: torch.nn.Module,
    inputs: Any,
    *,
    steps: int,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: Any,
    keep_outputs: bool = True,
) -> None:
    """Run ``steps`` iterations: forward, loss, backward and the optimizer's step.

    ``keep_outputs``: what the model returns lives until the step is done, and not until the loss is there.
    """
    for _ in range(steps):
        recording.begin_iteration()
        module.zero_grad(set_to_none=True)
        outputs = call(module, inputs)
        value = (loss or default_loss)(outputs)
        if not keep_outputs:
            outputs = None
        value.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        recording.scope.add_gradients(module.named_parameters())
        del value
        with recording.outputs_given_back():
            outputs = None


def infer(
    recording: OperatorRecording | Unrecorded,
    module: torch.nn.Module,
    inputs: Any,
    *,
    steps: int,
    keep_outputs: bool = False,
) -> None:
    """Run the model ``steps`` times without gradients.

    ``keep_outputs``: what the model returns lives until the next pass has returned.
    """
    before = None
    with torch.no_grad():
        for _ in range(steps):
            recording.begin_iteration()
            outputs = call(module, inputs)
            with recording.outputs_given_back():
                before = outputs if keep_outputs else None
                del outputs
    with recording.outputs_given_back():
        del before


def decode(recording: OperatorRecording, module: torch.nn.Module, inputs: Any, *, tokens: int) -> None:
    """Produce ``tokens`` tokens greedily with a growing cache, as models of ``transformers`` do."""
    arguments = dict(inputs) if isinstance(inputs, dict) else {"input_ids": inputs}
    # transformers 5.24 renamed both the argument and the field of the output
    field = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    with torch.no_grad():
        for _ in range(tokens):
            recording.begin_iteration()
            outputs = module(**arguments, use_cache=True)
            cache = getattr(outputs, field)
            for name, tensor in _cached(cache):
                recording.storages.describe(tensor, name, "kv_cache")
            token = outputs.logits[:, -1:].argmax(-1)
            arguments = {"input_ids": token, field: cache}
            del outputs, token
            gc.collect()


def default_loss(outputs: Any) -> torch.Tensor:
    """Return the loss a model gives, else the mean of its logits or of its first output."""
    if isinstance(outputs, torch.Tensor):
        return outputs.mean()
    for name in ("loss", "logits"):
        value = getattr(outputs, name, None)
        if value is None and isinstance(outputs, dict):
            value = outputs.get(name)
        if isinstance(value, torch.Tensor):
            return value if name == "loss" else value.mean()
    first = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
    return default_loss(first)


def _cached(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for index, layer in enumerate(getattr(cache, "layers", None) or cache):
        pair = (layer.keys, layer.values) if hasattr(layer, "keys") else layer[:2]
        for what, tensor in zip(("key", "value"), pair, strict=False):
            if isinstance(tensor, torch.Tensor):
                yield f"layers.{index}.{what}", tensor


WARMING = 2
"""Rounds before those that count: allocators, libraries and caches are ready then."""


def step_clock() -> Callable[[], float]:
    """Return the clock of steps: CPU time where torch has one thread, so that other programs do not count."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def quickest_s(call: Callable[[], Any], rounds: int) -> float:
    """Return the seconds of the quickest of ``rounds`` calls, after some that warm up."""
    clock, found = step_clock(), []
    for _ in range(WARMING + rounds):
        began = clock()
        call()
        found.append(clock() - began)
    return min(found[WARMING:])


class Unrecorded:
    """Stand-in for a recording that records nothing, for rounds that are only timed."""

    def __init__(self) -> None:
        self.scope = self

    def begin_iteration(self) -> None:
        """Do nothing."""

    def add_gradients(self, named: Any) -> None:
        """Do nothing."""

    @contextmanager
    def outputs_given_back(self) -> Iterator[None]:
        """Do nothing."""
        yield
