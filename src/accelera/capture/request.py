"""CaptureRequest of one ``capture``: build the model, run it under a recording, put everything back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
from accelera.capture.preserve_state import collection_by_hand, everything_kept, mode_kept, random_kept
from accelera.capture.recording import Recording
from accelera.capture.shape_rules import ShapeMode, cpu_lstm
from accelera.trace import Occupancy, Trace


@dataclass(frozen=True)
class CaptureRequest:
    """What ``capture`` was asked for; see there."""

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
            raise ValueError(f"[capture] steps={self.steps}; at least 1 is needed")
        if self.generate_tokens and self.train:
            raise ValueError(f"[capture] generate_tokens={self.generate_tokens} needs train=False")
        if self.timed < 0 or (self.timed and (self.follows_shapes or self.generate_tokens)):
            raise ValueError(
                f"[capture] timed={self.timed} rounds need a real model, no fake one, and no generate_tokens"
            )
        if self.dtype is not None and not self._builds:
            raise ValueError(
                f"[capture] dtype={self.dtype} is for a model that is built; this one exists, convert it "
                f"with model.to(dtype), or give a function that builds it"
            )
        if self.follows_shapes and isinstance(self.optimizer, torch.optim.Optimizer):
            raise ValueError(
                "[capture] an optimizer of real weights cannot step fake ones; give its name or a function "
                "such as lambda parameters: torch.optim.AdamW(parameters)"
            )

    @property
    def _builds(self) -> bool:
        return not isinstance(self.model, torch.nn.Module)

    @cached_property
    def follows_shapes(self) -> bool:
        """Whether no memory is allocated for tensors."""
        return (self._builds or is_on_meta(self.model)) if self.fake is None else self.fake

    def fulfilled(self) -> Trace:
        """Carry the request out."""
        with ExitStack() as stack:
            stack.enter_context(values_explained())
            stack.enter_context(random_kept())
            mode = stack.enter_context(ShapeMode()) if self.follows_shapes else None
            module, inputs = self._built()
            if mode is not None:
                stack.enter_context(faked(module, mode))
                stack.enter_context(cpu_lstm())
                inputs = as_fake(inputs, mode)
            optimizer = iterations.optimizer_for(module, self.optimizer) if self.train else None
            if mode is None:
                stack.enter_context(everything_kept(module, inputs, optimizer, weights=self.train))
            stack.enter_context(mode_kept(module, train=self.train))
            stack.enter_context(collection_by_hand())
            return self._recorded(module, inputs, optimizer)

    def _built(self) -> tuple[torch.nn.Module, Any]:
        dtype = getattr(torch, self.dtype) if isinstance(self.dtype, str) else self.dtype
        with default_dtype(dtype), CopiesOfFakes(), initializers_of_shapes():
            module = self.model() if self._builds and callable(self.model) else self.model
            if not isinstance(module, torch.nn.Module):
                raise TypeError(
                    f"[capture] the model is a {type(module).__name__}; a torch.nn.Module is needed"
                )
            inputs = self.inputs() if callable(self.inputs) else self.inputs
            return module, dict(inputs) if isinstance(inputs, Mapping) else inputs

    def _recorded(self, module: torch.nn.Module, inputs: Any, optimizer: Any) -> Trace:
        recording = Recording(names=self.names, workspaces=self.workspaces)
        recording.scope.add_module(module)
        for index, tensor in enumerate(tensors_in(inputs)):
            recording.storages.describe(tensor, f"input.{index}", "input")
        with recording:
            if self.generate_tokens:
                iterations.decode(recording, module, inputs, tokens=self.generate_tokens)
            else:
                self._run(recording, module, inputs, optimizer)
        trace = self._told(recording, module, optimizer)
        if not self.timed:
            return trace
        again = partial(self._run, Unrecorded(), module, inputs, optimizer)
        return trace.with_meta(measured_s=quickest_s(again, self.timed))

    def _run(
        self, recording: Recording | Unrecorded, module: torch.nn.Module, inputs: Any, optimizer: Any
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

    def _told(self, recording: Recording, module: torch.nn.Module, optimizer: Any) -> Trace:
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
