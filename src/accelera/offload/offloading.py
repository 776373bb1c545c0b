"""A module offloaded: its weights leave memory, and come back for each operation that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from accelera.devices import Device
from accelera.errors import ArgumentError, DeviceError
from accelera.offload.crossings import Crossings, UnitHooks
from accelera.offload.device_budgets import DeviceBudgets
from accelera.offload.handle import Offloaded
from accelera.offload.homes import Homes
from accelera.offload.keeping.allocator import trim
from accelera.offload.keeping.cutting import block_bytes_of
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.operating.loading import load_code
from accelera.offload.planning.fixed import SPARE_BYTES, require_floor, reserved_on
from accelera.offload.planning.planning import plan_offload
from accelera.offload.tensors.adopting import check_values
from accelera.offload.tensors.staying import stay
from accelera.offload.tensors.taking import offloaded_tensors, take_over, take_over_by, tensors_of
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.training.activation_choice import Planned
from accelera.offload.training.training import CopiedTraining, Training, check_activations
from accelera.offload.units import assigned

if TYPE_CHECKING:
    from accelera.offload.planning.offload_plan import OffloadPlan
    from accelera.simulator import Advice

_HANDLES: WeakKeyDictionary[torch.nn.Module, Offloaded] = WeakKeyDictionary()

RESERVED_FRACTION = 0.25
"""Share of the budget that is left for activations and temporaries when there are no inputs to plan with.

