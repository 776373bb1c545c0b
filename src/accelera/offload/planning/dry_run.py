"""Dry run of an offloaded model: one pass on shapes, through the code of a run, every use of a block noted.

Weights, inputs and activations are fake tensors, and blocks have no bytes. Nothing depends on the room for
blocks but the size of the largest, so the notes are replayed in any room afterwards (``pool_replay``).
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accelera.capture import (
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
    values_explained,
)
from accelera.offload.planning.optimizer_notes import OptimizerNotes
from accelera.offload.planning.ordinary_tensors import OrdinaryTensors
from accelera.offload.planning.recording_keeper import Notes, RecordingKeeper
from accelera.offload.planning.saved_on_paper import SavedOnPaper
from accelera.offload.tensors.taking import offloaded_tensors, take_over, tensors_of
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.marking import MarkedTensor
from accelera.offload.training.step_record import StepRecord
from accelera.offload.training.training import Training

_WRAPPERS = (OffloadedTensor, MarkedTensor)


@dataclass(frozen=True)
class Scene:
    """What is run."""

    model: Any
    """A module, also one on ``meta``, or a function that builds one."""
    inputs: Any
    """A tensor, a tuple of arguments, a dictionary of named ones, or a function that makes any of these."""
    train: bool
    optimizer: Any
    loss: Callable[[Any], torch.Tensor] | None
    activations: str
    policy: str
    device: torch.device
    least_bytes: int


@dataclass(frozen=True)
class DryRun:
    """The notes of one pass, and of what it was a pass."""

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


def dry_run(scene: Scene, block_bytes: int, room_bytes: int) -> DryRun:
    """Run one pass on paper in blocks of at most ``block_bytes``; the model is left as it was.

    Raises BudgetExceededError when an operation needs a tensor whole that ``room_bytes`` do not hold.
    """
    mode = ShapeMode()
    with _stage(), mode:
        module, inputs = _built(scene)
        with faked(module, mode), mode_kept(module, train=scene.train):
            inputs = as_fake(inputs, mode)
            return _Runner(scene, module, inputs, mode, (block_bytes, scene.least_bytes, room_bytes)).run()


def largest_weight_bytes(scene: Scene) -> int:
    """Return the bytes of the largest parameter or buffer."""
    if isinstance(scene.model, torch.nn.Module):
        return max((each.nbytes for _, each in tensors_of(scene.model)), default=0)
    with _stage(), ShapeMode():
        module, _ = _built(scene)
        return max((each.nbytes for _, each in tensors_of(module)), default=0)


@contextmanager
def _stage() -> Iterator[None]:
    with ExitStack() as stack:
        explained = values_explained("plan_offload", "offload it without inputs=, which plans nothing")
        for each in (explained, random_kept(), collection_by_hand()):
            stack.enter_context(each)
        yield


def _built(scene: Scene) -> tuple[torch.nn.Module, Any]:
    with CopiesOfFakes():
        is_module = isinstance(scene.model, torch.nn.Module)
        module = scene.model if is_module else scene.model()
        inputs = scene.inputs() if callable(scene.inputs) else scene.inputs
    return module, dict(inputs) if isinstance(inputs, Mapping) else inputs


@final
class OutsAsTheyAre(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations into tensors that are given need no following: those have their shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out ``func``; called by torch."""
        if any(issubclass(each, _WRAPPERS) for each in types):
            return NotImplemented
        outs = [kwargs[each.name] for each in func._schema.arguments if each.is_out] if kwargs else []
        if not outs:
            return func(*args, **(kwargs or {}))
        return outs[0] if len(outs) == 1 else tuple(outs)


@final
class _Runner:
    def __init__(
        self,
        scene: Scene,
        module: torch.nn.Module,
        inputs: Any,
        mode: FakeTensorMode,
        sizes: tuple[int, int, int],
    ) -> None:
        self._scene = scene
        self._module = module
        self._inputs = inputs
        self._notes = Notes()
        self._ordinary = OrdinaryTensors(self._notes)
        self._keeper: Any = RecordingKeeper(mode, scene.device, sizes, self._notes, self._ordinary.leave_out)
        self._saved = SavedOnPaper(self._keeper, self._notes, self._ordinary)

    def run(self) -> DryRun:
        """Carry out the pass."""
        scene, events = self._scene, self._notes.events
        take_over(self._module, self._keeper)
        weights = {each.contents for each in offloaded_tensors(self._module)}
        kept = [each for _, each in tensors_of(self._module) if not isinstance(each, OffloadedTensor)]
        for each in (*kept, *tree_leaves(self._inputs)):
            if isinstance(each, torch.Tensor):
                self._ordinary.leave_out(each)
        ends = [0, len(events)]
        planned = scene.train and scene.activations == "auto"
        training = Training(self._module, self._keeper, scene.activations, self._saved if planned else None)
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
            block_bytes=self._keeper.block_bytes,
        )

    def _parts(self) -> tuple[Callable[[], None], ...]:
        """Return what is done: the pass, the first update, a later one, the release of gradients."""
        scene = self._scene
        update: Callable[[], None] = _nothing
        if scene.train:
            optimizer = optimizer_for(self._module, scene.optimizer)
            if optimizer is not None:
                update = OptimizerNotes(optimizer, self._notes).step
        listening = [self._listened(part) for part in (self._pass, update, update, self._release)]
        return tuple(listening)

    def _listened(self, part: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with OutsAsTheyAre(), Listener(self._ordinary.heard, _WRAPPERS):  # type: ignore[no-untyped-call]
                part()

        return run

    def _pass(self) -> None:
        if not self._scene.train:
            with torch.no_grad():
                self._forward()
            return
        self._module.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = (self._scene.loss or default_loss)(self._forward())
        loss.backward()  # type: ignore[no-untyped-call]

    def _forward(self) -> Any:
        with misfits_explained("plan_offload", self._module):
            return call(self._module, self._inputs)

    def _release(self) -> None:
        if self._scene.train:
            self._module.zero_grad(set_to_none=True)


def _nothing() -> None:
    """No optimizer: nothing is updated."""
