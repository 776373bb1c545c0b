"""What training needs of an offloaded model: gradients and saved activations go to the pool as well."""

from __future__ import annotations

import threading
import weakref
from typing import Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks

from accelera.errors import UnknownNameError
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.training.activations import Activations
from accelera.offload.training.gradients import keep_gradients
from accelera.offload.training.optimizer_states import OptimizerStates
from accelera.offload.training.recomputing import Recomputed, keep_blocks, recompute_blocks, repeated_blocks

CHOICES = ("auto", "offload", "recompute", "keep")
"""What becomes of the activations that a backward pass needs.

``offload``: large ones go to the pool. ``recompute``: of repeated blocks only the inputs are kept, in the
pool. ``keep``: they stay in memory. ``auto`` is ``offload``.
"""


def check_activations(model: torch.nn.Module, activations: str) -> None:
    """Raise UnknownNameError for no choice, ValueError for one that has nothing to recompute in ``model``."""
    if activations not in CHOICES:
        raise UnknownNameError.among("activations", activations, CHOICES)
    if activations == "recompute":
        repeated_blocks(model)


@final
class Training:
    """Hooks on the root module, for as long as the model is offloaded."""

    def __init__(self, model: torch.nn.Module, keeper: Keeper, activations: str = "auto") -> None:
        check_activations(model, activations)
        keep_gradients(model.parameters())
        self._blocks = recompute_blocks(model) if activations == "recompute" else []
        kept = None if activations == "keep" else Activations(keeper)
        forward = _Forward(kept, OptimizerStates(keeper))
        self._handles = [
            model.register_forward_pre_hook(forward.begin, prepend=True),
            model.register_forward_hook(forward.end, always_call=True),
        ]

    def stop(self) -> None:
        """Leave the model as it was; gradients that are in the pool stay there."""
        for handle in self._handles:
            handle.remove()
        keep_blocks(self._blocks)


@final
class CopiedTraining:
    """The hooks that a copy of an offloaded model got with the copying."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)

    def stop(self) -> None:
        """Leave the copy as the model was before it was offloaded; of a part of a model, all stays."""
        model = self._model()
        if model is None or not any(_is_ours(each) for each in model._forward_pre_hooks.values()):
            return
        for hooks in (model._forward_pre_hooks, model._forward_hooks):
            for number in [number for number, hook in hooks.items() if _is_ours(hook)]:
                del hooks[number]
                model._forward_hooks_always_called.pop(number, None)
        keep_blocks(
            [each for each in model.modules() if isinstance(each.__dict__.get("forward"), Recomputed)]
        )


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), _Forward)


@final
class _Forward:
    """The length of the root module's forward, in each thread; keeps up what looks after optimizers."""

    def __init__(self, activations: Activations | None, states: OptimizerStates | None) -> None:
        self._activations = activations
        self._states = states
        self._threads = threading.local()

    def begin(self, model: torch.nn.Module, args: Any) -> None:
        """Watch parameters that need gradients now, and take in what autograd saves from here on."""
        if torch.compiler.is_compiling():
            return
        saving = None
        if torch.is_grad_enabled():
            keep_gradients(model.parameters())
            saving = self._saving()
        self._open().append(saving)

    def end(self, model: torch.nn.Module, args: Any, result: Any) -> None:
        """Take in no more."""
        if self._open():
            saving = self._open().pop()
            if saving is not None:
                saving.__exit__()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        """Return the hooks of a copied model: its activations go to the same pool."""
        return _Forward(self._activations, self._states)

    def __reduce__(self) -> Any:
        """Pickle as hooks of a model that is not offloaded."""
        return _Forward, (None, None)

    def _open(self) -> list[saved_tensors_hooks | None]:
        if not hasattr(self._threads, "open"):
            self._threads.open = []
        opened: list[saved_tensors_hooks | None] = self._threads.open
        return opened

    def _saving(self) -> saved_tensors_hooks | None:
        """Begin to save, unless nothing may be saved elsewhere now, as in ``torch.func``."""
        if self._activations is None or not _may_save():
            return None
        saving = self._activations.saving()
        saving.__enter__()
        return saving


def _may_save() -> bool:
    """Whether saved tensors may be packed now; ``torch.func`` forbids it."""
    autograd: Any = torch._C._autograd
    return bool(autograd._saved_tensors_hooks_is_enabled())