Of a small budget it is what every model takes besides blocks, and a little.
"""


def offload(
    model: torch.nn.Module,
    budget: int | float | str | Mapping[Any, Any] | None = None,
    store: str | Path | None = None,
    *,
    inputs: Any = None,
    device: Any = None,
    policy: str | None = None,
    advice: Advice | None = None,
    activations: str = "auto",
    record: bool = False,
) -> torch.nn.Module:
    """Keep the weights of ``model`` outside of memory and bring them when they are used; return ``model``.

    The same module, code and optimizer work on as before: parameters keep their identity.

    Parameters
    ----------
    model
        The module to offload; it is changed in place.
    budget
        Most bytes of the device's memory that the model may take: weights that are here, activations and
        temporaries. Written as everywhere (``"2GiB"``, ``0.5``); None means the default budget. By device,
        as ``{"cuda:0": "10GiB", "cuda:1": "10GiB", "cpu": "30GiB"}``: accelerators get consecutive parts of
        the model in proportion, ``"cpu"`` bounds the RAM that holds what is on none, and the rest is in
        ``store``.
    store
        Folder for weights that are not here; None means the system's folder for temporary files.
    inputs
        Example inputs, as ``plan_offload`` takes them: the reserve for activations is then planned, for the
        mode in which the model is, and not guessed to be a quarter of the budget. Of one device.
    device
        Device that computes; None means the one where the model is.
    policy
        Name of an online eviction policy; None means ``loop``.
    advice
        What ``accelera.advise`` said of a trace of the model; its policy that knows only the past is used.
    activations
        What becomes of what the backward pass needs: ``"auto"`` (each tensor by its cost), ``"offload"``,
        ``"recompute"``, ``"keep"``.
    record
        Whether to keep a trace, see ``Offloaded.trace``.

    Raises
    ------
    BudgetExceededError
        With the model as it was, for a budget in which no operation fits.
    DeviceError
        For a model that is offloaded already or has no values and for a device that is not there.
    ArgumentError
        For budgets by device that are none.
    TypeError
        For what is no module.
    """
    _refuse_what_is_no_module(model)
    _refuse_twice(model)
    check_activations(model, activations)
    for name, tensor in tensors_of(model):
        check_values(tensor, name)
    budgets = DeviceBudgets.parse("offload", budget, model, device)
    named = policy or (advice.causal_policy if advice is not None else "loop")
    if len(budgets.computing) > 1:
        _refuse_inputs(inputs)
        return _over_several(model, budgets, store, activations, policy=named, record=record)
    place, limit = budgets.only("offload")
    plan = None
    if inputs is not None:
        plan = plan_offload(
            model,
            inputs,
            budget if isinstance(budget, Mapping) else limit,
            store=store,
            device=device,
            policy=named,
            activations=activations,
        )
    else:
        weights = [tensor for _, tensor in tensors_of(model)]
        require_floor("offload", limit, weights, place, train=model.training)
    homes = budgets.homes(store)
    keeper = keeper_for(
        limit, plan, train=model.training, policy=named, store=store, place=place, record=record, homes=homes
    )
    take_over(model, keeper)
    return handed_over(model, keeper, plan, activations)


def _refuse_inputs(inputs: Any) -> None:
    if inputs is not None:
        raise ArgumentError(
            "[offload] inputs= beside budgets of several accelerators: a plan is of one; leave inputs= out"
        )


def _over_several(
    model: torch.nn.Module,
    budgets: DeviceBudgets,
    store: str | Path | None,
    activations: str,
    *,
    policy: str,
    record: bool,
) -> torch.nn.Module:
    """Offload ``model`` with units on each device in proportion to the budgets; return it."""
    assignment = assigned(model, [each.limit_bytes for each in budgets.computing])
    used = [budgets.computing[number] for number in assignment.devices]
    for number, one in zip(assignment.devices, used, strict=True):
        there = [tensor for name, tensor in tensors_of(model) if assignment.tensors[name] == number]
        require_floor("offload", one.limit_bytes, there, one.device, train=model.training)
    homes = budgets.homes(store)
    options: Any = {"train": model.training, "policy": policy, "store": store, "record": record}
    keepers = {
        number: keeper_for(one.limit_bytes, None, place=one.device, homes=homes, **options)
        for number, one in zip(assignment.devices, used, strict=True)
    }
    take_over_by(model, lambda name: keepers[assignment.tensors[name]])
    places = {number: place for place, number in enumerate(keepers)}
    crossings = Crossings(list(keepers.values()))
    hooks = [UnitHooks(crossings, places[number]).put_on(unit) for unit, number in assignment.units]
    crossings.handles = [each for both in hooks for each in both]
    return handed_over(model, crossings.keepers[0], None, activations, crossings)


def keeper_for(
    limit_bytes: int,
    plan: OffloadPlan | None,
    *,
    train: bool,
    policy: str,
    store: str | Path | None,
    place: Device,
    record: bool,
    homes: Homes | None = None,
) -> Keeper:
    """Return the keeper for a budget: with the room that ``plan`` found, else a usual share.

    ``train``: blocks are small enough for an optimizer's step. ``homes``: None for those of ``store``.
    """
    load_code()
    capacity = _usual_capacity(limit_bytes, place) if plan is None else plan.capacity_bytes
    return Keeper(
        capacity,
        policy=policy,
        block_bytes=block_bytes_of(capacity, train=train) if plan is None else plan.block_bytes,
        budget_bytes=limit_bytes,
        fixed_bytes=sum(reserved_on(place).values()),
        planned=plan is not None,
        store=store,
        device=place,
        homes=homes,
        recorder=record,
    )


def _usual_capacity(limit_bytes: int, place: Device) -> int:
    """Return what is left for blocks: ``RESERVED_FRACTION`` less, more of a small budget."""
    fixed = sum(reserved_on(place).values()) + SPARE_BYTES
    return limit_bytes - max(int(limit_bytes * RESERVED_FRACTION), fixed)


def handed_over(
    model: torch.nn.Module,
    keeper: Keeper,
    plan: OffloadPlan | None,
    activations: str,
    crossings: Crossings | None = None,
) -> torch.nn.Module:
    """Return ``model``, whose tensors are with ``keeper``, with its handle and the hooks for training.

    With ``crossings``, they are with several, of which ``keeper`` is the first.
    """
    keepers = (keeper,) if crossings is None else crossings.keepers
    for kind in {each.device.type for each in keepers}:
        if kind == "cpu":
            trim()
        elif hasattr(module := torch.get_device_module(kind), "empty_cache"):
            module.empty_cache()
    stay(model)
    planned = None
    if plan is not None and plan.activation_plan is not None:
        planned = Planned(plan.signature, plan.activation_plan)
    training = Training(model, keeper, activations, planned=planned, crossings=crossings)
    _HANDLES[model] = Offloaded(model, keepers, plan, training)
    return model


def offloaded(model: torch.nn.Module) -> Offloaded:
    """Return the handle of a model that was offloaded, of a copy of one, or of a part of one.

    Parameters
    ----------
    model
        The module that was offloaded, a copy of it, or a part of it.

    Raises
    ------
    DeviceError
        For a model that is not offloaded.
    """
    known = _handle_of(model)
    if known is not None:
        return known
    tensors = offloaded_tensors(model)
    if not tensors:
        raise DeviceError(
            f"[offload] this {type(model).__name__} is not offloaded; call accelera.offload(model, budget) "
            "first"
        )
    keepers = dict.fromkeys(each.keeper for each in tensors)
    return Offloaded(model, tuple(keepers), training=CopiedTraining(model))


def _refuse_what_is_no_module(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"[offload] a {type(model).__name__} is no torch.nn.Module; give the model itself")


def _refuse_twice(model: torch.nn.Module) -> None:
    if _handle_of(model) is not None:
        raise DeviceError(
            f"[offload] this {type(model).__name__} is offloaded already; call "
            "accelera.offloaded(model).restore() first to offload it with another budget"
        )
    for name, tensor in tensors_of(model):
        if isinstance(tensor, OffloadedTensor):
            raise DeviceError(
                f"[offload] {name} of this {type(model).__name__} is offloaded already with another model: a "
                "weight has one budget; call accelera.offload(torch.nn.ModuleList([one, other]), budget) for "
                "models that share weights, or accelera.offloaded(other).restore() first"
            )


def _handle_of(model: torch.nn.Module) -> Offloaded | None:
    """Return the handle with which ``model`` was offloaded, unless it was restored since."""
    known = _HANDLES.get(model)
    return None if known is None or known.restored else known
