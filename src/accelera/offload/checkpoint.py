"""``offload_checkpoint``: a model whose weights stay in the files where they are."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accelera.errors import DTypeError
from accelera.offload.checkpoints.configuring import architecture_of, config_of, generate_as
from accelera.offload.checkpoints.filling import fill
from accelera.offload.checkpoints.naming import listed, matched
from accelera.offload.checkpoints.shards import Shards
from accelera.offload.checkpoints.skeleton import skeleton_of
from accelera.offload.device_budgets import DeviceBudgets
from accelera.offload.offloading import handed_over, keeper_for
from accelera.offload.planning.fixed import require_floor
from accelera.offload.planning.planning import plan_offload
from accelera.offload.tensors.taking import tensors_of
from accelera.offload.training.training import check_activations

_LOG = logging.getLogger(__name__)


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
        or any folder with one ``.safetensors`` file.
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
    place = Path(folder)
    shards = Shards(place)
    wanted = _floating(dtype)
    build, built_in = _builder(place, model_class, config, shards)
    model = skeleton_of(build, wanted or built_in).eval()
    found = matched(model, shards)
    check_activations(model, activations)
    _warn(found.unexpected, place, model)
    budgets = DeviceBudgets.parse("offload_checkpoint", budget, model, device)
    computes, limit = budgets.only("offload_checkpoint")
    plan = None
    if inputs is not None:
        plan = plan_offload(
            model,
            inputs,
            budget if isinstance(budget, Mapping) else limit,
            store=store,
            device=device,
            policy=policy,
            activations=activations,
        )
    else:
        weights = [tensor for _, tensor in tensors_of(model)]
        require_floor("offload_checkpoint", limit, weights, computes, train=False)
    homes = budgets.homes(store)
    keeper = keeper_for(
        limit, plan, train=False, policy=policy, store=store, place=computes, record=record, homes=homes
    )
    fill(found, keeper, wanted)
    generate_as(place, model)
    return handed_over(model, keeper, plan, activations)


def _floating(dtype: torch.dtype | str | None) -> torch.dtype | None:
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
    stored = _floating_dtype(shards)
    if hasattr(model_class, "from_config"):
        return partial(model_class.from_config, config, dtype=stored), stored
    return (model_class if config is None else partial(model_class, config)), stored


def _floating_dtype(shards: Shards) -> torch.dtype | None:
    """Return the element type of most floating-point bytes, None when there is none to build in."""
    sizes: dict[torch.dtype, int] = {}
    for name in shards.names():
        stored = shards[name]
        if stored.dtype.is_floating_point and stored.dtype.itemsize > 1:
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + stored.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def _warn(unexpected: tuple[str, ...], folder: Path, model: torch.nn.Module) -> None:
    if unexpected:
        text = (
            f"[offload_checkpoint] {folder} has {len(unexpected)} tensors that {type(model).__name__} does "
            f"not have, which are left out: {listed(unexpected)}"
        )
        _LOG.warning(text)
        warnings.warn(text, stacklevel=3)
