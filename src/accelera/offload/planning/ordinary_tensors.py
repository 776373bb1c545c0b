"""Ordinary tensors of a dry run: when each is allocated and released, and the arithmetic on them."""

from __future__ import annotations

from typing import Any, final

import torch

from accelera.capture import Effect, Storages, flops_of, tensors_in
from accelera.offload.keeping.plain import device_of
from accelera.offload.planning.recording_keeper import Notes


@final
class OrdinaryTensors:
    """Hears of every operator on ordinary tensors; those on ``meta`` only tell shapes."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._storages = Storages(on_death=self._released)
        self._counted: set[int] = set()
        self._others: set[int] = set()

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Count neither ``tensor`` nor its storage: it is a block's, or was there before."""
        self._others.add(self._storages.number(tensor))

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number under which the storage of ``tensor`` is counted; -1 when it is not."""
        number = self._storages.number(tensor)
        return number if number in self._counted else -1

    def meet(self, tensor: torch.Tensor, op: str) -> int:
        """Count ``tensor`` from now on, if it was not seen before; return the number of its storage."""
        number = self._storages.number(tensor)
        if number >= 0 and number not in self._others and number not in self._counted:
            self._counted.add(number)
            self._notes.allocate(number, self._storages.sizes_bytes[number], op)
        return number

    def heard(self, func: Any, effect: Effect, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of one operator; see ``Listener``."""
        tensors = [*tensors_in((args, kwargs)), *tensors_in(result)]
        tensors = [each for each in tensors if device_of(each).type != "meta"]
        for tensor in tensors:
            self.meet(tensor, effect.name)
        if not tensors:
            return
        elements = max(each.numel() for each in tensors)
        touched = sum(each.numel() * each.element_size() for each in tensors)
        self._notes.work(flops_of(func, effect.name, args, kwargs, result, elements), touched)
        inside = _temporary_bytes(effect.name, args, touched)
        if inside:
            self._notes.temporaries.append((len(self._notes.allocations), inside))

    def _released(self, number: int) -> None:
        if number in self._counted:
            self._counted.remove(number)
            self._notes.allocate(number, -self._storages.sizes_bytes[number], "")


def _temporary_bytes(op: str, args: Any, touched_bytes: int) -> int:
    """Return the bytes that an operator takes inside, where no other operator shows them.

    oneDNN puts operands and results of convolutions into another layout, and weights of recurrent layers into
    two or three; a fused layer of a transformer makes queries, scores and the like.
    """
    if "convolution" in op:
        return touched_bytes
    if "rnn_layer" in op:
        return 3 * touched_bytes
    if op == "_native_multi_head_attention":
        return _attention_bytes(args[0], heads=args[4], masked=_argument(args, 9) is not None)
    if op == "_transformer_encoder_layer_fwd":
        source: torch.Tensor = args[0]
        normed = source.nbytes if args[8] else 0
        hidden = source.nbytes // source.shape[-1] * args[14].shape[0]
        attention = _attention_bytes(source, heads=args[2], masked=_argument(args, 18) is not None)
        return int(max(normed + attention, source.nbytes + normed + hidden))
    return 0


def _argument(args: Any, place: int) -> Any:
    return args[place] if len(args) > place else None


def _attention_bytes(source: torch.Tensor, heads: int, *, masked: bool) -> int:
    """Return the bytes that a fused attention takes inside besides its result.

    First queries, keys and values in one tensor and by heads; then those by heads and the scores, of which a
    mask takes another copy.
    """
    batch, length = source.shape[:2]
    scores = batch * heads * length * length * source.element_size()
    return max(5 * source.nbytes, 3 * source.nbytes + (2 if masked else 1) * scores)
