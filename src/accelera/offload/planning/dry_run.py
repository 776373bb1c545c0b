"""Dry run of an offloaded model: one pass on shapes, by the code of a run, each use of a block recorded.

Weights, inputs and activations are fake tensors, and blocks have no bytes. Nothing depends on the room for
blocks but the size of the largest, so the records are replayed in any room afterwards (``pool_replay``).
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accelera.capture._internal import (
    CopiesOfFakes,
    Listener,
    ShapeMode,
    as_fake,
    call,
    collection_by_hand,
    default_loss,
    faked,
    misfits_explained,
    mode_kept,
    optimizer_for,
    random_kept,
    scalars_in_lists,
    values_explained,
)
from accelera.offload.blockwise.autograd import MarkedTensor
from accelera.offload.config import OffloadConfig
from accelera.offload.module import offloaded_tensors, swap_in, tensors_of
from accelera.offload.planning.recording import (
    Begin,
    Create,
    Excerpt,
    Free,
    Notes,
    RecordedSaves,
    RecordingCache,
    UnpooledTensors,
)
from accelera.offload.tensor import OffloadedTensor
from accelera.offload.training.activation_plan import StepRecord
from accelera.offload.training.hooks import Training

_PER_PARAMETER_OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "ASGD",
)
"""Optimizers of PyTorch that update one parameter after the other, each without regard to the others."""


class _Template(NamedTuple):
    """Recorded optimizer events of one parameter, replayed for all others with the same layout."""

    parameter: torch.Tensor
    make_states: Excerpt
    first_update: Excerpt
    update: Excerpt


@final
class OptimizerNotes:
    """Steps of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, notes: Notes) -> None:
        self._optimizer = optimizer
        self._notes = notes
        self._templates: dict[Hashable, _Template] = {}
        self._blocks: dict[int, dict[int, int]] = {}
        """For each parameter by identity, its blocks by those of its representative."""

    def step(self) -> None:
        """Note a step; in the first, states are made for all parameters of a group before any is updated."""
        if not _updates_per_parameter(self._optimizer):
            self._optimizer.step()
            return
        first = not self._templates
        groups = [list(group["params"]) for group in self._optimizer.param_groups]
        if first:
            self._make_templates(groups)
        for number, parameters in enumerate(groups):
            trained = [each for each in parameters if each.grad is not None]
            chosen = [(each, self._templates[number, _update_key(each)]) for each in trained]
            for each, template in chosen if first else ():
                self._repeat(each, template.parameter, template.make_states)
            for each, template in chosen:
                self._repeat(each, template.parameter, template.first_update if first else template.update)

    def _make_templates(self, groups: list[list[torch.Tensor]]) -> None:
        """Carry out two steps for one parameter of each kind."""
        own = self._optimizer.param_groups
        try:
            for number, parameters in enumerate(groups):
                for group in own:
                    group["params"] = []
                for each in parameters:
                    if each.grad is not None and (number, _update_key(each)) not in self._templates:
                        own[number]["params"] = [each]
                        self._templates[number, _update_key(each)] = self._template(each)
        finally:
            for group, parameters in zip(own, groups, strict=True):
                group["params"] = parameters

    def _template(self, parameter: torch.Tensor) -> _Template:
        with self._notes.set_aside() as first:
            self._optimizer.step()
        with self._notes.set_aside() as later:
            self._optimizer.step()
        making = len(first.events) - len(later.events)
        allocated = len(first.allocations) - len(later.allocations)
        return _Template(
            parameter,
            Excerpt(first.events[:making], first.allocations[:allocated]),
            Excerpt(first.events[making:], first.allocations[allocated:]),
            later,
        )

    def _repeat(self, parameter: torch.Tensor, representative: torch.Tensor, excerpt: Excerpt) -> None:
        """Record for ``parameter`` the events of its representative, with its own blocks."""
        blocks = self._blocks.setdefault(id(parameter), {})
        for mine, other in ((parameter, representative), (parameter.grad, representative.grad)):
            blocks.update(zip(_block_ids(other), _block_ids(mine), strict=True))
        for event in excerpt.events:
            if isinstance(event, Create):
                block = self._notes.create(event.nbytes, event.role, event.name, filled=event.filled)
                blocks[event.block] = block.id
            elif isinstance(event, Begin):
                uses = tuple((blocks.get(block, block), read, write) for block, read, write in event.uses)
                self._notes.add(Begin(uses, event.op))
            elif isinstance(event, Free):
                self._notes.free(blocks.get(event.block, event.block))
            else:
                self._notes.add(event)
        for number, nbytes in excerpt.allocations:
            self._notes.allocate(number, nbytes, "optimizer")


