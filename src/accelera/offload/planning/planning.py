"""Plans of offloaded models: memory, traffic and time inside a budget, before anything is moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from accelera.offload.device_budgets import DeviceBudgets
from accelera.offload.keeping.keeper import LEAST_BYTES
from accelera.offload.places import tensor_device
from accelera.offload.planning.dry_run import Scene
from accelera.offload.planning.fitting import Fitted, Fitting, offload_price_s
from accelera.offload.planning.fixed import reserved_on
from accelera.offload.planning.offload_plan import OffloadPlan
from accelera.offload.planning.pool_replay import replay
from accelera.offload.planning.progress import planning_progress
from accelera.offload.planning.timing import Rates

PASSES = 4
"""Passes planned: in the second the order of use is known, the last stands for all that follow."""


def plan_offload(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Any,
    budget: int | float | str | Mapping[Any, Any] | None = None,
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
        Most bytes of the device's memory, as ``offload`` takes it; by device, of one accelerator and
        ``"cpu"``.
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
    budgets = DeviceBudgets.parse("plan_offload", budget, model, device)
    place, limit = budgets.only("plan_offload")
    scene = Scene(
        model,
        inputs,
        training,
        optimizer,
        loss,
        activations,
        policy,
        tensor_device(place),
        LEAST_BYTES,
    )
    with planning_progress(type(model).__name__) as tell:
        fitting = Fitting(scene, sum(reserved_on(place).values()), offload_price_s(place, store), tell)
        found = fitting.within(limit)
        tell("replaying")
        return _plan(scene, budgets, store, found, passes, fitting.least_later())


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
    if isinstance(budget, (torch.Tensor, tuple, list)):
        raise TypeError(
            f"[plan_offload] budget is of type {type(budget).__name__}: give bytes, a share, or text such as "
            "'2GiB'; the order is plan_offload(model, inputs, budget)"
        )


def _slowest_home(budgets: DeviceBudgets, store: str | Path | None, weights_bytes: int) -> str:
    """Return where the last of the weights live beside the device: ``"ram"`` or ``"disk"``."""
    if budgets.ram_bytes is not None:
        return "ram" if weights_bytes <= budgets.ram_bytes else "disk"
    return "disk" if budgets.computing[0].device.host_memory or store is not None else "ram"


def _trains(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and model.training


def _plan(
    scene: Scene,
    budgets: DeviceBudgets,
    store: str | Path | None,
    found: Fitted,
    passes: int,
    find_least: Callable[[], int],
) -> OffloadPlan:
    run, (device, limit) = found.run, budgets.only("plan_offload")
    home = _slowest_home(budgets, store, run.weights_bytes)
    replayed = replay(run, found.capacity_bytes, scene.policy, passes, found.plans, found.plan)
    return OffloadPlan(
        model=run.model,
        train=scene.train,
        budget_bytes=limit,
        tier="ram" if device.host_memory else device.name,
        home=home,
        policy=scene.policy,
        activations=scene.activations,
        capacity_bytes=found.capacity_bytes,
        block_bytes=run.block_bytes,
        reserved={"activations and temporaries": found.ordinary_bytes, **reserved_on(device)},
        weights_bytes=run.weights_bytes,
        kept_bytes=run.kept_bytes,
        pool_bytes=replayed.pool_bytes,
        peak_pool_bytes=replayed.peak_pool_bytes,
        passes=replayed.passes,
        ordinary_peak_op=found.ordinary_op,
        trace=replayed.trace,
        rates=Rates(device, None if store is None else str(store), home),
        find_least=find_least,
        activation_plan=found.plan,
        signature=run.signature,
    )
