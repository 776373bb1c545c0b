"""A rehearsal: the passes of an offloaded model on shapes alone, through the very code that runs it.

Weights, inputs and activations are fake tensors; the keeper is the one of a run, over memory on paper. So
what the books say here is what they will say in the run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from accelera.capturing import (
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
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.places.paper import PaperHomes, PaperPlace
from accelera.offload.planning.bystanders import Bystanders
from accelera.offload.planning.offload_plan import PassForecast
from accelera.offload.tensors.taking import offloaded_tensors, take_over, tensors_of
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.marking import MarkedTensor
from accelera.offload.training.training import Training
from accelera.trace import Occupancy, Trace

_WRAPPERS = (OffloadedTensor, MarkedTensor)


@dataclass(frozen=True)
class Scene:
    """What is rehearsed."""

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
class Rehearsed:
    """What the passes did."""

    model: str
    """Name of the module's class."""
    block_bytes: int
    passes: tuple[PassForecast, ...]
    trace: Trace
    peak_pool_bytes: int
    pool_bytes: int
    """Most bytes of blocks that exist at once, resident or not."""
    weights_bytes: int
    kept_bytes: int
    """Bytes of the parameters and buffers that stay ordinary."""
    ordinary_peak_bytes: int
    """Most bytes of ordinary tensors at once, those that stay included."""
    ordinary_peak_op: str


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


def rehearse(scene: Scene, capacity_bytes: int, block_bytes: int | None, passes: int) -> Rehearsed:
    """Carry out ``passes`` passes on paper; the model is left as it was.

    Raises BudgetExceededError when an operation's blocks do not fit into ``capacity_bytes``.
    """
    mode = ShapeMode()
    with _stage(), mode:
        module, inputs = _built(scene)
        with faked(module, mode), mode_kept(module, train=scene.train):
            inputs = as_fake(inputs, mode)
            return _Rehearsal(scene, module, inputs, mode, capacity_bytes, block_bytes).held(passes)


def largest_weight_bytes(scene: Scene) -> int:
    """Return the bytes of the largest parameter or buffer."""
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
class _Rehearsal:
    def __init__(
        self,
        scene: Scene,
        module: torch.nn.Module,
        inputs: Any,
        mode: FakeTensorMode,
        capacity_bytes: int,
        block_bytes: int | None,
    ) -> None:
        self._scene = scene
        self._module = module
        self._inputs = inputs
        self._bystanders = Bystanders(lambda: self._keeper.step)
        self._keeper = Keeper(
            capacity_bytes,
            policy=scene.policy,
            least_bytes=scene.least_bytes,
            block_bytes=block_bytes,
            place=PaperPlace(scene.device, mode, self._bystanders.leave_out),
            homes=PaperHomes(),
            recorder=True,
        )

    def held(self, passes: int) -> Rehearsed:
        """Hold the rehearsal."""
        take_over(self._module, self._keeper)
        weights = {each.contents for each in offloaded_tensors(self._module)}
        kept = [each for _, each in tensors_of(self._module) if not isinstance(each, OffloadedTensor)]
        self._leave_out(self._inputs)
        self._bystanders.count(kept)
        kept_bytes = self._bystanders.alive_bytes
        training = Training(self._module, self._keeper, self._scene.activations)
        try:
            found = self._passes(passes)
        finally:
            training.stop()
            self._keeper.close()
        return replace(found, weights_bytes=sum(each.nbytes for each in weights), kept_bytes=kept_bytes)

    def _passes(self, passes: int) -> Rehearsed:
        scene = self._scene
        optimizer = optimizer_for(self._module, scene.optimizer) if scene.train else None
        endings, reports = [], [self._keeper.report()]
        outs = OutsAsTheyAre()  # type: ignore[no-untyped-call]
        with outs, Listener(self._bystanders.heard, _WRAPPERS):
            for _ in range(passes):
                self._pass(optimizer)
                gc.collect()
                reports.append(self._keeper.report())
                endings.append(self._keeper.events)
        pairs = zip(reports, reports[1:], endings, strict=False)
        return self._told(tuple(_difference(*pair) for pair in pairs))

    def _pass(self, optimizer: Any) -> None:
        if not self._scene.train:
            with torch.no_grad():
                self._forward()
            return
        self._module.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = (self._scene.loss or default_loss)(self._forward())
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()

    def _forward(self) -> Any:
        with misfits_explained("plan_offload", self._module):
            return call(self._module, self._inputs)

    def _told(self, passes: tuple[PassForecast, ...]) -> Rehearsed:
        others = self._bystanders
        trace = self._keeper.trace()
        steps = range(trace.step_count)
        flops = np.array([others.flops[step] for step in steps], dtype=np.float64)
        touched = [others.touched_bytes[step] for step in steps]
        trace = replace(trace, flops=flops, seconds=np.full(len(steps), np.nan))
        return Rehearsed(
            type(self._module).__name__,
            self._keeper.block_bytes,
            passes,
            trace.with_meta(touched_bytes=touched),
            self._keeper.report().peak_bytes,
            Occupancy(trace).peak_bytes,
            0,
            0,
            others.peak_bytes,
            others.peak_op,
        )

    def _leave_out(self, inputs: Any) -> None:
        for each in torch.utils._pytree.tree_leaves(inputs):
            if isinstance(each, torch.Tensor):
                self._bystanders.leave_out(each)


def _difference(before: Any, after: Any, ending: int) -> PassForecast:
    return PassForecast(
        uses=after.uses - before.uses,
        hits=after.hits - before.hits,
        misses=after.misses - before.misses,
        evictions=after.evictions - before.evictions,
        bytes_read=after.fetched_bytes - before.fetched_bytes,
        bytes_written=after.saved_bytes - before.saved_bytes,
        ending=ending,
    )