def _updates_per_parameter(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    if kind.__name__ not in _PER_PARAMETER_OPTIMIZERS or not kind.__module__.startswith("torch.optim"):
        return False
    groups = optimizer.param_groups
    return not any(group.get("foreach") or group.get("fused") or group.get("capturable") for group in groups)


def _update_key(parameter: torch.Tensor) -> Hashable:
    """Return a key that is equal for parameters with the same optimizer events."""
    return (_layout(parameter), _layout(parameter.grad))


def _layout(tensor: Any) -> Hashable:
    cut = tuple(block.nbytes for block in tensor.blocks) if isinstance(tensor, OffloadedTensor) else None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, type(tensor), cut


def _block_ids(tensor: Any) -> list[int]:
    return [block.id for block in tensor.blocks] if isinstance(tensor, OffloadedTensor) else []


_WRAPPERS = (OffloadedTensor, MarkedTensor)


@dataclass(frozen=True)
class DryRunSetup:
    """Model, inputs and options of a dry run."""

    model: Any
    """A module, also one on ``meta``, or a function that builds one."""
    inputs: Any
    """A tensor, a tuple of arguments, a dictionary of named ones, or a function that makes any of these."""
    optimizer: Any
    loss: Callable[[Any], torch.Tensor] | None
    device: torch.device
    config: OffloadConfig


@dataclass(frozen=True)
class DryRun:
    """Recorded events of one pass, and what was run."""

    model: str
    """Name of the module's class."""
    notes: Notes
    weights: range
    """Events that make the model's own blocks."""
    step: range
    """Events of the forward and backward pass, or of a forward pass alone."""
    first_update: range
    """Events of the optimizer's step in which it makes its states."""
    update: range
    """Events of a later step."""
    release: range
    """Events of giving up the gradients."""
    weights_bytes: int
    kept_bytes: int
    """Bytes of the parameters, buffers and states of the optimizer that stay ordinary."""
    record: StepRecord | None
    """What plans for saved tensors are made from; None when they all go one way."""
    signature: Any
    """Shapes and types of the inputs."""
    block_bytes: int

    @property
    def most_pinned_bytes(self) -> int:
        """Most bytes of blocks that are used at once."""
        return self.notes.most_pinned_bytes

    @property
    def is_cut(self) -> bool:
        """Whether a tensor is larger than a block, so that a smaller block would change something."""
        return self.notes.largest_block_bytes > self.block_bytes // 2

    def peak(self, *parts: range) -> tuple[int, str]:
        """Return the most bytes of ordinary tensors in parts of the run, and the operation at that time."""
        return max(self._peak(each) for each in parts)

    def _peak(self, events: range) -> tuple[int, str]:
        notes = self.notes
        start, stop = notes.position(events.start), notes.position(events.stop)
        alive = self.kept_bytes + notes.alive_bytes()
        for position, nbytes in notes.temporaries:
            alive[position] += nbytes
        at = start + int(np.argmax(alive[start : stop + 1]))
        return int(alive[at]), notes.allocation_ops[at - 1] if at else ""


def dry_run(setup: DryRunSetup, block_bytes: int, room_bytes: int) -> DryRun:
    """Run one pass on shapes alone, in blocks of at most ``block_bytes``; the model is left as it was.

    Raises BudgetExceededError when an operation needs a tensor whole that ``room_bytes`` do not hold.
    """
    mode = ShapeMode()
    with _planning_context(), mode:
        module, inputs = _build(setup)
        with faked(module, mode), mode_kept(module, train=setup.config.train):
            inputs = as_fake(inputs, mode)
            return _PassRecorder(
                setup, module, inputs, mode, (block_bytes, setup.config.least_bytes, room_bytes)
            ).run()


def largest_weight_bytes(setup: DryRunSetup) -> int:
    """Return the bytes of the largest parameter or buffer."""
    if isinstance(setup.model, torch.nn.Module):
        return max((each.nbytes for _, each in tensors_of(setup.model)), default=0)
    with _planning_context(), ShapeMode():
        module, _ = _build(setup)
        return max((each.nbytes for _, each in tensors_of(module)), default=0)


@contextmanager
def _planning_context() -> Iterator[None]:
    with ExitStack() as stack:
        explained = values_explained("plan_offload", "offload it without inputs=, which plans nothing")
        for each in (explained, random_kept(), collection_by_hand(), scalars_in_lists()):
            stack.enter_context(each)
        yield


def _build(setup: DryRunSetup) -> tuple[torch.nn.Module, Any]:
    with CopiesOfFakes():
        is_module = isinstance(setup.model, torch.nn.Module)
        module = setup.model if is_module else setup.model()
        inputs = setup.inputs() if callable(setup.inputs) else setup.inputs
    return module, dict(inputs) if isinstance(inputs, Mapping) else inputs


@final
class SkipOutVariants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Skips operators that write into given tensors (``out=``): their shapes are known already."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out ``func``; called by torch."""
        if any(issubclass(each, _WRAPPERS) for each in types):
            return NotImplemented
        outs = [kwargs[each.name] for each in func._schema.arguments if each.is_out] if kwargs else []
        if not outs:
            return func(*args, **(kwargs or {}))
        return outs[0] if len(outs) == 1 else tuple(outs)


@final
class _PassRecorder:
    def __init__(
        self,
        setup: DryRunSetup,
        module: torch.nn.Module,
        inputs: Any,
        mode: FakeTensorMode,
        sizes: tuple[int, int, int],
    ) -> None:
        self._setup = setup
        self._module = module
        self._inputs = inputs
        self._notes = Notes()
        self._ordinary = UnpooledTensors(self._notes)
        self._cache: Any = RecordingCache(mode, setup.device, sizes, self._notes, self._ordinary.exclude)
        self._saved = RecordedSaves(self._cache, self._notes, self._ordinary)

    def run(self) -> DryRun:
        """Carry out the pass."""
        setup, events = self._setup, self._notes.events
        swap_in(self._module, self._cache)
        weights = {each.block_storage for each in offloaded_tensors(self._module)}
        kept = [each for _, each in tensors_of(self._module) if not isinstance(each, OffloadedTensor)]
        for each in (*kept, *tree_leaves(self._inputs)):
            if isinstance(each, torch.Tensor):
                self._ordinary.exclude(each)
        ends = [0, len(events)]
        planned = setup.config.train and setup.config.activations == "auto"
        training = Training(
            self._module, self._cache, setup.config.activations, self._saved if planned else None
        )
        try:
            for part in self._parts():
                part()
                gc.collect()
                ends.append(len(events))
        finally:
            training.stop()
        # Small states of the optimizer stay, and are there in all later steps.
        states_bytes = self._notes.alive_at(ends[3]) - self._notes.alive_at(ends[2])
        kept_bytes = sum(each.nbytes for each in kept) + max(0, states_bytes)
        weight_events, step, first_update, update, release = itertools.starmap(
            range, itertools.pairwise(ends)
        )
        return DryRun(
            model=type(self._module).__name__,
            notes=self._notes,
            weights=weight_events,
            step=step,
            first_update=first_update,
            update=update,
            release=release,
            weights_bytes=sum(each.nbytes for each in weights),
            kept_bytes=kept_bytes,
            record=self._saved.record(kept_bytes, ends[2]) if planned else None,
            signature=self._saved.signature,
            block_bytes=self._cache.block_bytes,
        )

    def _parts(self) -> tuple[Callable[[], None], ...]:
        """Return what is done: the pass, the first update, a later one, the release of gradients."""
        setup = self._setup
        update: Callable[[], None] = _no_update
        if setup.config.train:
            optimizer = optimizer_for(self._module, setup.optimizer)
            if optimizer is not None:
                update = OptimizerNotes(optimizer, self._notes).step
        listening = [self._with_listener(part) for part in (self._pass, update, update, self._release)]
        return tuple(listening)

    def _with_listener(self, part: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with SkipOutVariants(), Listener(self._ordinary.record_operator, _WRAPPERS):  # type: ignore[no-untyped-call]
                part()

        return run

    def _pass(self) -> None:
        if not self._setup.config.train:
            with torch.no_grad():
                self._forward()
            return
        self._module.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = (self._setup.loss or default_loss)(self._forward())
        loss.backward()  # type: ignore[no-untyped-call]

    def _forward(self) -> Any:
        with misfits_explained("plan_offload", self._module):
            return call(self._module, self._inputs)

    def _release(self) -> None:
        if self._setup.config.train:
            self._module.zero_grad(set_to_none=True)


def _no_update() -> None:
    """Do nothing: there is no optimizer."""
