"""Front doors of offload: a module, or a checkpoint, whose weights come to memory only when they are used."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from accelera.capture._internal import refuse_lazy_layers
from accelera.devices import Device
from accelera.errors import ArgumentError, DeviceError, DTypeError
from accelera.memory._internal import trim_heap
from accelera.offload.backing import BackingStores, RamBacking
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import block_bytes_of
from accelera.offload.budgets import SPARE_BYTES, DeviceBudget, DeviceBudgets, require_floor, reserved_on
from accelera.offload.checkpoints.hub import checkpoint_folder
from accelera.offload.checkpoints.load import (
    architecture_of,
    config_of,
    fill,
    generate_as,
    listed,
    matched,
    skeleton_of,
)
from accelera.offload.checkpoints.shards import Shards
from accelera.offload.config import CacheBudget, OffloadConfig
from accelera.offload.device_memory import tensor_device
from accelera.offload.handle import Offloaded
from accelera.offload.module import guard_device, offloaded_tensors, swap_in, swap_in_by, tensors_of
from accelera.offload.multi_device import DeviceTransfers, UnitHooks, assigned
from accelera.offload.op_schema import infer_meta
from accelera.offload.planning.dry_run import DryRunSetup
from accelera.offload.planning.planner import planned, refuse_wrong_kinds
from accelera.offload.set_data import refuse_offloaded_data
from accelera.offload.tensor import OffloadedTensor, check_values, wrap
from accelera.offload.training.activation_choice import Planned
from accelera.offload.training.hooks import CopiedTraining, Training, check_activations

if TYPE_CHECKING:
    from accelera.offload.planning.plan import OffloadPlan
    from accelera.simulator import Advice


Model = TypeVar("Model", bound=torch.nn.Module)

_LOGGER = logging.getLogger("accelera.offload")

_HANDLES: WeakKeyDictionary[torch.nn.Module, Offloaded] = WeakKeyDictionary()

RESERVED_FRACTION = 0.25
"""Share of the budget that is left for activations and temporaries when there are no inputs to plan with.

