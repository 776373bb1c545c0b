"""Request of one ``capture``: build the model, run it under a recording, put everything back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from accelera.capture import iterations
from accelera.capture.dispatch_mode import tensors_in
from accelera.capture.fake import (
    CopiesOfFakes,
    as_fake,
    default_dtype,
    faked,
    initializers_of_shapes,
    is_on_meta,
    values_explained,
)
from accelera.capture.iterations import Unrecorded, quickest_s
from accelera.capture.recording import OperatorRecording
from accelera.capture.shape_rules import ShapeMode, cpu_lstm, scalars_in_lists
from accelera.errors import ArgumentError
from accelera.trace import Occupancy, Trace


@dataclass(frozen=True)
class CaptureRequest:
    """Arguments of one ``capture`` call, and its execution; see ``capture`` for the fields."""

    model: Any
    inputs: Any
    train: bool
    steps: int
    loss: Callable[[Any], torch.Tensor] | None
    optimizer: Any
    fake: bool | None
    dtype: torch.dtype | str | None
    names: bool
    generate_tokens: int
    keep_outputs: bool | None = None
    workspaces: bool = False
    timed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError(f"[capture] steps={self.steps}; at least 1 is needed")
        if self.generate_tokens and self.train:
            raise ArgumentError(f"[capture] generate_tokens={self.generate_tokens} needs train=False")
        if self.timed < 0 or (self.timed and (self.follows_shapes or self.generate_tokens)):
            raise ArgumentError(
                f"[capture] timed={self.timed} rounds need a real model, no fake one, and no generate_tokens"
            )
        if self.dtype is not None and not self._is_factory:
            raise ArgumentError(
                f"[capture] dtype={self.dtype} is for a model that is built; this one exists, convert it "
                f"with model.to(dtype), or give a function that builds it"
            )
        if self.follows_shapes and isinstance(self.optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                "[capture] an optimizer of real weights cannot step fake ones; give its name or a function "
                "such as lambda parameters: torch.optim.AdamW(parameters)"
            )

    @property
    def _is_factory(self) -> bool:
        return not isinstance(self.model, torch.nn.Module)

    @cached_property
    def follows_shapes(self) -> bool:
        """Whether no memory is allocated for tensors."""
        return (self._is_factory or is_on_meta(self.model)) if self.fake is None else self.fake

    def run(self) -> Trace:
        """Carry the request out."""
        with ExitStack() as stack:
            stack.enter_context(values_explained())
            stack.enter_context(random_kept())
            mode = stack.enter_context(ShapeMode()) if self.follows_shapes else None
            module, inputs = self._build()
            if mode is not None:
                stack.enter_context(faked(module, mode))
                stack.enter_context(cpu_lstm())
                stack.enter_context(scalars_in_lists())
                inputs = as_fake(inputs, mode)
            optimizer = iterations.optimizer_for(module, self.optimizer) if self.train else None
            if mode is None:
                stack.enter_context(everything_kept(module, inputs, optimizer, weights=self.train))
            stack.enter_context(mode_kept(module, train=self.train))
            stack.enter_context(collection_by_hand())
            return self._record(module, inputs, optimizer)

    def _build(self) -> tuple[torch.nn.Module, Any]:
        dtype = getattr(torch, self.dtype) if isinstance(self.dtype, str) else self.dtype
        with default_dtype(dtype), CopiesOfFakes(), initializers_of_shapes():
            module = self.model() if self._is_factory and callable(self.model) else self.model
            if not isinstance(module, torch.nn.Module):
                raise ArgumentError(
                    f"[capture] the model is a {type(module).__name__}; a torch.nn.Module is needed"
                )
            inputs = self.inputs() if callable(self.inputs) else self.inputs
            return module, dict(inputs) if isinstance(inputs, Mapping) else inputs

    def _record(self, module: torch.nn.Module, inputs: Any, optimizer: Any) -> Trace:
        recording = OperatorRecording(names=self.names, workspaces=self.workspaces)
        recording.scope.add_module(module)
        for index, tensor in enumerate(tensors_in(inputs)):
            recording.storages.describe(tensor, f"input.{index}", "input")
        with recording:
            if self.generate_tokens:
                iterations.decode(recording, module, inputs, tokens=self.generate_tokens)
            else:
                self._run_iterations(recording, module, inputs, optimizer)
        trace = self._trace(recording, module, optimizer)
        if not self.timed:
            return trace
        again = partial(self._run_iterations, Unrecorded(), module, inputs, optimizer)
        return trace.with_meta(measured_s=quickest_s(again, self.timed))

    def _run_iterations(
        self, recording: OperatorRecording | Unrecorded, module: torch.nn.Module, inputs: Any, optimizer: Any
    ) -> None:
        """Train or infer."""
        if self.train:
            iterations.train(
                recording,
                module,
                inputs,
                steps=self.steps,
                loss=self.loss,
                optimizer=optimizer,
                keep_outputs=self.keep_outputs is not False,
            )
        else:
            keeps = self.keep_outputs is True
            iterations.infer(recording, module, inputs, steps=self.steps, keep_outputs=keeps)

    def _trace(self, recording: OperatorRecording, module: torch.nn.Module, optimizer: Any) -> Trace:
        trace = recording.trace(
            model_type=type(module).__name__,
            model=type(module).__name__,
            parameters=sum(each.numel() for each in module.parameters()),
            train=self.train,
            optimizer=type(optimizer).__name__ if optimizer is not None else "",
            fake=self.follows_shapes,
        )
        return trace.with_meta(
            peak_live_bytes=Occupancy(trace).peak_bytes,
            idle_bytes=recording.idle_bytes(),
            outputs_bytes=recording.outputs_bytes,
        )


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
    """Disable Python's cycle collector, so that storages die at the same moments in every run.

    Existing objects are frozen (``gc.freeze``), which makes ``gc.collect()`` quick until then.
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


def _copies(values: list[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(each, each.detach().clone()) for each in values if isinstance(each, torch.Tensor)]


def _restore(contents: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, before in contents:
            tensor.copy_(before)
