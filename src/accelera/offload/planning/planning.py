"""What offloading a model into a budget will take, found by a rehearsal on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accelera.devices import Device, get_device
from accelera.errors import BudgetExceededError, DeviceError
from accelera.memory import Budget, MemoryManager
from accelera.offload.keeping.cutting import FINER, block_bytes_of
from accelera.offload.keeping.keeper import LEAST_BYTES
from accelera.offload.planning.fixed import least_room, reserved_on
from accelera.offload.planning.offload_plan import OffloadPlan
from accelera.offload.planning.rehearsal import Rehearsed, Scene, largest_weight_bytes, rehearse
from accelera.offload.planning.timing import Rates
from accelera.units import format_bytes

PASSES = 4
"""Passes rehearsed: in the second the order of use is known, the last stands for all that follow."""
_TRIES = 4
"""Rehearsals until what is reserved covers what is needed."""
_LEAST_PASSES = 2
"""In the first pass of training an optimizer makes its states, in the second it has them."""


def plan_offload(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Any,
    budget: int | float | str | None = None,
    *,
    train: bool | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], torch.Tensor] | None = None,
    store: str | Path | None = None,
    device: Any = None,
    policy: str = "loop",
    activations: str = "auto",
    passes: int = PASSES,
) -> OffloadPlan:
    """Predict memory, traffic and time of an offloaded model; nothing is allocated, moved or computed.

    The passes are carried out on shapes by the very code that runs them, so hits, misses and bytes of a run
    on inputs of these shapes are those of the plan.

    Parameters
    ----------
    model
        A module, also one on ``meta``, or a function that builds one. It is left as it was.
    inputs
        A tensor, a tuple of arguments, a dictionary of named ones, or a function that makes any of these.
    budget
        Most bytes of the device's memory, as ``offload`` takes it.
    train
        Whether a pass is a training step (forward, loss, backward, optimizer) or one forward pass without
        gradients; None: as the module's mode is.
    optimizer, loss
        As ``accelera.capture`` takes them.
    store, device, policy, activations
        As ``offload`` takes them.
    passes
        How many passes to plan; the last one stands for all that follow.

    Raises
    ------
    BudgetExceededError
        The model does not run in this budget; the message names the operation, what it needs, and the
        smallest budget that works.
    ShapeError, DTypeError
        A layer does not take what it is given; the message names it.
    ValueError
        The model asks for values that shapes do not tell, or ``passes`` below 1.
    TypeError
        ``model`` is neither a module nor a function, ``inputs`` are none, or ``budget`` is a tensor.
    """
    if passes < 1:
        raise ValueError(f"[plan_offload] passes={passes}; at least 1 is needed")
    _refuse_wrong_kinds(model, inputs, budget)
    training = _trains(model) if train is None else train
    place = device_of(model, device)
    scene = Scene(
        model,
        inputs,
        training,
        optimizer,
        loss,
        activations,
        policy,
        torch.device(place.name),
        LEAST_BYTES,
    )
    limit = Budget.parse(budget, MemoryManager(place)).limit_bytes
    fixed = reserved_on(place)
    capacity, found = _fitted(scene, limit, sum(fixed.values()), passes)
    return _plan(scene, place, store, limit, fixed, capacity, found)


def _refuse_wrong_kinds(model: Any, inputs: Any, budget: Any) -> None:
    if not callable(model):
        raise TypeError(
            f"[plan_offload] model is of type {type(model).__name__}: give a torch.nn.Module, or a function "
            "that builds one"
        )
    if inputs is None or isinstance(inputs, (str, bytes)):
        raise TypeError(
            f"[plan_offload] inputs={inputs!r}: give a tensor, a tuple of arguments, a dictionary of named "
            "ones, or a function that makes any of these; the order is plan_offload(model, inputs, budget)"
        )
    if isinstance(budget, (torch.Tensor, tuple, list, Mapping)):
        raise TypeError(
            f"[plan_offload] budget is of type {type(budget).__name__}: give bytes, a share, or text such as "
            "'2GiB'; the order is plan_offload(model, inputs, budget)"
        )


def device_of(model: Any, device: Any) -> Device:
    """Return the device that computes: the one asked for, else the one where the weights are.

    Raises UnknownNameError for a name that is none, DeviceError for a device that torch does not compute on
    here.
    """
    if device is None:
        first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
        device = "cpu" if first is None or first.is_meta else first.device
    place = get_device(str(device))
    if place.name.startswith("sim"):
        raise DeviceError(f"[offload] {place.name} is simulated: it runs no model; name another")
    return place


def least_budget(scene: Scene, fixed_bytes: int) -> int:
    """Return the smallest workable budget: the largest weight is cut into ``PARTS`` at most."""
    return _at_least(scene, fixed_bytes)[0]


def _at_least(scene: Scene, fixed_bytes: int) -> tuple[int, int]:
    """Return the smallest workable budget and its room for blocks."""
    capacity = _least_capacity(scene)
    while True:
        try:
            found = _rehearsed(scene, capacity, FINER[0], _LEAST_PASSES)
        except BudgetExceededError as error:
            capacity = max(error.needed_bytes, capacity + capacity // 8)
        else:
            return fixed_bytes + found.ordinary_peak_bytes + capacity, capacity


def _rehearsed(scene: Scene, capacity: int, finer: int, passes: int) -> Rehearsed:
    block_bytes = block_bytes_of(capacity, train=scene.train, finer=finer)
    return rehearse(scene, capacity, block_bytes, passes)


def _trains(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and model.training


def _least_capacity(scene: Scene) -> int:
    return least_room(largest_weight_bytes(scene), scene.least_bytes)


def _fitted(scene: Scene, limit: int, fixed_bytes: int, passes: int) -> tuple[int, Rehearsed]:
    """Return room for blocks and the passes in it, such that everything together keeps to ``limit``.

    Blocks are made smaller as long as it does not work out.
    """
    refusal: BudgetExceededError | None = None
    for finer in FINER:
        try:
            return _fitted_in(scene, limit, fixed_bytes, finer, passes)
        except BudgetExceededError as error:
            refusal = refusal or error
    assert refusal is not None, "no way to cut worked out"
    least, capacity = _at_least(scene, fixed_bytes)
    if least > limit:
        raise _refusal(scene, limit, fixed_bytes, least, refusal) from refusal
    return capacity, _rehearsed(scene, capacity, FINER[0], passes)


def _fitted_in(scene: Scene, limit: int, fixed_bytes: int, finer: int, passes: int) -> tuple[int, Rehearsed]:
    room, others = limit - fixed_bytes, 0
    _require_room(scene, room)
    for attempt in range(_TRIES):
        capacity = room - others if attempt else max(_least_capacity(scene), room // 2)
        _require_room(scene, capacity)
        found = _rehearsed(scene, capacity, finer, passes if attempt else 1)
        if attempt and found.ordinary_peak_bytes <= others:
            return capacity, found
        others = max(others, found.ordinary_peak_bytes)
    raise BudgetExceededError(
        f"[plan_offload] activations and temporaries of {format_bytes(others)} leave too little for blocks",
        needed_bytes=limit + others - room + capacity,
        budget_bytes=limit,
    )


def _require_room(scene: Scene, capacity: int) -> None:
    least = _least_capacity(scene)
    if capacity < least:
        raise BudgetExceededError(
            f"[plan_offload] {format_bytes(max(0, capacity))} are left for blocks, less than the "
            f"{format_bytes(least)} in which the largest weight is workable",
            needed_bytes=least,
            budget_bytes=capacity,
        )


def _refusal(
    scene: Scene, limit: int, fixed_bytes: int, least: int, error: BudgetExceededError
) -> BudgetExceededError:
    what = "training" if scene.train else "inference"
    reason = str(error).partition("] ")[2] or str(error)
    return BudgetExceededError(
        f"[plan_offload] {what} in {format_bytes(limit)}, of which staging and runtime take "
        f"{format_bytes(fixed_bytes)}: {reason}; the smallest workable budget is {least} bytes "
        f"({format_bytes(least)}): raise it to that, or use a smaller batch",
        needed_bytes=least,
        budget_bytes=limit,
    )


def _plan(
    scene: Scene,
    device: Device,
    store: str | Path | None,
    limit: int,
    fixed: Mapping[str, int],
    capacity: int,
    found: Rehearsed,
) -> OffloadPlan:
    home = "disk" if device.host_memory or store is not None else "ram"
    return OffloadPlan(
        model=found.model,
        train=scene.train,
        budget_bytes=limit,
        tier="ram" if device.host_memory else device.name,
        home=home,
        policy=scene.policy,
        activations=scene.activations,
        capacity_bytes=capacity,
        block_bytes=found.block_bytes,
        reserved={"activations and temporaries": found.ordinary_peak_bytes, **fixed},
        weights_bytes=found.weights_bytes,
        kept_bytes=found.kept_bytes,
        pool_bytes=found.pool_bytes,
        peak_pool_bytes=found.peak_pool_bytes,
        passes=found.passes,
        ordinary_peak_op=found.ordinary_peak_op,
        trace=found.trace,
        rates=Rates(device, None if store is None else str(store), home),
        find_least=partial(least_budget, scene, sum(fixed.values())),
    )
