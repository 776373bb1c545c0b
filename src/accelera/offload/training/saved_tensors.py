"""Tensors that a forward pass saves for its backward pass: kept, packed, recomputed or in the pool."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks

from accelera.offload.keeping.plain import device_of, is_plain
from accelera.offload.training.activation_plan import ActivationPlan, Fate
from accelera.offload.training.recomputation import recomputed
from accelera.offload.training.saved_values import SavedValues, distinct, save_storage, save_values
from accelera.offload.training.tape import Tape, View

if TYPE_CHECKING:
    from accelera.offload.keeping.allocation_scope import ScopeEntry
    from accelera.offload.keeping.keeper import Keeper
    from accelera.offload.training.step_record import StepRecord, StepRecorder

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
            raise RuntimeError(
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
        """Its bytes where they are not: what gives them back."""
        self.sources: list[SavedValue] = []
        """What it is computed from again."""

    @property
    def is_missing(self) -> bool:
        """Whether its bytes have to be computed."""
        return self.storage is None and self.pooled is None


@final
class ForwardPass:
    """One forward pass with gradients: its tape, what it saved, and the time until its graph is gone.

    Parameters
    ----------
    keeper
        The pool.
    entry
        The time for which allocations of this thread count against the budget.
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
        Returns the keeper to whose pool tensors go now; None: always to ``keeper``.
    """

    def __init__(
        self,
        keeper: Keeper,
        entry: ScopeEntry,
        plan: ActivationPlan | None = None,
        tape: Tape | None = None,
        recorder: StepRecorder | None = None,
        finish: Callable[[StepRecord], None] | None = None,
        *,
        keeps: bool = False,
        here: Callable[[], Keeper] | None = None,
    ) -> None:
        self._keeper = keeper
        self._here = here
        self._keeps = keeps
        self._entry = entry
        self._plan = plan
        self._tape = tape
        self._recorder = recorder
        self._finish = finish
        self._pooled: weakref.WeakValueDictionary[Key, PooledTensor] = weakref.WeakValueDictionary()
        self._values: weakref.WeakValueDictionary[int, SavedValue] = weakref.WeakValueDictionary()
        self._waiting: dict[int, list[weakref.ref[SavedValue]]] = defaultdict(list)
        self._backward_id = -1

    def __enter__(self) -> ForwardPass:
        """Take in what autograd saves from here on."""
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
        keeper = self._keeper if self._here is None else self._here()
        if self._keeps or not is_large(tensor, keeper):
            return self._kept(tensor)
        if self._tape is None:
            return self._to_pool(tensor, keeper)
        with self._tape.paused():
            return self._to_pool(tensor, keeper) if self._plan is None else self._as_planned(tensor)

    def _as_planned(self, tensor: torch.Tensor) -> Any:
        assert self._tape is not None
        assert self._plan is not None
        view = self._tape.view_of(tensor)
        fate = self._plan.fate_of(view.value, self._tape)
        if fate is Fate.KEEP:
            return self._kept(tensor, self._saved(view.value, fate, tensor))
        return ValueTensor(view, self._saved(view.value, fate, tensor), self)

    def _unpack(self, packed: Any) -> torch.Tensor:
        self._note_backward()
        tensor: torch.Tensor = packed.unpacked()
        return tensor

    def _kept(self, tensor: torch.Tensor, value: SavedValue | None = None) -> KeptTensor:
        alone = tensor if tensor.grad_fn is None else tensor.detach()
        return KeptTensor(alone, tensor._version, self, value)

    def _to_pool(self, tensor: torch.Tensor, keeper: Keeper) -> PooledTensor:
        """Save the values of ``tensor``, the same ones once."""
        key = _key(tensor)
        pooled = self._pooled.get(key)
        if pooled is None:
            number = -1 if self._recorder is None else self._recorder.saved(tensor)
            values = save_values(tensor, keeper)
            pooled = self._pooled[key] = PooledTensor(values, self, number)
        return pooled

    def _saved(self, number: int, fate: Fate, tensor: torch.Tensor) -> SavedValue:
        saved = self._values.get(number)
        if saved is None:
            saved = self._values[number] = SavedValue(number, fate)
            self._link(saved)
            if fate is Fate.KEEP:
                saved.storage = tensor.untyped_storage()
            elif fate is not Fate.RECOMPUTE:
                saved.pooled = save_storage(tensor, self._keeper, pack=fate is Fate.PACK)
        return saved

    def _link(self, saved: SavedValue) -> None:
        """Let values that are computed again hold what they are computed from, whichever is saved first."""
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
        for number, storage in recomputed(self._tape, saved.number, self._found, missing).items():
            alive = self._values.get(number)
            if alive is not None:
                alive.storage = storage
                alive.sources.clear()

    def _found(self, number: int) -> torch.UntypedStorage | None:
        saved = self._values.get(number)
        if saved is None or saved.is_missing:
            return None
        return self.storage_of(saved)

    def _note_backward(self) -> None:
        """Take note that a backward pass has begun, and of its end when that comes."""
        current = torch._C._current_graph_task_id()
        if current in (-1, self._backward_id):
            return
        self._backward_id = current
        if not self._entry.is_open:
            self._entry = self._entry.scope.open("training")
            self._entry.linger()
        backward = _BackwardPass(self._recorder, self._finish)
        self._entry.until_end_of(backward)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(backward)
        if self._recorder is not None:
            self._recorder.in_backward = True


@final
class _BackwardPass:
    """Callback of a backward pass; autograd drops it when the pass is over, also by an error."""

    def __init__(self, recorder: StepRecorder | None, finish: Callable[[StepRecord], None] | None) -> None:
        self._recorder = recorder
        self._finish = finish

    def __call__(self) -> None:
        if self._recorder is not None and self._finish is not None and self._recorder.active:
            self._finish(self._recorder.finish())


def is_large(tensor: torch.Tensor, keeper: Keeper) -> bool:
    """Whether ``tensor`` is an ordinary one of ``keeper.least_bytes`` or more."""
    return (
        is_plain(tensor)
        and device_of(tensor) == keeper.device
        and distinct(tensor).numel() * tensor.element_size() >= keeper.least_bytes
    )


def _key(tensor: torch.Tensor) -> Key:
    """Name the values: one view of one storage at one version."""
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor._version)
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)