Of a small budget it is what every model takes besides blocks, and a little.
"""


def offload(
    model: Model,
    budget: int | float | str | Mapping[Any, Any] | None = None,
    store: str | Path | None = None,
    *,
    inputs: Any = None,
    device: Any = None,
    policy: str | None = None,
    advice: Advice | None = None,
    activations: str = "auto",
    record: bool = False,
) -> Model:
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
    _check_is_module(model)
    _check_not_offloaded(model)
    refuse_lazy_layers("offload", model)
    check_activations(model, activations)
    for name, tensor in tensors_of(model):
        check_values(tensor, name)
    budgets = DeviceBudgets.parse("offload", budget, model, device)
    named = policy or (advice.causal_policy if advice is not None else "loop")
    config = OffloadConfig(
        policy=named, store=store, activations=activations, record=record, train=model.training
    )
    if len(budgets.computing) > 1:
        _refuse_inputs(inputs)
        return _offload_over_devices(model, budgets, config)
    cache, plan = planned_cache("offload", model, inputs, budgets, config)
    swap_in(model, cache)
    return hand_over(model, cache, plan, activations)


def planned_cache(
    op: str, model: torch.nn.Module, inputs: Any, budgets: DeviceBudgets, config: OffloadConfig
) -> tuple[BlockCache, OffloadPlan | None]:
    """Return the cache of a model on one device, and the plan by which it is made if there are ``inputs``.

    Raises BudgetExceededError for a budget in which no operation fits.
    """
    place, limit = budgets.only(op)
    plan = None
    if inputs is not None:
        refuse_wrong_kinds(model, inputs, limit)
        plan = planned(DryRunSetup(model, inputs, "adamw", None, tensor_device(place), config), budgets)
    else:
        require_floor(op, limit, [tensor for _, tensor in tensors_of(model)], place, train=config.train)
    return cache_for(budgets.computing[0], plan, config, budgets.backing(config.store)), plan


def _refuse_inputs(inputs: Any) -> None:
    if inputs is not None:
        raise ArgumentError(
            "[offload] inputs= beside budgets of several accelerators: a plan is of one; leave inputs= out"
        )


def _offload_over_devices(model: Model, budgets: DeviceBudgets, config: OffloadConfig) -> Model:
    """Offload ``model`` with units on each device in proportion to the budgets; return it."""
    assignment = assigned(model, [each.limit_bytes for each in budgets.computing])
    for number in assignment.devices:
        one = budgets.computing[number]
        there = [tensor for name, tensor in tensors_of(model) if assignment.tensors[name] == number]
        require_floor("offload", one.limit_bytes, there, one.device, train=config.train)
    backing = budgets.backing(config.store)
    caches = {
        number: cache_for(budgets.computing[number], None, config, backing) for number in assignment.devices
    }
    swap_in_by(model, lambda name: caches[assignment.tensors[name]])
    places = {number: place for place, number in enumerate(caches)}
    transfers = DeviceTransfers(list(caches.values()))
    hooks = [UnitHooks(transfers, places[number]).put_on(unit) for unit, number in assignment.units]
    transfers.handles = [each for both in hooks for each in both]
    return hand_over(model, transfers.caches[0], None, config.activations, transfers)


def cache_for(
    budget: DeviceBudget, plan: OffloadPlan | None, config: OffloadConfig, backing: BackingStores | None
) -> BlockCache:
    """Return the cache for a budget: with the room that ``plan`` found, else a usual share.

    ``backing``: None for what ``config`` says.
    """
    load_code()
    refuse_offloaded_data()
    place, limit = budget.device, budget.limit_bytes
    capacity = _default_capacity(limit, place) if plan is None else plan.capacity_bytes
    block_bytes = block_bytes_of(capacity, train=config.train) if plan is None else plan.block_bytes
    return BlockCache(
        capacity,
        replace(config, block_bytes=block_bytes),
        budget=CacheBudget(limit, sum(reserved_on(place).values()), planned=plan is not None),
        device=place,
        backing=backing,
    )


def _default_capacity(limit_bytes: int, place: Device) -> int:
    """Return what is left for blocks: ``RESERVED_FRACTION`` less, more of a small budget."""
    fixed = sum(reserved_on(place).values()) + SPARE_BYTES
    return limit_bytes - max(int(limit_bytes * RESERVED_FRACTION), fixed)


def hand_over(
    model: Model,
    cache: BlockCache,
    plan: OffloadPlan | None,
    activations: str,
    transfers: DeviceTransfers | None = None,
) -> Model:
    """Return ``model``, whose tensors are with ``cache``, with its handle and the hooks for training.

    With ``transfers``, they are with several, of which ``cache`` is the first.
    """
    caches = (cache,) if transfers is None else transfers.caches
    for kind in {each.device.type for each in caches}:
        if kind == "cpu":
            trim_heap()
        elif hasattr(module := torch.get_device_module(kind), "empty_cache"):
            module.empty_cache()
    guard_device(model)
    planned = None
    if plan is not None and plan.activation_plan is not None:
        planned = Planned(plan.signature, plan.activation_plan)
    training = Training(model, cache, activations, planned=planned, transfers=transfers)
    _HANDLES[model] = Offloaded(model, caches, plan, training)
    return model


def offload_checkpoint(
    folder: str | Path,
    model_class: Any = None,
    config: Any = None,
    *,
    budget: int | float | str | Mapping[Any, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    store: str | Path | None = None,
    inputs: Any = None,
    device: Any = None,
    policy: str = "loop",
    activations: str = "auto",
    record: bool = False,
) -> torch.nn.Module:
    """Open a checkpoint as an offloaded model, in evaluation mode; no weight is loaded before it is used.

    Parameters
    ----------
    folder
        What ``save_pretrained`` wrote: ``model.safetensors`` or shards with their index, and ``config.json``;
        or any folder with one ``.safetensors`` file. The name of a repository, such as ``"lab/model"``, is
        its snapshot in the local cache of Hugging Face; nothing is downloaded.
    model_class
        A class of ``transformers``, its ``Auto`` classes among them; another module's class or a function,
        called with ``config`` if there is one; None: the architecture that ``config.json`` names.
    config
        What ``model_class`` is built with; None: from ``config.json``, where there is one.
    budget, store, inputs, device, policy, activations, record
        As ``offload`` takes them. ``store`` is for what is written; the checkpoint's files stay as they are.
    dtype
        Element type of the floating-point weights; those of another type are converted, into ``store``.
        None leaves them as they are stored.

    Raises
    ------
    StoreError
        Files or tensors are missing; the message names them. Tensors that the model does not have are told
        in a warning.
    StoreFormatError
        A damaged file, a configuration among them, or a checkpoint of pickles.
    ShapeError
        Tensors of other shapes than the model's.
    DTypeError
        Tensors of another kind of number than the model's, such as integers; a ``dtype`` that PyTorch does
        not have, or that is not a floating-point one.
    BudgetExceededError
        The model does not run in the budget; the message names one in which it does.
    """
    place = checkpoint_folder(folder)
    shards = Shards(place)
    wanted = _named_dtype(dtype)
    build, built_in = _builder(place, model_class, config, shards)
    model = skeleton_of(build, wanted or built_in).eval()
    found = matched(model, shards)
    check_activations(model, activations)
    _warn_of_unexpected(found.unexpected, place, model)
    budgets = DeviceBudgets.parse("offload_checkpoint", budget, model, device)
    options = OffloadConfig(policy=policy, store=store, activations=activations, record=record)
    cache, plan = planned_cache("offload_checkpoint", model, inputs, budgets, options)
    fill(found, cache, wanted)
    generate_as(place, model)
    return hand_over(model, cache, plan, activations)


def _named_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the element type that is asked for, by torch's name for it or by itself."""
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or (isinstance(named, torch.dtype) and named.is_floating_point):
        return named
    raise DTypeError(
        f"[offload_checkpoint] dtype={dtype!r} is no floating-point type of torch; name one such as "
        "'bfloat16', 'float16' or 'float32', or leave the weights as they are stored"
    )


