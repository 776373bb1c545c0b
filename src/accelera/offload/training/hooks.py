"""Training hooks of an offloaded model: recomputed blocks, gradients and optimizer states, activations."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from accelera.errors import ArgumentError, DTypeError, UnknownNameError
from accelera.offload.allocation_scope import AllocationScope, ScopeEntry
from accelera.offload.block_cache import BlockCache
from accelera.offload.multi_device import DeviceTransfers, UnitHooks
from accelera.offload.tensor import OffloadedTensor, can_be_offloaded, new_tensor, wrap
from accelera.offload.training.activation_choice import ActivationChoice, Planned, signature_of_inputs
from accelera.offload.training.graph_boundary import GraphOfForward
from accelera.offload.training.saved_tensors import ForwardPass

CHOICES = ("auto", "offload", "recompute", "keep")
"""Choices for the activations that a backward pass needs.

``auto``: each is kept, packed, recomputed or offloaded, by what it costs. ``offload``: large ones go to the
pool. ``recompute``: of repeated blocks only the inputs are kept, in the pool. ``keep``: they stay in memory.
"""


def check_activations(model: torch.nn.Module, activations: str) -> None:
    """Raise UnknownNameError for no choice, ValueError for one that has nothing to recompute in ``model``."""
    if activations not in CHOICES:
        raise UnknownNameError.among("activations", activations, CHOICES)
    if activations == "recompute":
        repeated_blocks(model)


@final
class Recomputed:
    """The forward of a module, computed again in the backward pass."""

    def __init__(self, block: torch.nn.Module) -> None:
        self._forward: Callable[..., Any] = block.forward
        self._is_own = "forward" in block.__dict__

    def undo(self, block: torch.nn.Module) -> None:
        """Give ``block`` the forward that it had: its class's, or one of its own."""
        del block.__dict__["forward"]
        if self._is_own:
            block.forward = self._forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's own forward; without gradients, nothing is different."""
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, **kwargs)


def recompute_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Make the ``repeated_blocks`` of ``model`` recomputed; return them."""
    blocks = repeated_blocks(model)
    for block in blocks:
        block.forward = Recomputed(block)
    return blocks


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the children of lists and sequences in ``model`` that have one type and weights.

    Raises ValueError when there are none.
    """
    blocks = list(_repeated(model))
    if not blocks:
        raise ArgumentError(
            f"[offload] activations='recompute': {type(model).__name__} has no list of blocks of one type to "
            "compute again; use activations='offload', or torch.utils.checkpoint where it fits"
        )
    return blocks


def keep_blocks(blocks: list[torch.nn.Module]) -> None:
    """Undo ``recompute_blocks``."""
    for block in blocks:
        recomputed = block.__dict__.get("forward")
        if isinstance(recomputed, Recomputed):
            recomputed.undo(block)


