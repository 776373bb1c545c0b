"""Saved tensors of a dry run: put away at once, brought back when needed, as in a recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from accelera.offload.planning.ordinary_tensors import OrdinaryTensors
from accelera.offload.planning.recording_keeper import Event, Needed, Notes, Saved, Work
from accelera.offload.training.saved_tensors import is_large
from accelera.offload.training.step_record import SavedUse, StepRecord
from accelera.offload.training.tape import Tape, View

if TYPE_CHECKING:
    from accelera.offload.keeping.allocation_scope import ScopeEntry
    from accelera.offload.training.activation_choice import Signature


@dataclass(frozen=True)
class _PutAway:
    """A saved tensor that is not there."""

    view: View
    use: SavedUse


_FLOPS_PER_S = 1e11
_BYTES_PER_S = 1e10
"""Speeds of a usual machine: what is cheap to compute again hardly depends on them."""


def _seconds(events: Sequence[Event]) -> float:
    """Return the seconds of the arithmetic among ``events``, by a roofline."""
    work = [each for each in events if isinstance(each, Work)]
    return sum(max(each.flops / _FLOPS_PER_S, each.touched_bytes / _BYTES_PER_S) for each in work)


@final
class SavedOnPaper:
    """Takes the place of ``ActivationChoice`` and of the one forward pass that it begins."""

    def __init__(self, keeper: Any, notes: Notes, ordinary: OrdinaryTensors) -> None:
        self.signature: Signature = ()
        self._keeper = keeper
        self._notes = notes
        self._ordinary = ordinary
        self._tape = Tape(lambda: 0.0, lambda: len(notes.events))
        self._uses: list[SavedUse] = []

    def begin(self, entry: ScopeEntry, signature: Signature) -> SavedOnPaper:
        """Begin the forward pass."""
        self.signature = signature
        return self

    def __enter__(self) -> SavedOnPaper:
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        self._tape.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._hooks.__exit__()

    def record(self, kept_bytes: int, end: int) -> StepRecord:
        """Return the record of the step, which ended with so many events."""
        notes = self._notes
        for operation in self._tape.operations:
            operation.seconds = _seconds(notes.events[slice(*operation.span)])
        last = notes.position(end)
        allocations = np.array(notes.allocations[:last], np.int64).reshape(-1, 2)
        temporaries = [each for each in notes.temporaries if each[0] <= last]
        return StepRecord(allocations, self._uses, self._tape, kept_bytes, temporaries)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not is_large(tensor, self._keeper):
            return tensor if tensor.grad_fn is None else tensor.detach()
        with self._tape.paused():
            view = self._tape.view_of(tensor)
            use = SavedUse(view.value, self._ordinary.number(tensor))
            self._uses.append(use)
            self._notes.add(Saved(view.value))
        return _PutAway(view, use)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, _PutAway):
            kept: torch.Tensor = packed
            return kept
        self._notes.add(Needed(packed.view.value))
        position = len(self._notes.allocations)
        tensor = self._again(packed.view)
        packed.use.copies.append((position, self._ordinary.meet(tensor, "saved")))
        return tensor

    def _again(self, view: View) -> torch.Tensor:
        """Return a tensor like the saved one, in a storage like the one it lay in."""
        count = self._tape.nbytes[view.value] // view.dtype.itemsize
        device = self._keeper.device
        with torch.no_grad():
            if int(np.prod(view.sizes)) == count:
                return torch.empty_strided(view.sizes, view.strides, dtype=view.dtype, device=device)
            flat = torch.empty(count, dtype=view.dtype, device=device)
            return flat.as_strided(view.sizes, view.strides, view.offset)
