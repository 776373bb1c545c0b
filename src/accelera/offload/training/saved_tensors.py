"""Tensors that a forward pass saves for its backward pass: kept, packed, recomputed or in the pool."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from accelera.errors import StateError
from accelera.offload.block_cache import BlockCache
from accelera.offload.op_schema import device_of, is_plain
from accelera.offload.tensor import OffloadedTensor, new_tensor
from accelera.offload.training.activation_plan import ActivationPlan, Fate, StepRecord, StepRecorder
from accelera.offload.training.tape import ForwardTape, View, recomputed

if TYPE_CHECKING:
    from accelera.offload.allocation_scope import AllocationScope


@dataclass(frozen=True, eq=False)
class SavedValues:
    """The values of a tensor that a node saved."""

    values: OffloadedTensor
    """Without repetition, axes by falling stride."""
    order: tuple[int, ...]
    """For each axis of ``values``, the axis of the tensor."""
    sizes: tuple[int, ...]
    storage: StorageWeakRef
    """While this is held, no other storage gets the same address."""

    def tensor(self) -> torch.Tensor:
        """Return an ordinary tensor with the saved values."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return self.values.materialized().permute(back).expand(self.sizes)


def save_values(tensor: torch.Tensor, cache: BlockCache) -> SavedValues:
    """Copy the values of ``tensor`` into the pool."""
    order = tuple(sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True))
    plain = distinct(tensor.detach()).permute(order)
    with torch.no_grad():
        kept = new_tensor(cache, plain.shape, plain.dtype, name="saved", role="activation")
        kept.copy_(plain)
    return SavedValues(kept, order, tuple(tensor.shape), StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of an expanded tensor that is in memory: one index along axes of stride zero."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


@dataclass(frozen=True, eq=False)
class PooledStorage:
    """The bytes of a storage in the pool."""

    values: OffloadedTensor

    def storage(self) -> torch.UntypedStorage:
        """Return the bytes in memory again."""
        return self.values.materialized().untyped_storage()


@dataclass(frozen=True, eq=False)
class PackedStorage:
    """A storage whose elements are zero or one number, as a mask and that number."""

    mask: torch.Tensor
    number: torch.Tensor

    def storage(self) -> torch.UntypedStorage:
        """Return the elements again."""
        return (self.mask * self.number).untyped_storage()


def save_storage(tensor: torch.Tensor, cache: BlockCache, *, pack: bool) -> PooledStorage | PackedStorage:
    """Put the whole storage under ``tensor`` into the pool, or ``pack`` it where it is."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))
    with torch.no_grad():
        if pack:
            return PackedStorage(flat.bool(), flat.max())
        kept = new_tensor(cache, flat.shape, flat.dtype, name="saved", role="activation")
        kept.copy_(flat)
    return PooledStorage(kept)


Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class KeptTensor:
    """A saved tensor that stays where it is, and the version that it had."""

    tensor: torch.Tensor
    version: int
    owner: ForwardPass
    value: SavedValue | None = None

    def unpacked(self) -> torch.Tensor:
        """Return the tensor; raises RuntimeError, as autograd does, when it was changed in place since."""
        if self.tensor._version != self.version:
            raise StateError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: [{self.tensor.type()} {list(self.tensor.shape)}] is at version "
                f"{self.tensor._version}; expected version {self.version} instead. Hint: enable anomaly "
                "detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
        return self.tensor


@dataclass(frozen=True, eq=False)
class PooledTensor:
    """A saved tensor whose values are in the pool."""

    values: SavedValues
    owner: ForwardPass
    number: int

    def unpacked(self) -> torch.Tensor:
        """Return an ordinary tensor with the saved values."""
        return self.owner.materialized(self)


@dataclass(frozen=True, eq=False)
class ValueTensor:
    """A saved tensor that sees a part of a value of the tape."""

    view: View
    value: SavedValue
    owner: ForwardPass

    def unpacked(self) -> torch.Tensor:
        """Return an ordinary tensor over the value, made again if it is not there."""
        return self.view.of(self.owner.storage_of(self.value))


@final
class SavedValue:
    """A value of the tape that nodes of the graph need; it ends with the last of them."""

    __slots__ = ("__weakref__", "fate", "number", "pooled", "sources", "storage")

    def __init__(self, number: int, fate: Fate) -> None:
        self.number = number
        self.fate = fate
        self.storage: torch.UntypedStorage | None = None
        """Its bytes where they are in memory."""
        self.pooled: Any = None
        """Holder that returns the bytes, where they are not in memory."""
        self.sources: list[SavedValue] = []
        """Values that it is recomputed from."""

    @property
    def is_missing(self) -> bool:
        """Whether its bytes have to be computed."""
        return self.storage is None and self.pooled is None


@final
class ForwardPass:
    """One forward pass with gradients: its tape, what it saved, and the time until its graph is gone.

    Parameters
    ----------
    cache
        The pool.
    scope
        Scope that charges the backward pass to the budget.
    plan
        What becomes of each value; None: all of at least ``least_bytes`` go to the pool.
    tape
        The tape of the pass; None when nothing is ever recomputed.
    recorder
        What notes when saved values are needed, for a plan.
    finish
        Is called with the record when the backward pass is over.
    keeps
        Whether saved tensors stay where they are.
    here
        Returns the cache to whose pool tensors go now; None: always to ``cache``.
    """

    def __init__(
        self,
        cache: BlockCache,
        scope: AllocationScope,
        plan: ActivationPlan | None = None,
        tape: ForwardTape | None = None,
        recorder: StepRecorder | None = None,
        finish: Callable[[StepRecord], None] | None = None,
        *,
        keeps: bool = False,
        here: Callable[[], BlockCache] | None = None,
    ) -> None:
        self._cache = cache
        self._here = here
        self._keeps = keeps
        self._scope = scope
        self._plan = plan
        self._tape = tape
        self._recorder = recorder
        self._finish = finish
        self._pooled: weakref.WeakValueDictionary[Key, PooledTensor] = weakref.WeakValueDictionary()
        self._values: weakref.WeakValueDictionary[int, SavedValue] = weakref.WeakValueDictionary()
        self._waiting: dict[int, list[weakref.ref[SavedValue]]] = defaultdict(list)
        self._backward_id = -1

    def __enter__(self) -> ForwardPass:
        """Handle what autograd saves from now on."""
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        if self._tape is not None:
            self._tape.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        """Take in no more."""
        if self._tape is not None:
            self._tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._hooks.__exit__()
        del self._hooks

    def storage_of(self, saved: SavedValue) -> torch.UntypedStorage:
        """Return the bytes of a value, brought or computed again if they are not there."""
        if saved.storage is None:
            if saved.pooled is not None:
                saved.storage = saved.pooled.storage()
            else:
                self._recompute(saved)
        assert saved.storage is not None
        return saved.storage

    def materialized(self, pooled: PooledTensor) -> torch.Tensor:
        """Return an ordinary tensor with values that are in the pool."""
        if self._recorder is None:
            return pooled.values.tensor()
        return self._recorder.needed(pooled.number, pooled.values.tensor)

    def _pack(self, tensor: torch.Tensor) -> Any:
        cache = self._cache if self._here is None else self._here()
        if self._keeps or not is_large(tensor, cache):
            return self._keep(tensor)
        if self._tape is None:
            return self._save_to_pool(tensor, cache)
        with self._tape.paused():
            return self._save_to_pool(tensor, cache) if self._plan is None else self._save_by_plan(tensor)

    def _save_by_plan(self, tensor: torch.Tensor) -> Any:
        assert self._tape is not None
        assert self._plan is not None
        view = self._tape.view_of(tensor)
        fate = self._plan.fate_of(view.value, self._tape)
        if fate is Fate.KEEP:
            return self._keep(tensor, self._saved_value(view.value, fate, tensor))
        return ValueTensor(view, self._saved_value(view.value, fate, tensor), self)

    def _unpack(self, packed: Any) -> torch.Tensor:
        self._note_backward()
        tensor: torch.Tensor = packed.unpacked()
        return tensor

    def _keep(self, tensor: torch.Tensor, value: SavedValue | None = None) -> KeptTensor:
        alone = tensor if tensor.grad_fn is None else tensor.detach()
        return KeptTensor(alone, tensor._version, self, value)

    def _save_to_pool(self, tensor: torch.Tensor, cache: BlockCache) -> PooledTensor:
        """Save the values of ``tensor``, the same ones once."""
        key = _view_key(tensor)
        pooled = self._pooled.get(key)
        if pooled is None:
            number = -1 if self._recorder is None else self._recorder.saved(tensor)
            values = save_values(tensor, cache)
            pooled = self._pooled[key] = PooledTensor(values, self, number)
        return pooled

    def _saved_value(self, number: int, fate: Fate, tensor: torch.Tensor) -> SavedValue:
        saved = self._values.get(number)
        if saved is None:
            saved = self._values[number] = SavedValue(number, fate)
            self._link_sources(saved)
            if fate is Fate.KEEP:
                saved.storage = tensor.untyped_storage()
            elif fate is not Fate.RECOMPUTE:
                saved.pooled = save_storage(tensor, self._cache, pack=fate is Fate.PACK)
        return saved

    def _link_sources(self, saved: SavedValue) -> None:
        """Make recomputed values hold references to their sources, in whichever order they are saved."""
        assert self._plan is not None
        for source in self._plan.sources.get(saved.number, ()) if saved.fate is Fate.RECOMPUTE else ():
            known = self._values.get(source)
            if known is not None:
                saved.sources.append(known)
            else:
                self._waiting[source].append(weakref.ref(saved))
        for waiting in self._waiting.pop(saved.number, ()):
            target = waiting()
            if target is not None:
                target.sources.append(saved)

    def _recompute(self, saved: SavedValue) -> None:
        assert self._tape is not None
        missing = {number for number, each in self._values.items() if each.is_missing}
        for number, storage in recomputed(
            self._tape, saved.number, self._storage_if_available, missing
        ).items():
            alive = self._values.get(number)
            if alive is not None:
                alive.storage = storage
                alive.sources.clear()

    def _storage_if_available(self, number: int) -> torch.UntypedStorage | None:
        saved = self._values.get(number)
        if saved is None or saved.is_missing:
            return None
        return self.storage_of(saved)

    def _note_backward(self) -> None:
        """Charge the model for a backward pass, and register a callback for the end of a recorded one."""
        self._scope.open_for_backward()
        current = torch._C._current_graph_task_id()
        if current in (-1, self._backward_id):
            return
        self._backward_id = current
        if self._recorder is None:
            return
        backward = _BackwardPass(self._recorder, self._finish)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(backward)
        self._recorder.in_backward = True


@final
class _BackwardPass:
    """Callback of a backward pass; autograd drops it when the pass is over, also by an error."""

    def __init__(self, recorder: StepRecorder, finish: Callable[[StepRecord], None] | None) -> None:
        self._recorder = recorder
        self._finish = finish

    def __call__(self) -> None:
        if self._finish is not None and self._recorder.active:
            self._finish(self._recorder.finish())


def is_large(tensor: torch.Tensor, cache: BlockCache) -> bool:
    """Return whether ``tensor`` is an ordinary one of ``cache.least_bytes`` or more."""
    return (
        is_plain(tensor)
        and device_of(tensor) == cache.device
        and distinct(tensor).numel() * tensor.element_size() >= cache.least_bytes
    )


def _view_key(tensor: torch.Tensor) -> Key:
    """Name the values: one view of one storage at one version."""
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor._version)
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
