"""Record of one training step: what was allocated when, and when each saved value was needed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from accelera._native import Arena
from accelera.offload.training.tape import Tape

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class SavedUse:
    """A saved tensor whose values were put away in the recorded step."""

    value: int
    """Its value on the tape."""
    block: int
    """The allocation in which the value lay; -1 for none of the log."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """For each time that it was needed: the position in the log, and the allocation of its copy."""


@dataclass(frozen=True)
class StepRecord:
    """One forward and backward pass in which every saved tensor of some size was put away at once."""

    allocations: Array
    """Rows of (allocation, bytes; negative when released), in order."""
    saved: list[SavedUse]
    tape: Tape
    initial_bytes: int = 0
    """What was allocated before."""
    temporaries: list[tuple[int, int]] = field(default_factory=list)
    """Positions in the log at which an operation takes so many bytes more for itself."""


@final
class StepRecorder:
    """Takes the record while an arena logs."""

    def __init__(self, arena: Arena, tape: Tape) -> None:
        self._arena = arena
        self._tape = tape
        self._saved: list[SavedUse] = []
        self.active = True
        """Whether it takes notes."""
        self.in_backward = False
        arena.start_log()

    def saved(self, tensor: torch.Tensor) -> int:
        """Note that ``tensor`` is put away; return the number under which it is needed again."""
        block = self._arena.block_at(tensor.untyped_storage().data_ptr())
        self._saved.append(SavedUse(self._tape.value_of(tensor), block))
        return len(self._saved) - 1

    def needed(self, number: int, bring: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Note that what is under ``number`` is needed; return what ``bring`` returns."""
        if not self.active:
            return bring()
        position = self._arena.log_size
        tensor = bring()
        block = self._arena.block_at(tensor.untyped_storage().data_ptr())
        self._saved[number].copies.append((position, block))
        return tensor

    def finish(self) -> StepRecord:
        """End the log and return the record."""
        self.active = False
        return StepRecord(self._arena.take_log(), self._saved, self._tape)

    def give_up(self) -> None:
        """End the log of a pass whose graph is gone, unless its backward pass is under way."""
        if self.active and not self.in_backward:
            self.active = False
            self._arena.take_log()