def _repeated(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    children = list(module.children())
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and _have_one_type(children):
        yield from children
        return
    for child in children:
        yield from _repeated(child)


def _have_one_type(children: list[torch.nn.Module]) -> bool:
    kinds = {type(child) for child in children}
    return len(children) > 1 and len(kinds) == 1 and any(True for _ in children[0].parameters())


def keep_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Register hooks that move gradients of offloaded parameters to the pool, once per parameter."""
    for parameter in parameters:
        if (
            parameter.requires_grad
            and isinstance(parameter, OffloadedTensor)
            and not _has_gradient_hook(parameter)
        ):
            parameter.register_post_accumulate_grad_hook(move_gradient)  # type: ignore[no-untyped-call]


def move_gradient(parameter: torch.Tensor) -> None:
    """Replace an ordinary ``.grad`` of an offloaded parameter by one in the pool.

    A sparse gradient stays where it is: it has only the rows that were used. Raises DTypeError for a sparse
    gradient of a parameter in several blocks.
    """
    gradient = parameter.grad
    if (
        gradient is None
        or isinstance(gradient, OffloadedTensor)
        or not isinstance(parameter, OffloadedTensor)
    ):
        return
    if gradient.layout != torch.strided:
        _refuse_sparse_in_blocks(parameter)
        return
    name = f"{parameter.blocks[0].name}.grad"
    kept = new_tensor(parameter.cache, gradient.shape, gradient.dtype, name=name, role="gradient")
    with torch.no_grad():
        kept.copy_(gradient)
    parameter.grad = kept


def _has_gradient_hook(parameter: torch.Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    return hooks is not None and move_gradient in hooks.values()


def _refuse_sparse_in_blocks(parameter: OffloadedTensor) -> None:
    if len(parameter.blocks) > 1:
        raise DTypeError(
            f"[backward] the sparse gradient of {parameter.blocks[0].name} {tuple(parameter.shape)}: this "
            f"weight is kept in {len(parameter.blocks)} blocks, and only dense gradients can be; make the "
            "embedding with sparse=False"
        )


@final
class OptimizerStates:
    """Moves optimizer states of offloaded weights to the pool, before every step of any optimizer.

    Active as long as the object is alive. What the step allocates counts in ``scope``.
    """

    def __init__(self, caches: Iterable[BlockCache], scope: AllocationScope) -> None:
        known = weakref.WeakSet(caches)
        self._entries: weakref.WeakKeyDictionary[torch.optim.Optimizer, ScopeEntry]
        self._entries = weakref.WeakKeyDictionary()
        before = register_optimizer_step_pre_hook(
            functools.partial(_before_step, known, scope, self._entries)
        )
        after = register_optimizer_step_post_hook(functools.partial(_after_step, self._entries))
        weakref.finalize(self, before.remove)
        weakref.finalize(self, after.remove)


Entries = MutableMapping[torch.optim.Optimizer, ScopeEntry]


def _before_step(
    known: weakref.WeakSet[BlockCache],
    scope: AllocationScope,
    entries: Entries,
    optimizer: torch.optim.Optimizer,
    *_: Any,
) -> None:
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    ours = [each for each in weights if isinstance(each, OffloadedTensor) and each.cache in known]
    if not ours:
        return
    for weight in ours:
        _move_state(weight, optimizer.state.get(weight, {}))
    entries[optimizer] = entry = scope.open("step")
    entry.linger()  # a step that raises calls no hook


def _after_step(entries: Entries, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    entry = entries.pop(optimizer, None)
    if entry is not None:
        entry.close()


def _move_state(weight: OffloadedTensor, state: dict[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and can_be_offloaded(value):
            title = f"{weight.blocks[0].name}.{name}"
            state[name] = wrap(weight.cache, value, title, "optimizer_state")


@final
class Training:
    """Hooks on the root module, for as long as the model is offloaded."""

    def __init__(
        self,
        model: torch.nn.Module,
        cache: BlockCache,
        activations: str = "auto",
        choice: Any = None,
        planned: Planned | None = None,
        transfers: DeviceTransfers | None = None,
    ) -> None:
        check_activations(model, activations)
        keep_gradients(model.parameters())
        self._blocks = recompute_blocks(model) if activations == "recompute" else []
        self.choice = choice or ActivationChoice(
            cache,
            plans=activations == "auto" and transfers is None,
            keeps=activations == "keep",
            planned=planned,
            here=None if transfers is None else transfers.here,
        )
        self.transfers = transfers
        scope = cache.scope if transfers is None else transfers.scope
        caches = (cache,) if transfers is None else transfers.caches
        forward = _ForwardHooks(scope, self.choice, OptimizerStates(caches, scope), transfers)
        self._handles = [
            model.register_forward_pre_hook(forward.begin, prepend=True, with_kwargs=True),
            model.register_forward_hook(forward.end, always_call=True),
        ]

    def stop(self) -> None:
        """Leave the model as it was; gradients that are in the pool stay there."""
        for handle in (*self._handles, *(() if self.transfers is None else self.transfers.handles)):
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
        for module in model.modules():
            _drop_hooks(module)
        keep_blocks(
            [each for each in model.modules() if isinstance(each.__dict__.get("forward"), Recomputed)]
        )


def _drop_hooks(module: torch.nn.Module) -> None:
    hooks: Any
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [number for number, hook in hooks.items() if _is_ours(hook)]:
            del hooks[number]
            for noted in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
                noted.pop(number, None)


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), (_ForwardHooks, UnitHooks))


@final
class _ForwardHooks:
    """Forward hooks of the root module; they keep the optimizer hooks alive."""

    def __init__(
        self,
        scope: AllocationScope | None,
        choice: ActivationChoice | None,
        states: OptimizerStates | None,
        transfers: DeviceTransfers | None = None,
    ) -> None:
        self._scope = scope
        self._transfers = transfers
        self._choice = choice
        self._states = states
        self._threads = threading.local()

    def begin(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Watch parameters that need gradients now, and take in what autograd saves from here on."""
        if torch.compiler.is_compiling() or self._scope is None:
            return
        if self._transfers is not None:
            self._transfers.scope.charge(0)
        if not torch.is_grad_enabled():
            self._open().append(_OpenForward(self._scope.open("inference")))
            return
        keep_gradients(model.parameters())
        entry = self._scope.open("training")
        one = graph = None
        if self._choice is not None and _may_save():
            one = self._choice.begin(self._scope, signature_of_inputs(args, kwargs))
            graph = GraphOfForward(self._scope, (args, kwargs))
        self._open().append(_OpenForward(entry, one, graph))

    def end(self, model: torch.nn.Module, args: Any, result: Any) -> Any:
        """Take in no more; return the result where the first device is."""
        brought = None if self._transfers is None else self._transfers.bring_back(result)
        if self._open():
            self._open().pop().end(result if brought is None else brought)
        return brought

    def __deepcopy__(self, memo: dict[int, Any]) -> _ForwardHooks:
        """Return the hooks of a copied model: its activations go to the same pool."""
        return _ForwardHooks(self._scope, self._choice, self._states, self._transfers)

    def __reduce__(self) -> Any:
        """Pickle as hooks of a model that is not offloaded."""
        return _ForwardHooks, (None, None, None)

    def _open(self) -> list[_OpenForward]:
        if not hasattr(self._threads, "open"):
            self._threads.open = []
        opened: list[_OpenForward] = self._threads.open
        return opened


@final
class _OpenForward:
    """A forward pass that is under way."""

    def __init__(
        self, entry: ScopeEntry, one: ForwardPass | None = None, graph: GraphOfForward | None = None
    ) -> None:
        self._entry = entry
        self._pass = one
        self._graph = graph
        if one is not None:
            one.__enter__()

    def end(self, result: Any) -> None:
        """Save no more, and let autograd charge the backward pass, unless the forward pass failed."""
        if self._pass is not None:
            self._pass.__exit__(None, None, None)
        if self._graph is None or result is None:
            self._entry.close()
        else:
            self._graph.end(result)
            self._entry.suspend()
        self._pass = None


def _may_save() -> bool:
    """Return whether hooks on saved tensors are allowed now; ``torch.func`` forbids them."""
    autograd: Any = torch._C._autograd
    return bool(autograd._saved_tensors_hooks_is_enabled())
