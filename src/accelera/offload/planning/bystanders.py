"""What operations take besides blocks: ordinary tensors alive at once, arithmetic, bytes touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, final

import torch

from accelera.capturing import Effect, Storages, flops_of, tensors_in


@final
class Bystanders:
    """Hears of every operator on ordinary tensors; those on ``meta`` only tell shapes.

    Parameters
    ----------
    step
        Returns the pool's latest step, to which arithmetic is counted.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._storages = Storages(on_death=self._gone)
        self._counted: set[int] = set()
        self._others: set[int] = set()
        self.alive_bytes = 0
        self.peak_bytes = 0
        """Most bytes of ordinary tensors that were alive at once."""
        self.peak_op = ""
        """The operator at which that was."""
        self.flops: dict[int, float] = defaultdict(float)
        """Floating-point operations by step."""
        self.touched_bytes: dict[int, int] = defaultdict(int)
        """Bytes of operands and results by step."""

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Count neither ``tensor`` nor its storage: it is a slab of the pool, or not of our making."""
        self._others.add(self._storages.number(tensor))

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count ordinary tensors that exist already."""
        for tensor in tensors:
            self._meet(tensor, "")

    def heard(self, func: Any, effect: Effect, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of one operator; see ``Listener``."""
        tensors = [*tensors_in((args, kwargs)), *tensors_in(result)]
        tensors = [each for each in tensors if each.device.type != "meta"]
        for tensor in tensors:
            self._meet(tensor, effect.name)
        if not tensors:
            return
        step, elements = self._step(), max(each.numel() for each in tensors)
        touched = sum(each.numel() * each.element_size() for each in tensors)
        self.flops[step] += flops_of(func, effect.name, args, kwargs, result, elements)
        self.touched_bytes[step] += touched
        if "convolution" in effect.name:
            self._note_peak(touched, effect.name)

    def _meet(self, tensor: torch.Tensor, op: str) -> None:
        number = self._storages.number(tensor)
        if number < 0 or number in self._others or number in self._counted:
            return
        self._counted.add(number)
        self.alive_bytes += self._storages.sizes_bytes[number]
        self._note_peak(0, op)

    def _note_peak(self, copies_bytes: int, op: str) -> None:
        """Note what is alive, with the copies of operands and results in another layout that ``op`` makes."""
        if self.alive_bytes + copies_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_op = self.alive_bytes + copies_bytes, op

    def _gone(self, number: int) -> None:
        if number in self._counted:
            self._counted.remove(number)
            self.alive_bytes -= self._storages.sizes_bytes[number]