def _builder(
    folder: Path, model_class: Any, config: Any, shards: Shards
) -> tuple[Callable[[], Any], torch.dtype | None]:
    """Return what builds the model, and the element type that the checkpoint asks for."""
    if config is None:
        config = config_of(folder)
    if model_class is None:
        model_class = architecture_of(folder, config)
    stored = _stored_dtype(shards)
    if hasattr(model_class, "from_config"):
        return partial(model_class.from_config, config, dtype=stored), stored
    return (model_class if config is None else partial(model_class, config)), stored


def _stored_dtype(shards: Shards) -> torch.dtype | None:
    """Return the element type of most floating-point bytes, None when there is none to build in."""
    sizes: dict[torch.dtype, int] = {}
    for name in shards.names():
        stored = shards[name]
        if stored.dtype.is_floating_point and stored.dtype.itemsize > 1:
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + stored.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def _warn_of_unexpected(unexpected: tuple[str, ...], folder: Path, model: torch.nn.Module) -> None:
    if unexpected:
        text = (
            f"[offload_checkpoint] {folder} has {len(unexpected)} tensors that {type(model).__name__} does "
            f"not have, which are left out: {listed(unexpected)}"
        )
        _LOGGER.warning(text)
        warnings.warn(text, stacklevel=3)


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
    caches = dict.fromkeys(each.cache for each in tensors)
    return Offloaded(model, tuple(caches), training=CopiedTraining(model))


def _check_is_module(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"[offload] a {type(model).__name__} is no torch.nn.Module; give the model itself"
        )


def _check_not_offloaded(model: torch.nn.Module) -> None:
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


aten = torch.ops.aten


@cache
def load_code() -> None:
    """Carry out one small product with an offloaded weight, and one on shapes.

    The first one in a process makes PyTorch load some thousand modules, which take about 100 MiB.
    """
    cache = BlockCache(1 << 16, backing=RamBacking())
    bias, rows = torch.zeros(2, device="cpu"), torch.zeros(1, 2, device="cpu")
    weight = torch.zeros(2, 2, device="cpu")
    with torch.no_grad():
        aten.addmm.default(bias, rows, wrap(cache, weight))
        infer_meta(aten.addmm.default, (bias, rows, weight), {})
    cache.close()
